"""Schedule: does the chosen offer exist, fit and stay in budget, was its cost foreseen, is it near the cheapest?"""

from delivery_plane.claims import ScheduleClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ScheduleOffered, ScheduleQuoted
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, measured, passed_if

EXPECTATION_FACTOR = 2.0
"""Source: chosen; throughput models that are fitted well stay within 25% on points they have not seen, so a
factor of two separates an estimate from a guess."""
USD_TOLERANCE = 0.01
"""US dollars: one cent, below which a ratio of prices says nothing. Source: chosen."""
NEAR_CHEAPEST = 1.25
"""Source: chosen; on-demand prices of one kind of GPU commonly differ by more than this between offers."""


def _within_factor(expected: float, quoted: float) -> bool:
    return quoted <= EXPECTATION_FACTOR * expected and expected <= EXPECTATION_FACTOR * quoted


def _choice(record: Record, visit: Visit) -> Reading:
    claim, quoted = claimed(record, visit, ScheduleClaim), measured(record, visit, ScheduleQuoted)
    wanted, offer = claim.value, quoted.value.offer
    choice = f"{wanted.gpus} x {wanted.gpu_kind} in {wanted.precision}"
    if offer is None:
        return passed_if(False, f"{choice} is not on offer", claim, quoted)
    same = (offer.gpu_kind, offer.gpus, offer.precision) == (wanted.gpu_kind, wanted.gpus, wanted.precision)
    return passed_if(
        same and offer.feasible and offer.memory_bytes_needed <= offer.memory_bytes_available,
        f"{choice} {'is' if same else 'is not'} the offer quoted; it needs {offer.memory_bytes_needed} of "
        f"{offer.memory_bytes_available} bytes, {'feasible' if offer.feasible else 'not feasible: ' + offer.why_not}",
        claim,
        quoted,
    )


def _budget(record: Record, visit: Visit) -> Reading:
    offered, quoted = measured(record, visit, ScheduleOffered), measured(record, visit, ScheduleQuoted)
    offer, left = quoted.value.offer, offered.value
    if offer is None:
        return passed_if(False, "no offer matches the choice, so nothing is quoted", offered, quoted)
    return passed_if(
        offer.usd <= left.usd_left and offer.wall_seconds <= left.wall_seconds_left,
        f"quoted {offer.usd:.4f} usd of {left.usd_left:.4f} left and {offer.wall_seconds:.1f} wall seconds of "
        f"{left.wall_seconds_left:.1f} left",
        offered,
        quoted,
    )


def _expectation(record: Record, visit: Visit) -> Reading:
    claim, quoted = claimed(record, visit, ScheduleClaim), measured(record, visit, ScheduleQuoted)
    offer = quoted.value.offer
    if offer is None:
        return passed_if(False, "no offer matches the choice, so nothing is quoted", claim, quoted)
    seconds, usd = claim.value.expected_wall_seconds, claim.value.expected_usd
    return passed_if(
        _within_factor(seconds, offer.wall_seconds)
        and (_within_factor(usd, offer.usd) or abs(usd - offer.usd) <= USD_TOLERANCE),
        f"expected {seconds:.1f} wall seconds and {usd:.4f} usd; quoted {offer.wall_seconds:.1f} wall seconds and "
        f"{offer.usd:.4f} usd",
        claim,
        quoted,
    )


def _cheapest(record: Record, visit: Visit) -> Reading:
    quoted = measured(record, visit, ScheduleQuoted)
    offer, cheapest = quoted.value.offer, quoted.value.cheapest_usd
    if offer is None or cheapest is None:
        return passed_if(
            False, "no feasible offer" if offer is not None else "no offer matches the choice", quoted
        )
    return passed_if(
        offer.usd <= NEAR_CHEAPEST * cheapest * (1 + 1e-9),
        f"quoted {offer.usd:.4f} usd; the cheapest feasible offer costs {cheapest:.4f} usd, allowed up to "
        f"{NEAR_CHEAPEST} times that",
        quoted,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="schedule.choice_is_offered_and_fits",
        stage=StageName.SCHEDULE,
        blocking=False,
        asks="Is the choice one of the plane's offers, and does the job fit it?",
        flips="No offer matches the choice, or the offer is not feasible.",
        read=_choice,
    ),
    Rule(
        name="schedule.quote_within_budget",
        stage=StageName.SCHEDULE,
        blocking=False,
        asks="Is the quote within the money and the time that are left?",
        flips="The quote exceeds the dollars or the wall seconds left.",
        read=_budget,
    ),
    Rule(
        name="schedule.expectation_holds",
        stage=StageName.SCHEDULE,
        blocking=False,
        asks="Did the seat expect about the time and cost that the platform quotes?",
        flips="Expected seconds or dollars are off the quote by more than a factor of two.",
        read=_expectation,
    ),
    Rule(
        name="schedule.near_cheapest",
        stage=StageName.SCHEDULE,
        blocking=False,
        asks="Is the choice near the cheapest feasible offer?",
        flips="A feasible offer costs less than four fifths of the one chosen, or none is feasible.",
        read=_cheapest,
    ),
)
