"""Deploy: serve the artifact behind a canary, and prove the way back."""

from collections.abc import Iterable

from delivery_plane.claims import DeployClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ArtifactRegistered, FactBase
from stages.jobs import base_name
from stages.stage import Facts, StageContext


class Deploy:
    """Stage 8."""

    name = StageName.DEPLOY

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """The artifact is on record already."""
        return ()

    def execute(self, context: StageContext, claim: DeployClaim) -> Facts:
        """The staged roll-out on loopback. Without an artifact there is nothing to serve."""
        if context.record.last(ArtifactRegistered):
            yield context.plane.deploy(
                context.folder / "artifact",
                context.bases[base_name(context)],
                claim,
                context.splits.probe,
                context.spec.fault,
            )
