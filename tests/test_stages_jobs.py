"""Where a job starts: from the base, or from an earlier job that grew from the same one."""

from pathlib import Path
from typing import Any, cast

import pytest
from records import Builder, played

from delivery_plane.claims import PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import CheckpointSaved, JobStarted
from stages.jobs import model_of, parent_of
from stages.stage import StageContext


class Context:
    """As much of a visit as finding a job's start needs."""

    def __init__(self, b: Builder) -> None:
        self.record = b.record
        self.bases = {"micro-1": Path("one"), "micro-2": Path("two")}
        self.folder = Path("delivery")


def context() -> StageContext:
    """A delivery in which job-1 trained on micro-1 and left a checkpoint."""
    b = Builder(played(StageName.TRAIN, judged=False))
    b.fact(CheckpointSaved(job_id="job-1", step=160, digest="c4ec" * 16, bytes=1), StageName.TRAIN, 1)
    assert b.record.facts(JobStarted)[-1].value.base == "micro-1"
    return cast(StageContext, Context(b))


def plan(**changes: Any) -> PlanClaim:
    found = context().record.claim(PlanClaim)
    assert found
    return found.value.model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "parent"),
    [
        ({}, None),
        ({"parent": "job-1"}, "job-1"),
        ({"parent": "job-7"}, None),
        # Its weights are of another shape: loading them there would be the platform's failure, for the seat's mistake.
        ({"parent": "job-1", "base": "micro-2"}, None),
        # A base that is not on offer is taken for the first that is.
        ({"parent": "job-1", "base": "elsewhere"}, "job-1"),
    ],
)
def test_a_plan_goes_on_only_from_a_job_on_its_own_base(changes: dict[str, Any], parent: str | None) -> None:
    found = parent_of(context(), plan(**changes))
    assert (found.job_id if found else None) == parent


def test_a_candidate_is_its_last_checkpoint_on_the_base_it_grew_from() -> None:
    model = model_of(context(), "job-1")
    assert model.base_path == Path("one")
    assert model.parents == ()
    assert model.checkpoint_path == Path("delivery/jobs/job-1/checkpoint-160")
