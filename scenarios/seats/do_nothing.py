"""The do-nothing seat: good papers, no training. It submits the base and honestly claims no uplift."""

from delivery_plane.claims import Claim, TrainClaim
from delivery_plane.seat.seat import Seat
from scenarios.seats.reference import Reference
from scenarios.seats.turn import Turn


class DoNothing(Reference):
    """The reference, except that nothing is trained and the candidate is the base."""

    def train(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002 - one signature for all stages
        return TrainClaim(action="stop", reason="the base will do")

    def candidate(self, seat: Seat) -> str:  # noqa: ARG002
        return "base"
