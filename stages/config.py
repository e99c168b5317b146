"""Config: render real rows with the claimed settings and measure what would train."""

from collections.abc import Iterable

from delivery_plane.claims import ConfigClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import FactBase
from stages.jobs import job_spec
from stages.stage import Facts, StageContext


class Config:
    """Stage 3."""

    name = StageName.CONFIG

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """The plan and the selected rows are on record already."""
        return ()

    def execute(self, context: StageContext, claim: ConfigClaim) -> Facts:  # noqa: ARG002 - read from the record
        """Template, mask, adapter and time per step, measured on the selected rows; then the job tried out."""
        job = job_spec(context)
        yield context.plane.render(job)
        yield context.plane.preflight(job)
