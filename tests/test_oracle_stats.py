"""Exact test and score interval: against scipy, against published values, and their coverage enumerated."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, multinomial

from oracle.stats import mcnemar_one_sided, uplift_interval, upper_bound

counts = st.integers(min_value=0, max_value=300)


@settings(deadline=None, max_examples=60)
@given(counts, counts)
def test_p_value_is_the_binomial_tail(wins: int, losses: int) -> None:
    assert mcnemar_one_sided(wins, losses) == pytest.approx(binom.sf(wins - 1, wins + losses, 0.5), rel=1e-9)


def test_p_value_is_exact_by_hand() -> None:
    assert mcnemar_one_sided(0, 0) == 1.0
    assert mcnemar_one_sided(5, 0) == 1 / 32
    assert mcnemar_one_sided(0, 5) == 1.0
    assert mcnemar_one_sided(4, 1) == 6 / 32
    assert mcnemar_one_sided(3, 3) == 42 / 64


def test_p_value_of_thousands_of_pairs_is_a_number() -> None:
    assert 0 < mcnemar_one_sided(5200, 4800) < 1e-4


def test_interval_is_the_published_one() -> None:
    # Airway hyper-responsiveness before and after transplantation, 21 children: 1 and 7 discordant pairs.
    # Tango's interval as printed in Fagerland, Lydersen, Laake, Stat. Med. 33 (2014) 2850-2875.
    assert uplift_interval(1, 7, 13) == pytest.approx((-0.517, -0.026), abs=5e-4)


def test_bound_without_discordant_pairs_keeps_its_width() -> None:
    # z^2 / (n + z^2) with z = 2.3263
    assert upper_bound(0, 0, 64, 0.99) == pytest.approx(0.07797, abs=1e-5)
    assert upper_bound(0, 0, 4, 0.99) > 0.5


def test_bound_stays_within_range_at_the_corners() -> None:
    assert upper_bound(64, 0, 0, 0.99) == 1.0
    assert -1 < upper_bound(0, 64, 0, 0.99) < -0.8
    assert uplift_interval(0, 64, 0)[0] == -1.0


@settings(deadline=None, max_examples=60)
@given(counts, counts, counts, st.sampled_from([0.9, 0.95, 0.975, 0.99]))
def test_bound_lies_above_the_estimate_and_grows_with_the_level(
    wins: int, losses: int, ties: int, level: float
) -> None:
    items = wins + losses + ties
    if items == 0:
        return
    bound = upper_bound(wins, losses, ties, level)
    assert (wins - losses) / items <= bound <= 1
    assert bound <= upper_bound(wins, losses, ties, level + 0.005)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 80), st.data())
def test_bound_never_falls_with_a_better_answer(items: int, data: st.DataObject) -> None:
    wins = data.draw(st.integers(0, items))
    losses = data.draw(st.integers(0, items - wins))
    ties = items - wins - losses
    bound = upper_bound(wins, losses, ties, 0.99)
    if losses:
        assert upper_bound(wins, losses - 1, ties + 1, 0.99) >= bound
    if ties:
        assert upper_bound(wins + 1, losses, ties - 1, 0.99) >= bound


@settings(deadline=None, max_examples=60)
@given(counts, counts, counts)
def test_interval_mirrors_when_the_models_are_swapped(wins: int, losses: int, ties: int) -> None:
    if wins + losses + ties:
        low, high = uplift_interval(wins, losses, ties)
        assert uplift_interval(losses, wins, ties) == (-high, -low)


@pytest.mark.parametrize(("uplift", "loss_rate"), list(product((0.05, 0.15, 0.30), (0.0, 0.05, 0.2))))
def test_upper_bound_misses_about_one_time_in_a_hundred(uplift: float, loss_rate: float) -> None:
    items = 64
    rates = [loss_rate + uplift, loss_rate, 1 - uplift - 2 * loss_rate]
    table = multinomial(items, rates)
    missed = sum(
        table.pmf([wins, losses, items - wins - losses])
        for wins in range(items + 1)
        for losses in range((items - wins) * (loss_rate > 0) + 1)
        if upper_bound(wins, losses, items - wins - losses, 0.99) < uplift
    )
    assert missed <= 0.013


@pytest.mark.parametrize("items", [50, 100, 300])
def test_the_textbook_interval_differs_by_less_than_four_items(items: int) -> None:
    # What `eval.interval_matches` allows: a seat may claim a Wald interval.
    step = max(1, items // 30)
    for wins in range(0, items + 1, step):
        for losses in range(0, items - wins + 1, step):
            uplift = (wins - losses) / items
            if abs(uplift) > 0.8:
                continue
            half = 1.96 * (((wins + losses) / items - uplift**2) / items) ** 0.5
            low, high = uplift_interval(wins, losses, items - wins - losses)
            assert abs(max(-1, uplift - half) - low) < 4 / items
            assert abs(min(1, uplift + half) - high) < 4 / items


@pytest.mark.parametrize("table", [(0, 0, 0), (-1, 2, 3), (1, -2, 30), (1, 2, -1)])
def test_a_table_that_is_none_is_refused(table: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="not a paired table"):
        upper_bound(*table, 0.99)


def test_levels_and_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="confidence level"):
        upper_bound(1, 2, 3, 1.0)
    with pytest.raises(ValueError, match="cannot be negative"):
        mcnemar_one_sided(-1, 2)
