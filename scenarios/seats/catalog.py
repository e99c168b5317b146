"""Scripted seats by name."""

from scenarios.seats.do_nothing import DoNothing
from scenarios.seats.reference import Reference
from scenarios.seats.reviser import Reviser
from scenarios.seats.transcriber import Transcriber
from scenarios.seats.turn import Script

SEATS: dict[str, Script] = {
    "reference": Reference(),
    "do-nothing": DoNothing(),
    "transcriber": Transcriber(),
    "reviser": Reviser(),
}
