"""Schedule: price every way to run the job, then quote the one the seat chose."""

from collections.abc import Iterable

from delivery_plane import meter
from delivery_plane.claims import ScheduleClaim
from delivery_plane.delivery import StageName
from delivery_plane.errors import LedgerFault
from delivery_plane.facts import ConfigRendered, FactBase, ScheduleOffered, ScheduleQuoted
from stages.jobs import job_spec
from stages.stage import Facts, StageContext


class Schedule:
    """Stage 4."""

    name = StageName.SCHEDULE

    def prepare(self, context: StageContext) -> Iterable[FactBase]:
        """Every offer of the plane, with memory, throughput and price."""
        rendered = context.record.last(ConfigRendered)
        if rendered is None:
            raise LedgerFault("schedule needs the rendered configuration on record")
        left = meter.left(context.record)
        yield ScheduleOffered(
            offers=context.plane.offers(job_spec(context), rendered.value, left.usd, left.wall_seconds),
            usd_left=left.usd,
            wall_seconds_left=left.wall_seconds,
            price_book=context.plane.price_book,
        )

    def execute(self, context: StageContext, claim: ScheduleClaim) -> Facts:
        """The chosen offer at the platform's price."""
        offered = context.record.last(ScheduleOffered)
        if offered is None:
            raise LedgerFault("schedule needs its offers on record")
        chosen = [
            offer
            for offer in offered.value.offers
            if (offer.gpu_kind, offer.gpus, offer.precision) == (claim.gpu_kind, claim.gpus, claim.precision)
        ]
        feasible = [offer.usd for offer in offered.value.offers if offer.feasible]
        yield ScheduleQuoted(
            offer=chosen[0] if chosen else None, cheapest_usd=min(feasible) if feasible else None
        )
