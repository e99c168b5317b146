"""Eval: do the claimed numbers match the platform's, and is the choice right given them?"""

from delivery_plane.claims import EvalClaim, PlanClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import (
    BudgetReserved,
    CandidateEvaluated,
    DeliveryOpened,
    JobEnded,
    PlantedTruth,
    ProbeObserved,
)
from delivery_plane.record import Cited, Record
from oracle.rules.rule import Absent, Reading, Rule, Visit, claimed, in_force, known, listed, passed_if
from oracle.stats import uplift_interval

BASE = "base"
"""How a claim names the untrained base as its candidate."""
UPLIFT_TOLERANCE = 0.005
"""Share. Source: chosen; half a point, the rounding of an uplift printed in whole points."""
INTERVAL_TOLERANCE = 0.01
INTERVAL_TOLERANCE_ITEMS = 4.0
"""Each end may be off by the larger of a share of 0.01 (chosen: rounding to whole points, as printed) and 4 / items.
The claim is held against Tango's score interval at 95%; the textbook Wald interval differs from it by up to
z^2 / items = 3.84 / items (enumerated in the tests), and a seat may use either."""
STOP_SHARE = 0.5
"""Of the contract margin: stopping claims a model that is not of the kind that trains but does not learn,
whose interval lies below half the margin."""


def _evaluation(record: Record, visit: Visit, claim: Cited[EvalClaim]) -> Cited[CandidateEvaluated] | None:
    """The latest dev score of the claimed candidate; None when it is the seat's doing that there is none.

    That is so when the candidate is no job, or no dev evaluation was left to score it. Raises Absent otherwise.
    """
    candidate = claim.value.candidate
    scores = [item for item in _scores(record) if item.value.candidate == candidate]
    if scores:
        return scores[-1]
    jobs = {job.value.job_id for job in record.facts(JobEnded)}
    reservations = record.facts(BudgetReserved, visit.stage, visit.attempt)
    if (jobs and candidate not in {BASE, *jobs}) or any(not item.value.granted for item in reservations):
        return None
    raise Absent(f"no dev score of candidate {candidate}", of_visit=True, subject=candidate)


def _scores(record: Record) -> list[Cited[CandidateEvaluated]]:
    """Every dev score whose counts are a paired table."""
    return [
        item
        for item in record.facts(CandidateEvaluated)
        if item.value.wins + item.value.losses + item.value.ties == item.value.items > 0
    ]


def _never_scored(claim: Cited[EvalClaim]) -> Reading:
    message = f"candidate {claim.value.candidate} was never scored on dev: its numbers rest on nothing"
    return passed_if(False, message, claim)


def _bounds(fact: CandidateEvaluated) -> tuple[float, float]:
    """95% interval of a score's uplift, as shares."""
    return uplift_interval(fact.wins, fact.losses, fact.ties)


def _counts(fact: CandidateEvaluated) -> str:
    low, high = _bounds(fact)
    return f"{fact.uplift:+.4f} [{low:+.4f}, {high:+.4f}] on {fact.items} dev items (95%)"


def _candidate(record: Record, visit: Visit) -> Reading:
    claim, jobs = claimed(record, visit, EvalClaim), record.facts(JobEnded)
    if claim.value.candidate == BASE:
        return passed_if(True, "the candidate is the untrained base", claim, known(record, DeliveryOpened))
    if not jobs:
        raise Absent("no job_ended fact in this delivery")
    own = [job for job in jobs if job.value.job_id == claim.value.candidate]
    return passed_if(
        bool(own),
        f"candidate {claim.value.candidate}; {len(jobs)} jobs ended: {listed(job.value.job_id for job in jobs)}",
        claim,
        *(own or jobs),
    )


def _uplift(record: Record, visit: Visit) -> Reading:
    claim = claimed(record, visit, EvalClaim)
    score = _evaluation(record, visit, claim)
    if score is None:
        return _never_scored(claim)
    return passed_if(
        abs(claim.value.uplift - score.value.uplift) <= UPLIFT_TOLERANCE,
        f"claimed an uplift of {claim.value.uplift:+.4f}; measured {_counts(score.value)}",
        claim,
        score,
    )


def _interval(record: Record, visit: Visit) -> Reading:
    claim = claimed(record, visit, EvalClaim)
    score = _evaluation(record, visit, claim)
    if score is None:
        return _never_scored(claim)
    ends = zip(claim.value.uplift_interval, _bounds(score.value), strict=True)
    low, high = claim.value.uplift_interval
    allowed = max(INTERVAL_TOLERANCE, INTERVAL_TOLERANCE_ITEMS / score.value.items)
    return passed_if(
        all(abs(said - seen) <= allowed for said, seen in ends),
        f"claimed an interval of [{low:+.4f}, {high:+.4f}]; measured {_counts(score.value)}; an end may be off by "
        f"{allowed:.4f}",
        claim,
        score,
    )


def _looks(record: Record, visit: Visit) -> Reading:
    looks = record.facts(CandidateEvaluated, visit.stage, visit.attempt)
    if not looks:
        raise Absent(f"no candidate_evaluated fact in eval attempt {visit.attempt}", of_visit=True)
    plan = in_force(record, PlanClaim)
    plans = [
        entry.claim() for entry in record.entries if entry.type == "claim" and entry.stage == StageName.PLAN
    ]
    planned = sum(claim.dev_evaluations for claim in plans if isinstance(claim, PlanClaim))
    so_far = max(look.value.look for look in looks)
    return passed_if(
        len(looks) <= plan.value.dev_evaluations and so_far <= planned,
        f"{len(looks)} looks at dev in this attempt, {plan.value.dev_evaluations} planned; {so_far} so far, "
        f"{planned} planned by {len(plans)} plans",
        plan,
        *looks,
    )


