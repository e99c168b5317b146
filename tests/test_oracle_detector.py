"""The detector: where it looks, what it flags, and how often it would flag a healthy run, computed exactly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import probe
from scipy.stats import binom, multinomial

from oracle.detector import POLICY, look

MARGIN = 0.30


@pytest.mark.parametrize("counts", [(0, 0), (2, 0), (3, 1)])
@pytest.mark.parametrize("step", [40, 80, 120])
def test_a_run_that_learns_nothing_is_flagged(counts: tuple[int, int], step: int) -> None:
    flag = look(probe(step, *counts), MARGIN)
    assert flag
    assert flag.raised
    assert flag.score < flag.threshold == 0.15
    assert flag.items == 64


@pytest.mark.parametrize("counts", [(16, 0), (20, 1), (10, 2)])
def test_a_run_on_its_way_is_not_flagged(counts: tuple[int, int]) -> None:
    flag = look(probe(80, *counts), MARGIN)
    assert flag
    assert not flag.raised


@pytest.mark.parametrize("step", [step for step in range(10, 161, 10) if step not in (40, 80, 120)])
def test_it_does_not_look_elsewhere(step: int) -> None:
    assert look(probe(step, 0), MARGIN) is None


@pytest.mark.parametrize("step", range(10, 161, 10))
def test_a_loss_that_is_not_finite_is_flagged_anywhere(step: int) -> None:
    flag = look(probe(step, 60, probe_loss=None), MARGIN)
    assert flag
    assert flag.raised
    assert "not finite" in flag.message


@settings(deadline=None, max_examples=60)
@given(st.integers(16, 3000))
def test_every_run_is_looked_at_exactly_three_times(steps: int) -> None:
    probes = sorted({max(1, round(steps * k / 16)) for k in range(1, 17)})
    seen = [step for step in probes if look(probe(step, 0, budget_fraction=step / steps), MARGIN)]
    assert seen == [round(steps * k / 16) for k in (4, 8, 12)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 64), st.data())
def test_a_worse_probe_never_lowers_the_flag(wins: int, data: st.DataObject) -> None:
    losses = data.draw(st.integers(0, 64 - wins))
    flag = look(probe(80, wins, losses), MARGIN)
    worse = [(wins - 1, losses)] if wins else []
    worse += [(wins, losses + 1)] if wins + losses < 64 else []
    for counts in worse:
        then = look(probe(80, *counts), MARGIN)
        assert flag
        assert then
        assert then.score <= flag.score
        assert then.raised >= flag.raised


def flagged(margin: float) -> dict[tuple[int, int], bool]:
    return {
        (wins, losses): bool((seen := look(probe(80, wins, losses), margin)) and seen.raised)
        for wins in range(65)
        for losses in range(65 - wins)
    }


@pytest.mark.parametrize("margin", [0.10, 0.20, MARGIN])
@pytest.mark.parametrize("loss_rate", [0.0, 0.02, 0.1])
def test_a_healthy_run_is_hardly_ever_flagged(margin: float, loss_rate: float) -> None:
    table = multinomial(64, [margin + loss_rate, loss_rate, 1 - margin - 2 * loss_rate])
    alarm = sum(table.pmf([w, lo, 64 - w - lo]) for (w, lo), raised in flagged(margin).items() if raised)
    assert alarm <= 0.015


def test_a_run_at_the_threshold_is_flagged_about_as_rarely_as_the_level_says() -> None:
    threshold = POLICY.margin_share * MARGIN
    alarm = sum(
        binom.pmf(wins, 64, threshold)
        for (wins, losses), raised in flagged(MARGIN).items()
        if raised and losses == 0
    )
    assert alarm <= 1.5 * (1 - POLICY.level)


def test_a_run_without_uplift_is_caught_at_the_first_look() -> None:
    table = multinomial(64, [0.02, 0.02, 0.96])
    caught = sum(table.pmf([w, lo, 64 - w - lo]) for (w, lo), raised in flagged(MARGIN).items() if raised)
    assert caught >= 0.94


def test_counts_that_are_no_table_are_refused() -> None:
    with pytest.raises(ValueError, match="not a paired table"):
        look(probe(80, 60, 5), MARGIN)
