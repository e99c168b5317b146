"""The sealed test's decision: its type-I error enumerated exactly, its direction, its order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from delivery_plane.verdicts import AcceptanceDecision
from oracle.acceptance import decide

DECISIONS = {
    AcceptanceDecision.REJECT_WORSE: 0,
    AcceptanceDecision.REJECT_NOT_BETTER: 1,
    AcceptanceDecision.ACCEPT: 2,
}


@pytest.mark.parametrize("items", [20, 60, 120])
@pytest.mark.parametrize("discordance", [0.05, 0.2, 0.5, 1.0])
def test_a_model_that_is_no_better_is_accepted_at_most_alpha_often(items: int, discordance: float) -> None:
    alpha = 0.01
    accepted = 0.0
    for pairs in range(items + 1):
        share = binom.pmf(pairs, items, discordance)
        for wins in range(pairs + 1):
            # margin 0: the harder case for the test, the margin only ever refuses more.
            verdict = decide(wins, pairs - wins, items - pairs, alpha=alpha, margin=0.0)
            if verdict.decision is AcceptanceDecision.ACCEPT:
                accepted += share * binom.pmf(wins, pairs, 0.5)
    assert accepted <= alpha


@pytest.mark.parametrize(
    ("counts", "decision"),
    [
        ((210, 5, 185), "accept"),
        ((120, 0, 280), "accept"),  # exactly the margin: 0.30
        ((119, 0, 281), "reject_not_better"),  # significant, below the margin
        ((6, 0, 2), "reject_not_better"),  # above the margin, p = 0.0156
        ((0, 0, 400), "reject_not_better"),
        ((20, 20, 360), "reject_not_better"),
        ((5, 30, 365), "reject_worse"),
        ((0, 6, 0), "reject_not_better"),  # worse, but p = 0.0156 the other way
    ],
)
def test_decisions(counts: tuple[int, int, int], decision: str) -> None:
    verdict = decide(*counts, alpha=0.01, margin=0.30)
    assert verdict.decision == decision
    assert verdict.items == sum(counts)
    assert verdict.uplift_interval[0] <= verdict.uplift <= verdict.uplift_interval[1]
    assert (verdict.e_value, verdict.threshold, verdict.futility) == (None, None, None)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), st.data())
def test_a_worse_count_never_improves_the_decision(items: int, data: st.DataObject) -> None:
    wins = data.draw(st.integers(0, items))
    losses = data.draw(st.integers(0, items - wins))
    margin = data.draw(st.sampled_from([0.02, 0.1, 0.3]))
    ties = items - wins - losses
    rank = DECISIONS[decide(wins, losses, ties, alpha=0.01, margin=margin).decision]
    if wins:
        assert DECISIONS[decide(wins - 1, losses, ties + 1, alpha=0.01, margin=margin).decision] <= rank
        assert DECISIONS[decide(wins - 1, losses + 1, ties, alpha=0.01, margin=margin).decision] <= rank
    if ties:
        assert DECISIONS[decide(wins, losses + 1, ties - 1, alpha=0.01, margin=margin).decision] <= rank
    assert DECISIONS[decide(wins, losses, ties, alpha=0.01, margin=margin + 0.1).decision] <= rank


def test_no_items_is_no_test() -> None:
    with pytest.raises(ValueError, match="not a paired table"):
        decide(0, 0, 0, alpha=0.01, margin=0.1)
