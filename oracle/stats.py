"""Statistics of paired right/wrong items: exact test and score interval. No thresholds, no decisions.

Notation: of `items` held-out items, each answered by two models, `wins` were right with the tuned
model only, `losses` with the base only, the rest are ties. Uplift is (wins - losses) / items, a share.

Everything here is integer arithmetic, IEEE sums, products and square roots, so the same counts give
the same bits on every machine: a verdict can be judged again elsewhere and compared byte by byte.
"""

import math
from statistics import NormalDist


def mcnemar_one_sided(wins: int, losses: int) -> float:
    """Exact one-sided McNemar p-value: P(W >= wins), W ~ Binomial(wins + losses, 1/2); 1.0 without pairs.

    Swap the arguments to test the other direction. Raises ValueError for negative counts.
    Source: McNemar, Psychometrika 12 (1947) 153-157, in its exact binomial form; the tail is summed in
    integers and divided once, so the result is the correctly rounded probability.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"counts of pairs cannot be negative: {wins} wins, {losses} losses")
    pairs = wins + losses
    fewest = min(wins, losses + 1)
    term = total = 1 if fewest else 0
    for k in range(1, fewest):
        term = term * (pairs - k + 1) // k
        total += term
    # `total` counts the outcomes with fewer than `fewest` successes, out of 2**pairs; the binomial at 1/2
    # is symmetric, so P(W >= wins) is either what is left of it or the tail itself.
    outcomes = 1 << pairs
    return (outcomes - total) / outcomes if fewest == wins else total / outcomes


def uplift_interval(wins: int, losses: int, ties: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided confidence interval of the paired uplift at `level`, as (lower, upper) shares.

    Tango's score interval, see `upper_bound`. Raises ValueError as `upper_bound` does.
    """
    one_sided = (1 + level) / 2
    return -upper_bound(losses, wins, ties, one_sided), upper_bound(wins, losses, ties, one_sided)


def upper_bound(wins: int, losses: int, ties: int, level: float) -> float:
    """One-sided upper confidence bound of the paired uplift at `level`, a share in [-1, 1].

    The largest uplift that the score test does not reject, the loss rate being re-estimated under each
    candidate uplift: Tango, Statistics in Medicine 17 (1998) 891-908. It keeps its width where a Wald bound
    collapses: with no wins and no losses of n it is z^2 / (n + z^2) (7.8 points for 64 items at 99%).
    Its coverage is enumerated in the tests rather than assumed. With wins only, it is Wilson's bound.

    Raises ValueError for negative counts, no items, or a level outside (0.5, 1).
    """
    items = wins + losses + ties
    if min(wins, losses, ties) < 0 or items == 0:
        raise ValueError(f"not a paired table: {wins} wins, {losses} losses, {ties} ties")
    if not 0.5 < level < 1:
        raise ValueError(f"a confidence level lies between 0.5 and 1, not {level}")
    if wins == items:
        return 1.0
    # 12 digits: the quantile alone goes through log(), which may differ in its last bits between machines.
    z = round(NormalDist().inv_cdf(level), 12)
    below, above = (wins - losses) / items, 1.0
    while True:
        middle = (below + above) / 2
        if not below < middle < above:
            return round(middle, 12)
        if _shortfall(middle, wins, losses, items) <= z:
            below = middle
        else:
            above = middle


def _shortfall(uplift: float, wins: int, losses: int, items: int) -> float:
    """How far below `uplift` the counts lie, in standard errors under that uplift (Tango's -T)."""
    linear = uplift * (2 * items - wins + losses) - wins - losses
    constant = losses * uplift * (1 - uplift)
    # Maximum-likelihood loss rate under this uplift: the larger root of 2n q^2 + linear q - constant = 0.
    root = math.sqrt(max(0.0, linear * linear + 8 * items * constant))
    loss_rate = max(0.0, -uplift, (root - linear) / (4 * items))
    variance = items * (2 * loss_rate + uplift * (1 - uplift))
    distance = items * uplift - (wins - losses)
    if variance <= 0:
        return 0.0 if distance <= 0 else math.inf
    return distance / math.sqrt(variance)
