"""Cost: does the invoice reconcile with the meters, and the meters with the budget?"""

from delivery_plane.claims import CostClaim
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.facts import MetersRead
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, listed, measured, passed_if

TOLERANCE_SHARE = dict.fromkeys(Amounts.model_fields, 0.01) | {"wall_seconds": 0.20}
"""Of the metered amount. Source: chosen; one percent is rounding on an invoice, and the wall clock runs on
between writing the invoice and reading the meters."""
TOLERANCE_AMOUNT = Amounts(usd=1e-4, gpu_seconds=0.05, wall_seconds=1.0, tokens=1, dev_evaluations=0, bytes=1)
"""Floor of the tolerance, in each unit: amounts this small are rounding. Source: chosen."""
RESERVED_TOLERANCE = 1e-6
"""In each unit's own size. Source: the residue of adding and taking away floats."""


def _reconciles(record: Record, visit: Visit) -> Reading:
    claim, meters = claimed(record, visit, CostClaim), measured(record, visit, MetersRead)
    parts, off = [], []
    for unit in Amounts.model_fields:
        said, used = float(getattr(claim.value.total, unit)), float(getattr(meters.value.used, unit))
        allowed = max(TOLERANCE_SHARE[unit] * used, float(getattr(TOLERANCE_AMOUNT, unit)))
        parts.append(f"{said:g} of {used:g} {unit}")
        if abs(said - used) > allowed:
            off.append(unit)
    return passed_if(not off, f"invoiced of metered: {listed(parts)}; off: {listed(off)}", claim, meters)


def _within(record: Record, visit: Visit) -> Reading:
    meters = measured(record, visit, MetersRead)
    used, budget = meters.value.used, meters.value.budget
    over = used.exceeding(budget)
    parts = (f"{getattr(used, unit):g} of {getattr(budget, unit):g} {unit}" for unit in Amounts.model_fields)
    return passed_if(not over, f"used of budget: {listed(parts)}; over: {listed(over)}", meters)


def _settled(record: Record, visit: Visit) -> Reading:
    meters = measured(record, visit, MetersRead)
    left = {unit: float(getattr(meters.value.reserved, unit)) for unit in Amounts.model_fields}
    return passed_if(
        all(amount <= RESERVED_TOLERANCE for amount in left.values()),
        "still reserved: " + listed(f"{amount:g} {unit}" for unit, amount in left.items()),
        meters,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="cost.invoice_reconciles",
        stage=StageName.COST,
        blocking=False,
        asks="Is every unit on the invoice what the meter shows?",
        flips="One unit is off by more than a percent (wall seconds: a fifth).",
        read=_reconciles,
    ),
    Rule(
        name="cost.within_budget",
        stage=StageName.COST,
        blocking=True,
        asks="Is every metered unit within its budget?",
        flips="One unit's use exceeds its budget.",
        read=_within,
    ),
    Rule(
        name="cost.nothing_left_reserved",
        stage=StageName.COST,
        blocking=False,
        asks="Is all reserved work settled?",
        flips="A reservation is still open when the invoice is written.",
        read=_settled,
    ),
)