def _decision(record: Record, visit: Visit) -> Reading:
    claim, truth = claimed(record, visit, EvalClaim), known(record, PlantedTruth)
    opened = known(record, DeliveryOpened)
    score = _evaluation(record, visit, claim)
    if score is None:
        return _never_scored(claim)
    margin = truth.value.contract_margin
    looks = len(record.facts(CandidateEvaluated))
    looks_left = max(0, opened.value.budget.dev_evaluations - looks)
    affordable = _affords_another_job(record, opened.value)
    if claim.value.action == "stop":
        holds = _bounds(score.value)[0] >= STOP_SHARE * margin or looks_left == 0 or not affordable
    else:
        holds = score.value.uplift < margin
    return passed_if(
        holds,
        f"{claim.value.action} at {_counts(score.value)}; contract margin {margin:.4f}, {looks_left} dev evaluations "
        f"left, budget {'left' if affordable else 'not left'} for another such job",
        claim,
        truth,
        opened,
        score,
    )


def _affords_another_job(record: Record, opened: DeliveryOpened) -> bool:
    """Whether what jobs left of the budget would pay for one more like the last."""
    jobs = [job.value for job in record.facts(JobEnded)]
    if not jobs:
        return True
    gpu_seconds = opened.budget.gpu_seconds - sum(job.gpu_seconds for job in jobs)
    usd = opened.budget.usd - sum(job.usd for job in jobs)
    return gpu_seconds >= jobs[-1].gpu_seconds and usd >= jobs[-1].usd


def _evidence(record: Record, visit: Visit) -> Reading:
    claim = claimed(record, visit, EvalClaim)
    usable = {
        item.entry
        for kind in (CandidateEvaluated, ProbeObserved, JobEnded)
        for item in record.facts(kind)
        if item.entry < claim.entry
    }
    if not usable:
        raise Absent("nothing measured that could be cited", of_visit=True)
    cited = claim.value.evidence
    unusable = [number for number in cited if number not in usable]
    reading = passed_if(
        bool(cited) and not unusable,
        f"{len(cited)} entries cited, of {len(usable)} scores, probes and ended jobs before the claim; "
        f"not among them: {listed(unusable)}",
        claim,
    )
    entries = {*reading.entries, *(number for number in cited if number in usable)}
    return Reading(reading.status, reading.message, tuple(sorted(entries)))


def _best(record: Record, visit: Visit) -> Reading:
    claim = claimed(record, visit, EvalClaim)
    chosen = _evaluation(record, visit, claim)
    if chosen is None:
        return _never_scored(claim)
    latest = {score.value.candidate: score for score in _scores(record)}
    best = max(latest.values(), key=lambda score: (score.value.uplift, score.value.candidate))
    return passed_if(
        chosen.value.uplift >= best.value.uplift or _bounds(chosen.value)[1] >= _bounds(best.value)[0],
        f"chosen {chosen.value.candidate}: {_counts(chosen.value)}; best of {len(latest)} scored is "
        f"{best.value.candidate}: {_counts(best.value)}",
        claim,
        chosen,
        best,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="eval.candidate_is_known",
        stage=StageName.EVAL,
        blocking=False,
        asks="Is the candidate a recorded job, or the base?",
        flips="No job of that name has ended.",
        read=_candidate,
    ),
    Rule(
        name="eval.uplift_matches",
        stage=StageName.EVAL,
        blocking=False,
        asks="Is the claimed uplift the platform's number?",
        flips="Claimed and measured uplift differ by more than half a point.",
        read=_uplift,
    ),
    Rule(
        name="eval.interval_matches",
        stage=StageName.EVAL,
        blocking=False,
        asks="Is the claimed interval the platform's?",
        flips="An end of the interval differs by more than one point and more than 4 / items.",
        read=_interval,
    ),
    Rule(
        name="eval.looks_within_plan",
        stage=StageName.EVAL,
        blocking=False,
        asks="Was dev looked at no more often than planned?",
        flips="There are more looks in this attempt than planned, or more in all than all plans allow.",
        read=_looks,
    ),
    Rule(
        name="eval.decision_fits_the_numbers",
        stage=StageName.EVAL,
        blocking=False,
        asks="Is going on, switching or stopping right, given the score and what is left of the budget?",
        flips="It stops with the interval reaching below half the margin while budget is left, or goes on with the "
        "margin reached.",
        read=_decision,
    ),
    Rule(
        name="eval.evidence_is_cited",
        stage=StageName.EVAL,
        blocking=False,
        asks="Does the decision cite entries that were measured: scores, probes, ended jobs?",
        flips="Nothing is cited, or an entry that is not such a fact.",
        read=_evidence,
    ),
    Rule(
        name="eval.candidate_is_the_best",
        stage=StageName.EVAL,
        blocking=False,
        asks="Is the candidate the best of those scored, as far as their intervals can tell?",
        flips="Another candidate's interval lies wholly above the chosen one's.",
        read=_best,
    ),
)
