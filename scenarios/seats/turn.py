"""A scripted seat's turn, and the base of all scripts. A script keeps no state: it reads the record each time."""

from dataclasses import dataclass
from typing import Protocol

from delivery_plane.claims import Claim, FlagAnswer
from delivery_plane.delivery import OnFlag, StageName
from delivery_plane.seat.seat import Seat


@dataclass(frozen=True)
class Turn:
    """What the seat is asked for: a stage visit's claim, or an answer to a flag."""

    stage: StageName
    attempt: int
    flag_id: str | None
    on_flag: OnFlag


class Script(Protocol):
    """One scripted seat."""

    def play(self, seat: Seat, turn: Turn) -> None:
        """Do what this turn asks for: claim, answer the flag, or ask for a dev evaluation first."""
        ...


class StageScript:
    """Plays a turn with one method per stage, named after it. A method returns the claim, or None when it
    asked for something instead and wants another turn."""

    def play(self, seat: Seat, turn: Turn) -> None:
        """Answer a flag, or call the stage's method and submit what it returns."""
        if turn.flag_id:
            seat.claim(self.flag(turn))
            return
        claim: Claim | None = getattr(self, turn.stage.value)(seat, turn)
        if claim is not None:
            seat.claim(claim)

    def flag(self, turn: Turn) -> FlagAnswer:
        """`--on-flag` decides: stop, or ask a person to let the job go on."""
        assert turn.flag_id
        if turn.on_flag is OnFlag.ASK:
            return FlagAnswer(
                flag_id=turn.flag_id,
                action="continue",
                reason="The loss still falls; I ask to finish the run.",
            )
        return FlagAnswer(
            flag_id=turn.flag_id,
            action="stop",
            reason="The probe shows no uplift; more steps would be wasted.",
        )
