"""The reviser: tries a short run first and revises. A first flag makes it switch to another plan, a poor dev
look makes it reopen the configuration."""

from delivery_plane.claims import Claim, ConfigClaim, FlagAnswer
from delivery_plane.facts import CandidateEvaluated
from delivery_plane.seat.seat import Seat
from scenarios.seats.reference import Reference, Terms
from scenarios.seats.turn import Turn

FIRST_STEPS = 16


class Reviser(Reference):
    """The reference, with a first attempt that is too short."""

    def config(self, seat: Seat, turn: Turn) -> Claim:
        claim = super().config(seat, turn)
        assert isinstance(claim, ConfigClaim)
        return claim if turn.attempt > 1 else claim.model_copy(update={"steps": FIRST_STEPS})

    def flag(self, turn: Turn) -> FlagAnswer:
        if turn.attempt > 1 or turn.flag_id is None:
            return super().flag(turn)
        return FlagAnswer(
            flag_id=turn.flag_id, action="switch", reason="Too short a run: plan it anew, longer."
        )

    def next_action(self, seat: Seat, turn: Turn, look: CandidateEvaluated) -> str:
        short = look.uplift < Terms(seat.brief().text).margin
        return "continue" if short and turn.attempt == 1 else "stop"
