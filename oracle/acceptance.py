"""The sealed test's decision: is the delivered model better than its base by what was promised?

Everything about acceptance lies behind `decide`. This first version is a test of fixed size: all sealed
items are scored, then it decides once. The sequential fields of `Acceptance` stay None.
"""

from delivery_plane.verdicts import Acceptance, AcceptanceDecision
from oracle.stats import mcnemar_one_sided, uplift_interval

REPORTED_LEVEL = 0.95
"""Confidence level of the interval printed beside the decision; as in `CandidateEvaluated`. It decides nothing."""


def decide(wins: int, losses: int, ties: int, *, alpha: float, margin: float) -> Acceptance:
    """Accept, or reject and say how.

    `wins`, `losses`, `ties`: paired counts of sealed items, tuned against base. `alpha`: largest chance of
    accepting a model that is no better; `margin`: uplift the contract promises, as a share.

    Accepted when the exact one-sided test rejects "no better" at `alpha` (so type I is at most `alpha` for
    every share of ties) and the observed uplift reaches the margin. `reject_worse` when the test the other
    way round rejects at `alpha`. Raises ValueError when there are no items or a count is negative.
    """
    interval = uplift_interval(wins, losses, ties, REPORTED_LEVEL)
    items = wins + losses + ties
    uplift = (wins - losses) / items
    p_value = mcnemar_one_sided(wins, losses)
    if p_value <= alpha and uplift >= margin:
        decision = AcceptanceDecision.ACCEPT
    elif mcnemar_one_sided(losses, wins) <= alpha:
        decision = AcceptanceDecision.REJECT_WORSE
    else:
        decision = AcceptanceDecision.REJECT_NOT_BETTER
    return Acceptance(
        decision=decision,
        wins=wins,
        losses=losses,
        ties=ties,
        items=items,
        p_value=p_value,
        uplift=uplift,
        uplift_interval=interval,
        alpha=alpha,
        margin=margin,
    )
