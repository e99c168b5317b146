"""The sealed test, run by the operator's process once a delivery's stages are done: count, record, judge."""

from pathlib import Path
from typing import Literal

from delivery_plane.compute.plane import ComputePlane, ModelRef, Suite
from delivery_plane.delivery import Outcome, StageName, StageRequest
from delivery_plane.errors import ComputeFault
from delivery_plane.facts import (
    AcceptanceTested,
    AcceptanceUnmeasured,
    ArtifactRegistered,
    FactBase,
    StageOpened,
)
from delivery_plane.record import Record
from oracle.judge import decide_outcome, judge_acceptance
from stages.jobs import base_name
from workflows.messages import AcceptanceReceipt
from workflows.platform import Platform
from workflows.visit import visiting


def run_acceptance(platform: Platform, delivery_id: str) -> AcceptanceReceipt:
    """Test the registered artifact against its base on the sealed items, and judge the counts."""
    record = platform.ledger.record(delivery_id)
    visit = record.last(StageOpened)
    if visit is None or record.last(ArtifactRegistered) is None:
        return AcceptanceReceipt(accepted=False)
    request = StageRequest(delivery_id=delivery_id, stage=StageName.CARD, attempt=visit.value.attempt)
    with visiting(platform, request) as last:
        context = last.context
        fact = _counts(
            context.plane,
            context.bases[base_name(context)],
            context.folder / "artifact",
            context.suite(context.splits.sealed),
            context.spec.fault,
        )
    with platform.ledger.writing(delivery_id) as writer:
        # The test belongs to no stage: it comes after all of them.
        written = writer.fact(fact, key="acceptance:measured").fact()
        if isinstance(written, AcceptanceUnmeasured):
            return AcceptanceReceipt(accepted=False if written.control == "base_works" else None)
        verdict = judge_acceptance(Record(writer.entries, for_oracle=True))
        if verdict is None:  # what was measured is not this delivery's test: never a zero
            return AcceptanceReceipt(accepted=None)
        writer.verdict("acceptance", verdict, stage=None, attempt=0)
        would_be, _ = decide_outcome(Record(writer.entries, for_oracle=True), before_release=True)
    platform.ledger.checkpoint(delivery_id)
    return AcceptanceReceipt(accepted=would_be is Outcome.ACCEPTED)


def _counts(
    plane: ComputePlane, base_path: Path, artifact: Path, sealed: Suite, defect: str | None
) -> FactBase:
    try:
        tuned = plane.evaluate(ModelRef(base_path=base_path, checkpoint_path=artifact), sealed, fault=defect)
    except ComputeFault:
        try:
            tuned = plane.evaluate(
                ModelRef(base_path=base_path, checkpoint_path=artifact), sealed, fault=defect
            )
        except ComputeFault as fault:
            return _unmeasured(plane, base_path, sealed, defect, fault)
    base = plane.evaluate(ModelRef(base_path=base_path), sealed, cached=True, fault=defect)
    wins, losses, ties = tuned.against(base)
    return AcceptanceTested(
        model_digest=tuned.model_digest,
        base_digest=base.model_digest,
        sealed_digest=tuned.items_digest,
        items=len(tuned.correct),
        wins=wins,
        losses=losses,
        ties=ties,
        correct=sum(tuned.correct),
        base_correct=sum(base.correct),
        decoding_digest=tuned.decoding_digest,
        template_digest=tuned.template_digest,
    )


def _unmeasured(
    plane: ComputePlane, base_path: Path, sealed: Suite, defect: str | None, fault: ComputeFault
) -> AcceptanceUnmeasured:
    """The base is the control: if it can be measured and the artifact cannot, the artifact is to blame."""
    control: Literal["base_works", "base_fails"] = "base_works"
    try:
        plane.evaluate(ModelRef(base_path=base_path), sealed, fault=defect)
    except ComputeFault:
        control = "base_fails"
    return AcceptanceUnmeasured(tries=2, control=control, error=str(fault)[:500])
