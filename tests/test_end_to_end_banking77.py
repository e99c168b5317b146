"""banking77 through the command line, on the real data: the cheapest delivery, whose seat never looks at it."""

import json
from pathlib import Path

import pytest
from banking77 import DATA, needs_data
from commands import Plane

from scenarios.catalog import expected, load_scenario


@needs_data
@pytest.mark.slow
def test_the_transcriber_is_stopped_at_its_unlawful_selection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Named in the settings file alone: the workers find the data as the command does.
    monkeypatch.delenv("DELIVERY_PLANE_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("delivery-plane.toml").write_text(f"data = {json.dumps(str(DATA))}\n")
    plane = Plane(tmp_path / "home")
    shown = plane.json("deliver", "banking77", "--seat", "transcriber", code=1, seconds=300)
    want = expected(load_scenario("banking77"))["transcriber"]
    assert shown["outcome"] == want.outcome
    failed = {stage["name"]: stage["findings"] for stage in shown["stages"] if stage["status"] == "failed"}
    assert list(failed) == list(want.failed_stages)
    blocked = [
        finding["rule"] for finding in failed["plan"] if finding["blocking"] and finding["status"] == "failed"
    ]
    assert blocked == [want.caught_by]
    assert shown["jobs"] == []
    assert shown["ledger"]["verified"] is True
    profile = plane.facts(shown["delivery_id"], "data_profiled")[0]
    assert profile["distinct_answers"] == 77
    assert profile["issues"]["duplicates"]["count"] == 150
