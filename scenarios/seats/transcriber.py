"""The transcriber: copies the brief's wording into every claim and never looks at the data."""

from delivery_plane.claims import Claim, IntakeClaim, PlanClaim
from delivery_plane.facts import DeliveryOpened
from delivery_plane.seat.seat import Seat
from scenarios.seats.reference import Reference, Terms
from scenarios.seats.turn import Turn


class Transcriber(Reference):
    """The brief says that the export is clean, so no issue is named and every row is taken."""

    def intake(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002 - one signature for all stages
        brief = seat.brief().text
        terms = Terms(brief)
        return IntakeClaim(
            decision="accept",
            statement_of_work=brief[:4000],
            metric=terms.metric,
            target_margin=terms.margin,
            permitted_licences=terms.licences,
        )

    def plan(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        opened = seat.record().last(DeliveryOpened)
        assert opened
        brief = seat.brief().text
        return PlanClaim(
            objective="sft",
            mechanism="full",
            base=next(iter(opened.value.bases)),
            selectors=(),
            dev_evaluations=1,
            rationale=brief[:4000],
        )
