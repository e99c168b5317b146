"""Register: merge, hash, reload and compare the candidate, and keep it as the deliverable."""

from collections.abc import Iterable

from delivery_plane.claims import RegisterClaim
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.errors import BadInput
from delivery_plane.facts import ArtifactRegistered, FactBase
from stages.jobs import BASE, chosen_candidate, finished_jobs, model_of
from stages.stage import Facts, StageContext


class Register:
    """Stage 7."""

    name = StageName.REGISTER

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """The candidate was chosen at eval."""
        return ()

    def execute(self, context: StageContext, claim: RegisterClaim) -> Facts:
        """The artifact under `artifact/` in the delivery's folder. A candidate that is none yields nothing."""
        candidate = claim.candidate or chosen_candidate(context)
        try:
            model = model_of(context, candidate)
        except BadInput:
            return
        out = context.folder / "artifact"
        done = context.plane.register(model, out, context.splits.probe, context.spec.fault)
        work = f"register-{context.attempt}"
        if context.reserve(work, Amounts(bytes=done.bytes)):
            context.settle(work, Amounts(bytes=done.bytes))
        job = finished_jobs(context).get(candidate)
        yield ArtifactRegistered(
            candidate=candidate,
            artifact_name=claim.artifact_name,
            parent_job=None if candidate == BASE else candidate,
            parent_checkpoint_digest=job.checkpoint_digest if job else None,
            **done.model_dump(),
        )
