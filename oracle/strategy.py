"""What a training job was, told from the facts of its run alone: objective, mechanism, data, lineage. Reads no claim.

The states are those of "Strategic lock-in" (arXiv 2608.19072). Every fact read here was recorded by the platform that
executed the job, so a label is true by construction (evidence of grade E1), or it is `unknown`.
"""

from dataclasses import dataclass
from typing import Literal

from delivery_plane.facts import ConfigRendered, JobEnded, JobStarted, ProbeObserved
from delivery_plane.record import Cited, Record

Objective = Literal["NONE", "SFT", "CPT", "RFT", "PREF", "ONLINE_RL", "unknown"]
Mechanism = Literal["full", "adapter", "partial", "none"]
Data = Literal["customer", "self-generated", "on-policy", "unknown"]

BASE = "base"
"""How a lineage names the untrained base, and a job what it starts from when that is no job."""

POLICY_VERSIONS = 2
"""Answers sampled from fewer versions of the weights were not sampled online."""

MASKED_SHARE = 0.5
"""Of prompt tokens. Likelihood taken on more than the rest of them is continued pre-training, not answering."""


@dataclass(frozen=True)
class State:
    """What one job did, and the entries that say so."""

    objective: Objective
    mechanism: Mechanism
    data: Data
    lineage: tuple[str, ...]
    """Objectives from the base to this job's output."""
    entries: tuple[int, ...]


def state_of(record: Record, job_id: str) -> State:
    """The state of one job; `unknown` where its facts contradict each other.

    Raises LookupError for a job that has not started, was never probed, or has not ended.
    """
    starts = [fact for fact in record.facts(JobStarted) if fact.value.job_id == job_id]
    if not starts:
        raise LookupError(f"no job {job_id} was started")
    start = starts[-1]
    rendered = [f for f in record.facts(ConfigRendered) if f.value.job_digest == start.value.job_digest]
    probes = [fact for fact in record.facts(ProbeObserved) if fact.value.job_id == job_id]
    ended = [fact for fact in record.facts(JobEnded) if fact.value.job_id == job_id]
    objective = _objective(start, rendered[-1:], probes, ended[-1:])
    data: Data = "unknown" if objective == "unknown" else "customer"
    if objective == "ONLINE_RL":
        data = "on-policy"
    elif start.value.generator_digests:
        data = "self-generated"
    cited = [start.entry, *(fact.entry for facts in (rendered, probes, ended) for fact in facts[-1:])]
    return State(
        objective=objective,
        mechanism=_mechanism(rendered[-1].value),
        data=data,
        lineage=(*_before(record, start), objective),
        entries=tuple(sorted(cited)),
    )


def _objective(
    start: Cited[JobStarted],
    rendered: list[Cited[ConfigRendered]],
    probes: list[Cited[ProbeObserved]],
    ended: list[Cited[JobEnded]],
) -> Objective:
    if not ended or not rendered:
        raise LookupError(f"job {start.value.job_id} was not rendered, or has not ended")
    if ended[0].value.steps == 0:
        return "NONE"
    if not probes:
        raise LookupError(f"job {start.value.job_id} was never probed")
    last = probes[-1].value
    if last.policy is not None and last.preference is not None:
        return "unknown"
    if last.policy is not None:
        online = last.policy.rollouts > 0 and last.policy.policy_versions >= POLICY_VERSIONS
        return "ONLINE_RL" if online and start.value.reward else "unknown"
    if last.preference is not None:
        # Pairs that do not differ leave the policy where its reference is: nothing was preferred.
        preferred = any(probe.value.preference and probe.value.preference.margin for probe in probes)
        return "PREF" if preferred and start.value.reference_digest else "unknown"
    return _likelihood(start.value, rendered[0].value, last)


def _likelihood(start: JobStarted, rendered: ConfigRendered, last: ProbeObserved) -> Objective:
    """Which of the objectives that raise the likelihood of rows fixed beforehand."""
    if start.reward or start.reference_digest or last.supervised_tokens == 0:
        return "unknown"
    if rendered.prompt_tokens and rendered.supervised_prompt_tokens > MASKED_SHARE * rendered.prompt_tokens:
        return "CPT"
    return "RFT" if start.generator_digests else "SFT"


def _mechanism(fact: ConfigRendered) -> Mechanism:
    if fact.trainable_parameters == 0:
        return "none"
    if fact.adapted_modules:
        return "adapter"
    return "full" if fact.trainable_parameters == fact.total_parameters else "partial"


def _before(record: Record, start: Cited[JobStarted]) -> tuple[str, ...]:
    """The lineage of what the job started from, `unknown` for a job that had not ended by then."""
    if start.value.parent == BASE:
        return (BASE,)
    # Only what came before can be a parent: a record in which jobs descend from each other has an end all the same.
    earlier = Record([entry for entry in record.entries if entry.number < start.entry], for_oracle=True)
    try:
        return state_of(earlier, start.value.parent).lineage
    except LookupError:
        return ("unknown",)
