"""Deploy: was the artifact rolled out in steps, healthy under real limits, and did the way back work?"""

from itertools import pairwise

from delivery_plane.claims import DeployClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ArtifactRegistered, DeploymentObserved
from delivery_plane.record import Record
from oracle.rules.rule import Reading, Rule, Visit, claimed, known, listed, measured, passed_if

FEWEST_STEPS = 3
FIRST_SHARE_LIMIT = 0.25
"""At least three growing shares, the first at most a quarter. Source: chosen; canary practice starts small
and never doubles straight to everybody."""
ERROR_SHARE_LIMIT = 0.05
"""Source: chosen; a limit above one error in twenty would not stop a roll-out that users notice."""
P95_LIMIT_MILLISECONDS = 60_000.0
"""Source: chosen; a minute for one chat answer is the default time-out of common HTTP clients and proxies."""
FEWEST_REQUESTS = 5
"""Per step. Source: chosen; fewer requests cannot show an error share at all."""


def _staged(record: Record, visit: Visit) -> Reading:
    seen = measured(record, visit, DeploymentObserved)
    shares = [step.canary_share for step in seen.value.steps]
    return passed_if(
        len(shares) >= FEWEST_STEPS
        and all(earlier < later for earlier, later in pairwise(shares))
        and shares[0] <= FIRST_SHARE_LIMIT
        and shares[-1] == 1.0,
        f"{len(shares)} steps at canary shares {listed(shares)}; at least {FEWEST_STEPS}, from at most "
        f"{FIRST_SHARE_LIMIT} growing to 1.0",
        seen,
    )


def _healthy(record: Record, visit: Visit) -> Reading:
    claim, seen = claimed(record, visit, DeployClaim), measured(record, visit, DeploymentObserved)
    limits, steps = claim.value, seen.value.steps
    sick = [
        step.canary_share
        for step in steps
        if step.requests == 0
        or step.errors > limits.max_error_share * step.requests
        or step.p95_milliseconds > limits.max_p95_milliseconds
    ]
    errors, requests = sum(step.errors for step in steps), sum(step.requests for step in steps)
    slowest = max((step.p95_milliseconds for step in steps), default=0.0)
    stopped = seen.value.stopped_at_share
    return passed_if(
        bool(steps) and not sick and stopped is None,
        f"{errors} errors in {requests} requests over {len(steps)} steps (limit {limits.max_error_share:.1%} a step), "
        f"slowest p95 {slowest:.0f} ms (limit {limits.max_p95_milliseconds:.0f} ms); over a limit at shares: "
        f"{listed(sick)}; stopped at: {'no share' if stopped is None else stopped}",
        claim,
        seen,
    )


def _limits(record: Record, visit: Visit) -> Reading:
    claim, seen = claimed(record, visit, DeployClaim), measured(record, visit, DeploymentObserved)
    fewest = min((step.requests for step in seen.value.steps), default=0)
    return passed_if(
        claim.value.max_error_share <= ERROR_SHARE_LIMIT
        and claim.value.max_p95_milliseconds <= P95_LIMIT_MILLISECONDS
        and fewest >= FEWEST_REQUESTS,
        f"limits claimed: {claim.value.max_error_share:.1%} errors (at most {ERROR_SHARE_LIMIT:.0%}), p95 "
        f"{claim.value.max_p95_milliseconds:.0f} ms (at most {P95_LIMIT_MILLISECONDS:.0f}); fewest requests in a step "
        f"{fewest} (at least {FEWEST_REQUESTS})",
        claim,
        seen,
    )


def _answers(record: Record, visit: Visit) -> Reading:
    seen = measured(record, visit, DeploymentObserved)
    asked, equal = seen.value.smoke_requests, seen.value.smoke_matches
    return passed_if(
        asked > 0 and equal == asked,
        f"{equal} of {asked} served smoke-test answers equal the artifact's own",
        seen,
    )


def _rollback(record: Record, visit: Visit) -> Reading:
    seen, artifact = measured(record, visit, DeploymentObserved), known(record, ArtifactRegistered)
    fact, base = seen.value, artifact.value.base_digest
    took = "not timed" if fact.rollback_seconds is None else f"{fact.rollback_seconds:.2f} seconds"
    return passed_if(
        fact.rollback_exercised and fact.rollback_digest == base,
        f"rollback {'exercised' if fact.rollback_exercised else 'not exercised'} ({took}); weights serving after it "
        f"{(fact.rollback_digest or 'none')[:12]}, base {base[:12]}",
        seen,
        artifact,
    )


def _serves(record: Record, visit: Visit) -> Reading:
    seen, artifact = measured(record, visit, DeploymentObserved), known(record, ArtifactRegistered)
    return passed_if(
        seen.value.model_digest == artifact.value.model_digest,
        f"served weights {seen.value.model_digest[:12]}, registered {artifact.value.model_digest[:12]}",
        seen,
        artifact,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="deploy.staged",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Did traffic move in growing steps, from a small share to all?",
        flips="There are fewer than three steps, shares do not grow, start too large or do not reach all traffic.",
        read=_staged,
    ),
    Rule(
        name="deploy.healthy",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Did every step stay within the seat's own limits?",
        flips="A step's error share or p95 latency exceeds the claimed limit, or the roll-out was stopped.",
        read=_healthy,
    ),
    Rule(
        name="deploy.limits_are_real",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Could the limits have stopped a bad roll-out?",
        flips="The error or latency limit is too loose, or a step has too few requests to show anything.",
        read=_limits,
    ),
    Rule(
        name="deploy.answers_match",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Does the server answer what the artifact answers without it?",
        flips="One smoke-test answer differs, or none was asked.",
        read=_answers,
    ),
    Rule(
        name="deploy.rollback_worked",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Was the way back exercised, and did the base serve after it?",
        flips="The rollback was not exercised, or other weights served after it.",
        read=_rollback,
    ),
    Rule(
        name="deploy.serves_the_artifact",
        stage=StageName.DEPLOY,
        blocking=False,
        asks="Are the served weights the registered ones?",
        flips="The served digest is not the registered artifact's.",
        read=_serves,
    ),
)
