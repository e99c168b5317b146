"""How often a step may fail, by cause, counted over all its tries on a real server."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from delivery_plane.errors import BadInput, ComputeFault, Interrupted, MachineUnfit
from delivery_plane.settings import Home
from workflows.client import connect
from workflows.server import EmbeddedServer
from workflows.worker import Attributing

ERRORS = {error.__name__: error for error in (BadInput, ComputeFault, Interrupted, MachineUnfit, ValueError)}


@workflow.defn
class OneStep:
    """A workflow of one step."""

    @workflow.run
    async def run(self, errors: list[str]) -> int:
        return await workflow.execute_activity(
            step,
            errors,
            start_to_close_timeout=timedelta(minutes=1),
            heartbeat_timeout=timedelta(seconds=12),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=100), maximum_interval=timedelta(seconds=1)
            ),
        )


@activity.defn
async def step(errors: list[str]) -> int:
    """Fails in the given ways, one per try; then returns how many tries it took."""
    tries = activity.info().attempt
    if tries <= len(errors):
        raise ERRORS[errors[tries - 1]]("as told")
    return tries


@pytest.mark.parametrize(
    ("errors", "ended"),
    [
        (["ComputeFault", "Interrupted", "ComputeFault", "Interrupted"], 5),
        (["Interrupted", "ComputeFault", "Interrupted", "ComputeFault", "ComputeFault"], "ComputeFault"),
        (["ValueError", "ComputeFault", "ValueError"], "ValueError"),
        (["MachineUnfit", "ComputeFault", "ComputeFault"], 4),
        (["BadInput"], "BadInput"),
    ],
)
def test_only_a_steps_own_failures_end_it(tmp_path: Path, errors: list[str], ended: int | str) -> None:
    home = Home(tmp_path / "home").create()
    server = EmbeddedServer(home)
    server.start()
    try:
        assert asyncio.run(result(server.address, home, errors)) == ended
    finally:
        server.stop()


async def result(address: str, home: Home, errors: list[str]) -> int | str:
    """The tries it took, or the name of the error that was final."""
    client = await connect(address)
    worker = Worker(
        client,
        task_queue="steps",
        workflows=[OneStep],
        activities=[step],
        interceptors=[Attributing(home)],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        try:
            run = client.execute_workflow(OneStep.run, errors, id="one", task_queue="steps")
            return await asyncio.wait_for(run, 60)
        except WorkflowFailureError as error:
            step_failed = error.cause.cause if isinstance(error.cause, ActivityError) else None
            return (step_failed.type if isinstance(step_failed, ApplicationError) else None) or ""
