"""One delivery through three recipes, each going on from the job before: activities on a real ledger, real training."""

import json
import shutil
from pathlib import Path

import pytest
import toy

from delivery_plane.claims import Claim, ConfigClaim, PlanClaim
from delivery_plane.delivery import (
    DeliverySpec,
    GateKind,
    GateRequest,
    StageName,
    StageRequest,
    VerdictStatus,
)
from delivery_plane.facts import (
    ArtifactRegistered,
    CandidateEvaluated,
    JobEnded,
    JobStarted,
    PreflightChecked,
    ProbeObserved,
)
from delivery_plane.hyperparameters import DpoSettings, GrpoSettings, LoraSettings
from delivery_plane.record import Record
from delivery_plane.seat.seat import Seat
from delivery_plane.settings import Home
from oracle.judge import rejudge
from oracle.strategy import state_of
from scenarios.seats.catalog import SEATS
from scenarios.seats.reference import Reference
from scenarios.seats.turn import Turn
from workflows.activities import DeliveryActivities
from workflows.messages import EvaluationOrder, SeatTurn
from workflows.platform import open_platform

pytestmark = [pytest.mark.long, pytest.mark.slow]

DELIVERY = "three-recipes"
OBJECTIVES = {1: "sft", 2: "dpo", 3: "grpo"}


class ThreeRecipes(Reference):
    """Tunes, then prefers, then is rewarded; the middle one by an adapter."""

    def plan(self, seat: Seat, turn: Turn) -> Claim:
        claim = super().plan(seat, turn)
        assert isinstance(claim, PlanClaim)
        changes = {
            "objective": OBJECTIVES[turn.attempt],
            "mechanism": "lora" if turn.attempt == 2 else "full",
            "parent": f"job-{turn.attempt - 1}" if turn.attempt > 1 else "base",
        }
        return PlanClaim.model_validate({**claim.model_dump(), **changes})

    def config(self, seat: Seat, turn: Turn) -> Claim:
        claim = super().config(seat, turn)
        assert isinstance(claim, ConfigClaim)
        changes: dict[int, dict[str, object]] = {
            1: {"steps": 96},
            2: {
                "steps": 16,
                "learning_rate": 1e-3,
                "dpo": DpoSettings(beta=0.1),
                "lora": LoraSettings(rank=4, alpha=8),
            },
            3: {
                "steps": 16,
                "learning_rate": 1e-4,
                "grpo": GrpoSettings(group_rows=8, max_new_tokens=4, temperature=1.5),
            },
        }
        return claim.model_copy(update=changes[turn.attempt])

    def next_action(self, seat: Seat, turn: Turn, look: CandidateEvaluated) -> str:  # noqa: ARG002
        return "stop" if turn.attempt == 3 else "switch"


def preferences(folder: Path) -> None:
    """Give every public row a worse answer."""
    path = folder / "public" / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    letters = sorted({row["answer"] for row in rows})
    for row in rows:
        row["rejected"] = letters[(letters.index(row["answer"]) + 2) % len(letters)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_delivery_goes_on_from_job_to_job_and_its_facts_tell_what_each_was(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delivery_plane.compute.local.plane import LocalPlane

    folder = tmp_path / "scenario"
    shutil.copytree(toy.shared(tmp_path_factory.getbasetemp().parent), folder)
    preferences(folder)
    monkeypatch.setitem(SEATS, "three-recipes", ThreeRecipes())
    home = Home(tmp_path / "home")
    platform = open_platform(home, LocalPlane(home.cache, home.logs, "cpu"))
    activities = DeliveryActivities(platform)
    activities.open_delivery(
        DeliverySpec(delivery_id=DELIVERY, scenario=str(folder), seat="three-recipes", on_flag="observe")
    )

    def visit(stage: StageName, attempt: int) -> None:
        request = StageRequest(delivery_id=DELIVERY, stage=stage, attempt=attempt)
        activities.open_stage(request)
        turn = SeatTurn(delivery_id=DELIVERY, stage=stage, attempt=attempt)
        assert activities.drive_seat(turn)
        for look in activities.read_desk(request).evaluations:
            order = EvaluationOrder(delivery_id=DELIVERY, attempt=attempt, request_id=look)
            assert activities.evaluate(order).granted
            assert activities.drive_seat(turn)
        assert activities.run_stage(request).ended == "complete"
        verdict = activities.judge_stage(request)
        assert not verdict.blocked
        if stage is not StageName.EVAL:
            assert verdict.status is VerdictStatus.PASSED, (stage, attempt, found(stage, attempt))

    def found(stage: StageName, attempt: int) -> list[str]:
        (verdict,) = [
            v.value for v in record().verdicts() if (v.value.stage, v.value.attempt) == (stage, attempt)
        ]
        return [f"{f.rule}: {f.message}" for f in verdict.findings if f.status != "passed"]

    def record() -> Record:
        return platform.ledger.record(DELIVERY)

    visit(StageName.INTAKE, 1)
    for attempt in OBJECTIVES:
        for stage in (StageName.PLAN, StageName.CONFIG, StageName.SCHEDULE):
            visit(stage, attempt)
        gate = GateRequest(
            delivery_id=DELIVERY,
            gate_id=f"{DELIVERY}-spend-{attempt}",
            kind=GateKind.SPEND,
            attempt=attempt,
            deadline_seconds=60,
        )
        if activities.open_gate(gate).needed:
            activities.decide_by_policy(gate)
        visit(StageName.TRAIN, attempt)
        visit(StageName.EVAL, attempt)
    visit(StageName.REGISTER, 3)

    states = [state_of(record(), f"job-{attempt}") for attempt in OBJECTIVES]
    assert [state.objective for state in states] == ["SFT", "PREF", "ONLINE_RL"]
    assert [state.mechanism for state in states] == ["full", "adapter", "full"]
    assert [state.data for state in states] == ["customer", "customer", "on-policy"]
    assert states[-1].lineage == ("base", "SFT", "PREF", "ONLINE_RL")
    starts = [fact.value for fact in record().facts(JobStarted)]
    ends = [fact.value for fact in record().facts(JobEnded)]
    assert [start.strategy.g for start in starts] == [state.lineage for state in states]
    assert [start.parent_digest for start in starts[1:]] == [end.checkpoint_digest for end in ends[:-1]]
    assert starts[1].reference_digest == ends[0].checkpoint_digest
    assert starts[2].reward == "answer:exact_match"
    assert ends[2].rollouts > 0
    assert ends[2].policy_versions == 16
    assert all(not fact.value.failed for fact in record().facts(PreflightChecked))
    last = {fact.value.job_id: fact.value for fact in record().facts(ProbeObserved)}
    assert last["job-2"].preference
    assert last["job-3"].policy
    # Each job went on from the one before: none fell back to the base, which gets no box right.
    looks = [fact.value for fact in record().facts(CandidateEvaluated)]
    assert looks[0].uplift > 0.5
    assert all(look.uplift > looks[0].uplift - 0.2 for look in looks)
    artifact = record().last(ArtifactRegistered)
    assert artifact
    assert artifact.value.parent_job == "job-3"
    assert rejudge(platform.ledger.entries(DELIVERY)) == []
