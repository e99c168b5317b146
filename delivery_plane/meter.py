"""Budgets in six units: reserved before work starts, settled when it ends. Pure sums over recorded facts."""

from delivery_plane.delivery import Amounts, StageName
from delivery_plane.errors import LedgerFault
from delivery_plane.facts import BudgetReserved, BudgetSettled, DeliveryOpened
from delivery_plane.ledger import Ledger
from delivery_plane.record import Record


def budget(record: Record) -> Amounts:
    """The delivery's ceilings."""
    opened = record.last(DeliveryOpened)
    if opened is None:
        raise LedgerFault("the delivery has no delivery_opened fact")
    return opened.value.budget


def used(record: Record) -> Amounts:
    """What settled work has used."""
    total = Amounts()
    for settled in record.facts(BudgetSettled):
        total = total.plus(settled.value.amounts)
    return total


def reserved(record: Record) -> Amounts:
    """What is set aside for work not yet settled."""
    settled = {fact.value.work_id for fact in record.facts(BudgetSettled)}
    total = Amounts()
    for reservation in record.facts(BudgetReserved):
        if reservation.value.granted and reservation.value.work_id not in settled:
            total = total.plus(reservation.value.amounts)
    return total


def left(record: Record) -> Amounts:
    """What may still be reserved."""
    return budget(record).minus(used(record).plus(reserved(record)))


def reserve(
    ledger: Ledger, delivery_id: str, work_id: str, amounts: Amounts, stage: StageName, attempt: int
) -> BudgetReserved:
    """Set amounts aside for one piece of work, if the budget allows; either way it is recorded, once."""
    with ledger.writing(delivery_id) as writer:
        exceeding = amounts.exceeding(left(writer.record))
        fact = BudgetReserved(work_id=work_id, amounts=amounts, granted=not exceeding, exceeding=exceeding)
        entry = writer.fact(fact, key=f"reserve:{work_id}", stage=stage, attempt=attempt)
        found = entry.fact()
        assert isinstance(found, BudgetReserved)
        return found


def settle(
    ledger: Ledger, delivery_id: str, work_id: str, amounts: Amounts, stage: StageName, attempt: int
) -> None:
    """Record what the work used, once, and release the rest of its reservation."""
    fact = BudgetSettled(work_id=work_id, amounts=amounts)
    ledger.fact(delivery_id, fact, key=f"settle:{work_id}", stage=stage, attempt=attempt)
