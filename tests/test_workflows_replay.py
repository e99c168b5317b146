"""Golden histories: the workflow replays every recorded delivery, and a workflow of another order does not."""

import importlib.util
import sys
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

import workflows.delivery
from workflows.delivery import DeliveryWorkflow

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replayer(workflow: type) -> Replayer:
    return Replayer(workflows=[workflow], data_converter=pydantic_data_converter)


def history(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text())


def test_there_are_histories_of_every_kind_of_end() -> None:
    kinds = {path.stem.partition("-")[2] for path in HISTORIES}
    assert kinds >= {"accepted", "reopened", "flag-refused", "violation", "preflight-failed"}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_recorded_deliveries_replay(path: Path) -> None:
    await replayer(DeliveryWorkflow).replay_workflow(history(path))


async def test_a_workflow_of_another_order_fails_the_replay(tmp_path: Path) -> None:
    source = Path(workflows.delivery.__file__).read_text()
    run = "receipt = await self._do(Do.run_stage, request, queue=queue, hours=240)\n"
    assert source.count(run) == 2
    changed = source.replace(run, "await self._local(Do.judge_stage, request)\n        " + run, 1)
    path = tmp_path / "changed_delivery.py"
    path.write_text(changed)
    spec = importlib.util.spec_from_file_location("changed_delivery", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["changed_delivery"] = module
    sys.path.insert(0, str(tmp_path))
    try:
        spec.loader.exec_module(module)
        accepted = next(path for path in HISTORIES if path.stem.endswith("accepted"))
        with pytest.raises(workflows.delivery.workflow.NondeterminismError):
            await replayer(module.DeliveryWorkflow).replay_workflow(history(accepted))
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["changed_delivery"]
