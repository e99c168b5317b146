"""Cost: read the meters before the seat writes its invoice."""

from collections.abc import Iterable

from delivery_plane.claims import CostClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import FactBase, MetersRead
from stages.stage import Facts, StageContext


class Cost:
    """Stage 9."""

    name = StageName.COST

    def prepare(self, context: StageContext) -> Iterable[FactBase]:
        """The meters as they stand."""
        yield MetersRead(
            used=context.used,
            reserved=context.reserved,
            budget=context.scenario.budget,
            price_book=context.plane.price_book,
        )

    def execute(self, context: StageContext, claim: CostClaim) -> Facts:  # noqa: ARG002 - a claim alone
        """Nothing runs: the invoice is judged against the meters."""
        yield from ()
