"""Plan: is the strategy admissible: a base on offer, lawful data, a way to give up, and dev kept apart?"""

from collections.abc import Sequence

from delivery_plane.claims import IssueKind, PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import DataSelected, DeliveryOpened, PlanChecked
from delivery_plane.record import Cited, Record
from oracle.rules.rule import Absent, Reading, Rule, Visit, claimed, known, listed, measured, passed_if


def _base(record: Record, visit: Visit) -> Reading:
    claim, checked = claimed(record, visit, PlanClaim), measured(record, visit, PlanChecked)
    opened = known(record, DeliveryOpened)
    digest = checked.value.base_digest
    on_offer = opened.value.bases.get(claim.value.base)
    return passed_if(
        digest is not None and digest == on_offer and checked.value.base == claim.value.base,
        f"base `{claim.value.base}` {'is' if on_offer else 'is not'} one of {len(opened.value.bases)} on offer; "
        f"weights found: {(digest or 'none')[:12]}, offered: {(on_offer or 'none')[:12]}",
        claim,
        checked,
        opened,
    )


def _remaining(
    record: Record, visit: Visit, kinds: Sequence[IssueKind]
) -> tuple[Cited[DataSelected], dict[str, int]]:
    """Rows of each kind left in the training set. Raises Absent when a kind was not counted."""
    selected = measured(record, visit, DataSelected)
    counts: dict[str, int] = {}
    for kind in kinds:
        rows = selected.value.remaining.get(kind)
        if rows is None:
            raise Absent(f"{kind} was not counted in the selected rows", of_visit=True)
        counts[kind] = rows.count
    return selected, counts


def _none_remain(record: Record, visit: Visit, kinds: Sequence[IssueKind]) -> Reading:
    selected, counts = _remaining(record, visit, kinds)
    return passed_if(
        not any(counts.values()),
        f"left in {selected.value.rows_out} selected rows (of {selected.value.rows_in}): "
        + listed(f"{count} {kind}" for kind, count in counts.items()),
        selected,
    )


def _lawful(record: Record, visit: Visit) -> Reading:
    return _none_remain(record, visit, ("unlicensed_rows", "sealed_overlap"))


def _personal(record: Record, visit: Visit) -> Reading:
    return _none_remain(record, visit, ("pii",))


def _noise(record: Record, visit: Visit) -> Reading:
    return _none_remain(record, visit, ("duplicates", "conflicting_labels"))


def _rows_left(record: Record, visit: Visit) -> Reading:
    selected = measured(record, visit, DataSelected)
    return passed_if(
        selected.value.rows_out > 0,
        f"{selected.value.rows_out} rows selected of {selected.value.rows_in}",
        selected,
    )


def _abort(record: Record, visit: Visit) -> Reading:
    checked = measured(record, visit, PlanChecked)
    vague = checked.value.uncheckable_criteria
    return passed_if(
        checked.value.abort_criteria >= 1 and not vague,
        f"{checked.value.abort_criteria} abort criteria, {len(vague)} of them not checkable by machine: "
        f"{listed(vague)}",
        checked,
    )


def _apart(record: Record, visit: Visit) -> Reading:
    checked = measured(record, visit, PlanChecked)
    fact = checked.value
    return passed_if(
        fact.selection_split.strip().casefold() == "dev"
        and 1 <= fact.dev_evaluations_planned <= fact.dev_evaluations_left,
        f"candidates are chosen on `{fact.selection_split}` (must be `dev`); {fact.dev_evaluations_planned} dev "
        f"evaluations planned, {fact.dev_evaluations_left} left",
        checked,
    )


def _parent(record: Record, visit: Visit) -> Reading:
    claim, checked = claimed(record, visit, PlanClaim), measured(record, visit, PlanChecked)
    fact = checked.value
    return passed_if(
        fact.parent_known and fact.parent == claim.value.parent,
        f"attempt {visit.attempt} trains from `{fact.parent}`, which {'is' if fact.parent_known else 'is not'} the "
        "base or a job of this delivery on the planned base that ended with a checkpoint",
        claim,
        checked,
    )


def _rows_fit(record: Record, visit: Visit) -> Reading:
    claim, checked = claimed(record, visit, PlanClaim), measured(record, visit, PlanChecked)
    selected = measured(record, visit, DataSelected)
    usable = checked.value.rows_for_objective
    if usable is None:
        raise Absent("rows for the objective were not counted", of_visit=True)
    return passed_if(
        usable > 0,
        f"{usable} of {selected.value.rows_out} selected rows can serve the objective {claim.value.objective}",
        claim,
        checked,
        selected,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="plan.base_is_on_offer",
        stage=StageName.PLAN,
        blocking=False,
        asks="Is the planned base one that this delivery offers, with the weights it was opened with?",
        flips="The base is not on offer, or its weights are others than those recorded at opening.",
        read=_base,
    ),
    Rule(
        name="plan.selection_is_lawful",
        stage=StageName.PLAN,
        blocking=True,
        asks="Is the training set free of unlicensed rows and of rows that overlap the sealed set?",
        flips="At least one unlicensed or overlapping row remains among the selected rows.",
        read=_lawful,
    ),
    Rule(
        name="plan.personal_data_is_removed",
        stage=StageName.PLAN,
        blocking=False,
        asks="Is the training set free of rows with personal data?",
        flips="At least one row with personal data remains among the selected rows.",
        read=_personal,
    ),
    Rule(
        name="plan.label_noise_is_removed",
        stage=StageName.PLAN,
        blocking=False,
        asks="Is the training set free of duplicates and of contradicting labels?",
        flips="At least one duplicate or contradicting row remains among the selected rows.",
        read=_noise,
    ),
    Rule(
        name="plan.selection_leaves_rows",
        stage=StageName.PLAN,
        blocking=False,
        asks="Does the selection leave anything to train on?",
        flips="The selectors remove every row.",
        read=_rows_left,
    ),
    Rule(
        name="plan.abort_criteria_are_checkable",
        stage=StageName.PLAN,
        blocking=False,
        asks="Does the plan say when to give up, in terms a machine can check?",
        flips="There is no abort criterion, or one the platform cannot check.",
        read=_abort,
    ),
    Rule(
        name="plan.dev_is_apart",
        stage=StageName.PLAN,
        blocking=False,
        asks="Are candidates chosen on the dev split, with a planned number of looks that the budget allows?",
        flips="Selection happens on another split, or no look or more looks than are left are planned.",
        read=_apart,
    ),
    Rule(
        name="plan.parent_is_known",
        stage=StageName.PLAN,
        blocking=False,
        asks="Does training start from the base, or from a job of this delivery that left a checkpoint?",
        flips="The parent named is neither, or grew from another base than the planned one.",
        read=_parent,
        since="0.3.0",
    ),
    Rule(
        name="plan.rows_fit_the_objective",
        stage=StageName.PLAN,
        blocking=False,
        asks="Can the objective train on the rows that were selected?",
        flips="No selected row has what the objective needs: a preference needs a rejected answer.",
        read=_rows_fit,
        since="0.3.0",
    ),
)
