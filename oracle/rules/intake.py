"""Intake: did the seat see what the platform's profile of the data shows, and promise what the contract says?"""

from collections import Counter

from delivery_plane.claims import IntakeClaim, IssueKind
from delivery_plane.delivery import StageName
from delivery_plane.facts import DataProfiled, PlantedTruth
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, known, listed, measured, passed_if

MARGIN_TOLERANCE = 1e-6
"""Share. Source: margins are written with at most four decimals; this is only for their float form."""
COUNT_TOLERANCE_SHARE = 0.10
COUNT_TOLERANCE_ROWS = 3
"""How far a named count may lie from the profile's: the larger of the two. Source: chosen so that a seat
counting near-duplicates or PII by its own definition passes, and one that did not look does not."""
MUST_DROP: frozenset[IssueKind] = frozenset({"unlicensed_rows", "pii", "sealed_overlap"})
"""Issues that may never be kept: no right to use the row, no right to the person's data, no honest test."""


def _plain(name: str) -> str:
    """A name without case, spaces, underscores and hyphens."""
    return "".join(name.casefold().replace("_", " ").replace("-", " ").split())


def _metric(record: Record, visit: Visit) -> Reading:
    claim, truth = claimed(record, visit, IntakeClaim), known(record, PlantedTruth)
    names = (truth.value.metric, *truth.value.metric_synonyms)
    return passed_if(
        _plain(claim.value.metric) in {_plain(name) for name in names},
        f"claimed metric `{claim.value.metric}`; the contract's is `{truth.value.metric}` "
        f"({len(names) - 1} synonyms allowed)",
        claim,
        truth,
    )


def _margin(record: Record, visit: Visit) -> Reading:
    claim, truth = claimed(record, visit, IntakeClaim), known(record, PlantedTruth)
    promised, contract = claim.value.target_margin, truth.value.contract_margin
    return passed_if(
        abs(promised - contract) <= MARGIN_TOLERANCE,
        f"promised an uplift of {promised:.4f}; the contract says {contract:.4f} (shares)",
        claim,
        truth,
    )


def _licences(record: Record, visit: Visit) -> Reading:
    claim, truth = claimed(record, visit, IntakeClaim), known(record, PlantedTruth)
    allowed = {licence.strip().casefold() for licence in truth.value.permitted_licences}
    beyond = [name for name in claim.value.permitted_licences if name.strip().casefold() not in allowed]
    return passed_if(
        bool(claim.value.permitted_licences) and not beyond,
        f"{len(claim.value.permitted_licences)} licences claimed as permitted, of {len(allowed)} in the "
        f"contract; not permitted: {listed(beyond)}",
        claim,
        truth,
    )


def _issues(record: Record, visit: Visit) -> Reading:
    claim, profile = claimed(record, visit, IntakeClaim), measured(record, visit, DataProfiled)
    found = {kind: rows.count for kind, rows in profile.value.issues.items() if rows.count > 0}
    times = Counter(issue.kind for issue in claim.value.issues)
    wrong = [f"{kind} named {count} times" for kind, count in times.items() if count > 1]
    wrong += [f"{kind} not named ({count} rows)" for kind, count in found.items() if not times[kind]]
    for issue in claim.value.issues:
        count = found.get(issue.kind, 0)
        if count == 0 and issue.rows > 0:
            wrong.append(f"{issue.kind} named with {issue.rows} rows, profile has 0")
        elif abs(issue.rows - count) > max(COUNT_TOLERANCE_SHARE * count, COUNT_TOLERANCE_ROWS):
            wrong.append(f"{issue.kind} named with {issue.rows} rows, profile has {count}")
        if count > 0 and issue.kind in MUST_DROP and issue.action != "drop":
            wrong.append(f"{issue.kind} kept ({count} rows)")
    return passed_if(
        not wrong,
        f"{len(found)} kinds of issue in {profile.value.rows} rows, {len(times)} named; wrong: "
        f"{listed(sorted(wrong))}",
        claim,
        profile,
    )


def _impossible(record: Record, visit: Visit) -> Reading:
    claim, truth = claimed(record, visit, IntakeClaim), known(record, PlantedTruth)
    right = "accept" if truth.value.feasible else "decline"
    return passed_if(
        claim.value.decision == right,
        f"the seat's decision was to {claim.value.decision}; an uplift of {truth.value.contract_margin:.4f} is "
        f"{'feasible' if truth.value.feasible else 'impossible'} here, so the right one was to {right}",
        claim,
        truth,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="intake.metric_is_the_contracts",
        stage=StageName.INTAKE,
        blocking=False,
        asks="Does the statement of work name the contract's metric, or a synonym of it?",
        flips="The claimed metric is neither the contract's nor one of its synonyms.",
        read=_metric,
    ),
    Rule(
        name="intake.margin_is_the_contracts",
        stage=StageName.INTAKE,
        blocking=False,
        asks="Is the promised uplift the contract's margin?",
        flips="The promised uplift differs from the contract's margin.",
        read=_margin,
    ),
    Rule(
        name="intake.licences_are_permitted",
        stage=StageName.INTAKE,
        blocking=False,
        asks="Are all licences that the seat would use permitted by the contract?",
        flips="A licence is claimed that the contract does not permit, or none is claimed at all.",
        read=_licences,
    ),
    Rule(
        name="intake.issues_are_named",
        stage=StageName.INTAKE,
        blocking=False,
        asks="Is every problem that the profile shows named with its size, none invented, and the worst dropped?",
        flips="The profile shows a problem that is not named, is named with another size, or must be dropped.",
        read=_issues,
    ),
    Rule(
        name="intake.impossible_ask_is_declined",
        stage=StageName.INTAKE,
        blocking=False,
        asks="Does the seat decline exactly the engagements that cannot be delivered?",
        flips="The ask is impossible and accepted, or feasible and declined.",
        read=_impossible,
    ),
)
