"""Budgets: reserved before work starts, settled when it ends, never granted beyond the ceiling."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELIVERY, at_once, new_platform, note, open_delivery, platform_key

from delivery_plane import meter
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.errors import LedgerFault
from delivery_plane.facts import BudgetReserved, BudgetSettled
from workflows.platform import Platform

pytestmark = pytest.mark.usefixtures("database")

UNITS = tuple(Amounts.model_fields)
COUNTS = ("tokens", "dev_evaluations", "bytes")
PLACE = (StageName.TRAIN, 1)
BUDGET = Amounts(usd=1.5, gpu_seconds=100.5, wall_seconds=400, tokens=1000, dev_evaluations=10, bytes=10**9)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Platform]:
    made = new_platform(tmp_path)
    open_delivery(made, budget=BUDGET)
    yield made
    made.ledger.close()


def reserve(parts: Platform, work_id: str, amounts: Amounts) -> BudgetReserved:
    return meter.reserve(parts.ledger, DELIVERY, work_id, amounts, *PLACE)


def settle(parts: Platform, work_id: str, amounts: Amounts) -> None:
    meter.settle(parts.ledger, DELIVERY, work_id, amounts, *PLACE)


def share(amounts: Amounts, part: float) -> Amounts:
    whole = {unit: part * getattr(amounts, unit) for unit in UNITS}
    return Amounts(**{unit: int(value) if unit in COUNTS else value for unit, value in whole.items()})


def test_there_are_six_units() -> None:
    assert UNITS == ("usd", "gpu_seconds", "wall_seconds", "tokens", "dev_evaluations", "bytes")


@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_is_set_aside_then_used_and_the_rest_released(parts: Platform, unit: str) -> None:
    whole = getattr(BUDGET, unit)
    half = whole // 2 if unit in COUNTS else whole / 2
    used = half // 2 if unit in COUNTS else half / 4
    assert reserve(parts, "job-1", Amounts(**{unit: half})).granted
    record = parts.ledger.record(DELIVERY)
    assert getattr(meter.reserved(record), unit) == half
    assert getattr(meter.left(record), unit) == whole - half
    assert meter.used(record) == Amounts()
    settle(parts, "job-1", Amounts(**{unit: used}))
    record = parts.ledger.record(DELIVERY)
    assert meter.reserved(record) == Amounts()
    assert meter.used(record) == Amounts(**{unit: used})
    assert getattr(meter.left(record), unit) == whole - used
    for other in set(UNITS) - {unit}:
        assert getattr(meter.left(record), other) == getattr(BUDGET, other)
    assert meter.budget(record) == BUDGET


@pytest.mark.parametrize("unit", UNITS)
def test_each_unit_is_refused_by_itself_and_the_refusal_is_on_record(parts: Platform, unit: str) -> None:
    over = getattr(BUDGET, unit) * 1.001 + 1
    asked = Amounts(**{unit: int(over) if unit in COUNTS else over})
    refused = reserve(parts, "job-1", asked)
    assert not refused.granted
    assert refused.exceeding == (unit,)
    record = parts.ledger.record(DELIVERY)
    assert [fact.value for fact in record.facts(BudgetReserved, *PLACE)] == [refused]
    assert meter.reserved(record) == Amounts()
    assert meter.left(record) == BUDGET


def test_the_whole_budget_fits_and_nothing_after_it(parts: Platform) -> None:
    assert reserve(parts, "job-1", BUDGET).granted
    assert meter.left(parts.ledger.record(DELIVERY)) == Amounts()
    for unit in UNITS:
        assert reserve(parts, f"job-{unit}", Amounts(**{unit: 1})).exceeding == (unit,)
    assert reserve(parts, "nothing", Amounts()).granted


def test_sums_that_equal_the_budget_on_paper_fit(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    open_delivery(parts, budget=Amounts(usd=0.3))
    assert reserve(parts, "job-1", Amounts(usd=0.1)).granted
    assert reserve(parts, "job-2", Amounts(usd=0.1)).granted
    assert reserve(parts, "job-3", Amounts(usd=0.3 - 0.1 - 0.1 + 1e-17)).granted
    assert not reserve(parts, "job-4", Amounts(usd=0.001)).granted


def test_work_tried_again_is_reserved_and_settled_once(parts: Platform) -> None:
    first = reserve(parts, "job-1", share(BUDGET, 0.6))
    assert reserve(parts, "job-1", share(BUDGET, 0.9)) == first
    settle(parts, "job-1", share(BUDGET, 0.2))
    settle(parts, "job-1", share(BUDGET, 0.5))
    record = parts.ledger.record(DELIVERY)
    assert meter.used(record) == share(BUDGET, 0.2)
    assert len(record.facts(BudgetSettled)) == 1
    refused = reserve(parts, "job-2", share(BUDGET, 0.95))
    assert not refused.granted
    settle(parts, "other", Amounts())
    assert reserve(parts, "job-2", share(BUDGET, 0.95)) == refused  # its answer stands: it is on record


def test_work_that_used_more_than_it_reserved_counts_in_full(parts: Platform) -> None:
    reserve(parts, "job-1", Amounts(gpu_seconds=100))
    settle(parts, "job-1", Amounts(gpu_seconds=130))
    record = parts.ledger.record(DELIVERY)
    assert meter.used(record).gpu_seconds == 130
    assert meter.left(record).gpu_seconds == 0
    assert not reserve(parts, "job-2", Amounts(gpu_seconds=0.1)).granted


def test_a_delivery_that_never_opened_has_no_budget(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    with pytest.raises(LedgerFault, match="delivery_opened"):
        reserve(parts, "job-1", Amounts())
    parts.ledger.fact(DELIVERY, note(1))
    with pytest.raises(LedgerFault, match="delivery_opened"):
        reserve(parts, "job-1", Amounts())
    assert len(parts.ledger.entries(DELIVERY)) == 1


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "settle"]),
        st.integers(1, 6),
        st.fixed_dictionaries({unit: st.integers(0, 70) for unit in UNITS}),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=25)
@given(OPERATIONS)
def test_what_is_granted_never_exceeds_the_budget_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[str, int, dict[str, int]]],
) -> None:
    parts = new_platform(tmp_path_factory.mktemp("meter"))
    open_delivery(parts, budget=BUDGET)
    held: dict[str, Amounts] = {}
    spent: dict[str, Amounts] = {}
    refused: set[str] = set()
    for what, number, shares in operations:
        work_id = f"job-{number}"
        amounts = Amounts(**{unit: getattr(share(BUDGET, shares[unit] / 100), unit) for unit in UNITS})
        if what == "reserve":
            free = {
                unit: getattr(BUDGET, unit)
                - sum(getattr(taken, unit) for taken in (*held.values(), *spent.values()))
                for unit in UNITS
            }
            over = {unit: getattr(amounts, unit) - free[unit] for unit in UNITS}
            known = work_id in held or work_id in spent or work_id in refused
            found = reserve(parts, work_id, amounts)
            if not known:
                # Sums of floats in another order may differ in their last bits: what is so close may go either way.
                assert set(found.exceeding) <= {unit for unit in UNITS if over[unit] > -1e-6}
                assert set(found.exceeding) >= {unit for unit in UNITS if over[unit] > 1e-6}
                assert found.granted == (not found.exceeding)
                (held.update({work_id: amounts}) if found.granted else refused.add(work_id))
        elif work_id in held:
            # Work keeps to what was set aside for it: it uses at most that.
            within = Amounts(
                **{unit: min(getattr(amounts, unit), getattr(held[work_id], unit)) for unit in UNITS}
            )
            settle(parts, work_id, within)
            spent[work_id] = within
            del held[work_id]
        record = parts.ledger.record(DELIVERY)
        for unit in UNITS:
            total = getattr(meter.used(record), unit) + getattr(meter.reserved(record), unit)
            assert total == pytest.approx(
                sum(getattr(taken, unit) for taken in (*held.values(), *spent.values()))
            )
            assert total <= getattr(BUDGET, unit) * (1 + 1e-6)
            assert getattr(meter.left(record), unit) == pytest.approx(
                max(0, getattr(BUDGET, unit) - total), abs=1e-6
            )
    parts.ledger.close()


def test_of_forty_looks_asked_for_at_once_ten_are_granted(parts: Platform) -> None:
    found = at_once(40, lambda number: reserve(parts, f"look-{number}", Amounts(dev_evaluations=1)))
    assert sum(item.granted for item in found) == 10
    assert {item.exceeding for item in found if not item.granted} == {("dev_evaluations",)}
    record = parts.ledger.record(DELIVERY)
    assert sum(fact.value.granted for fact in record.facts(BudgetReserved)) == 10
    assert len(record.facts(BudgetReserved)) == 40
    assert meter.left(record).dev_evaluations == 0
    parts.ledger.checkpoint(DELIVERY)
    assert parts.ledger.verify(DELIVERY, platform_key(parts)).verified


@pytest.mark.parametrize("value", [-1, float("nan"), -0.001])
def test_nobody_reserves_a_negative_or_unknown_amount(value: float) -> None:
    for unit in UNITS:
        with pytest.raises(ValueError, match=unit):
            Amounts(**{unit: value})


@pytest.mark.parametrize("unit", ["usd", "gpu_seconds", "wall_seconds"])
def test_nobody_reserves_an_endless_amount(parts: Platform, unit: str) -> None:
    try:
        endless = Amounts(**{unit: float("inf")})
    except ValueError:
        return
    assert not reserve(parts, "job-1", endless).granted
