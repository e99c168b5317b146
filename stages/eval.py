"""Eval: score candidates on the dev split beside the base, every look counted."""

from collections.abc import Iterable

from delivery_plane.claims import EvalClaim
from delivery_plane.compute.plane import ModelRef, Scored
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.errors import BadInput, ComputeFault
from delivery_plane.facts import CandidateEvaluated, FactBase, MeasurementFailed
from stages.jobs import base_name, model_of
from stages.stage import Facts, StageContext


class Eval:
    """Stage 6."""

    name = StageName.EVAL

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - looks are asked for
        """The seat asks for the looks it wants."""
        return ()

    def execute(self, context: StageContext, claim: EvalClaim) -> Facts:
        """Score the chosen candidate if no look at it is on record yet."""
        looks = [fact.value.candidate for fact in context.record.facts(CandidateEvaluated)]
        if claim.candidate not in looks:
            yield from self.look(context, f"claimed-{context.attempt}", claim.candidate)

    def look(self, context: StageContext, request_id: str, candidate: str) -> Facts:
        """One scoring of a candidate on dev. An unknown candidate or a spent budget yields nothing.

        Every look ends with its reservation refused or settled: that is how the platform knows it was answered.
        """
        if not context.reserve(request_id, Amounts(dev_evaluations=1)):
            return
        try:
            model = model_of(context, candidate)
        except BadInput:
            context.settle(request_id, Amounts())
            return
        base_model = ModelRef(base_path=context.bases[base_name(context)])
        try:
            tuned = measured(context, model)
        except ComputeFault as fault:
            yield control(context, base_model, "dev evaluation", candidate, str(fault))
            context.settle(request_id, Amounts(dev_evaluations=1))
            return
        base = context.plane.evaluate(
            base_model, context.suite(context.splits.dev), cached=True, fault=context.spec.fault
        )
        wins, losses, ties = tuned.against(base)
        yield CandidateEvaluated(
            request_id=request_id,
            candidate=candidate,
            split_digest=tuned.items_digest,
            model_digest=tuned.model_digest,
            items=len(tuned.correct),
            correct=sum(tuned.correct),
            base_correct=sum(base.correct),
            wins=wins,
            losses=losses,
            ties=ties,
            uplift=(wins - losses) / len(tuned.correct),
            look=len(context.record.facts(CandidateEvaluated)) + 1,
            empty_answers=tuned.empty_answers,
            decoding_digest=tuned.decoding_digest,
            template_digest=tuned.template_digest,
        )
        context.settle(
            request_id,
            Amounts(
                dev_evaluations=1,
                gpu_seconds=tuned.device_seconds,
                usd=context.plane.usd(tuned.device_seconds),
                wall_seconds=tuned.device_seconds,
                tokens=tuned.generated_tokens,
            ),
        )


def measured(context: StageContext, model: ModelRef) -> Scored:
    """A candidate's dev answers; tried twice before it counts as failing."""
    try:
        return context.plane.evaluate(model, context.suite(context.splits.dev), fault=context.spec.fault)
    except ComputeFault:
        return context.plane.evaluate(model, context.suite(context.splits.dev), fault=context.spec.fault)


def control(context: StageContext, base: ModelRef, what: str, subject: str, error: str) -> MeasurementFailed:
    """Evaluate the base in the failed candidate's place: if that works, the candidate is to blame."""
    try:
        context.plane.evaluate(base, context.suite(context.splits.dev), fault=context.spec.fault)
    except ComputeFault as fault:
        return MeasurementFailed(
            what=what, subject=subject, tries=2, control="base_fails", error=f"{error}; base: {fault}"[:500]
        )
    return MeasurementFailed(what=what, subject=subject, tries=2, control="base_works", error=error[:500])
