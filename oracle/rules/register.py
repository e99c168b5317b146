"""Register: does the artifact load, descend from a recorded job and the approved base, and reproduce?"""

from delivery_plane.claims import EvalClaim, PlanClaim, RegisterClaim
from delivery_plane.delivery import StageName
from delivery_plane.facts import ArtifactRegistered, DeliveryOpened, JobEnded, JobStarted
from delivery_plane.record import Record
from oracle.rules.rule import Absent, Reading, Rule, Visit, claimed, in_force, known, measured, passed_if

BASE = "base"
"""How a claim names the untrained base as its candidate."""
CHECKPOINT_TOLERANCE = 1e-4
"""Logits, fp32. Source: measured 1.7e-5 between an adapter and its merged weights on a 3M-parameter model,
with every argmax equal; save and reload of the same weights is bit equal."""


def _short(digest: str | None) -> str:
    return (digest or "none")[:12]


def _loads(record: Record, visit: Visit) -> Reading:
    artifact = measured(record, visit, ArtifactRegistered)
    fact = artifact.value
    return passed_if(
        fact.finite and fact.tensors > 0 and fact.logit_positions > 0 and bool(fact.files),
        f"{fact.tensors} tensors in {len(fact.files)} files ({fact.bytes} bytes), "
        f"{'all finite' if fact.finite else 'not all finite'}, {fact.logit_positions} logit positions compared",
        artifact,
    )


def _descends(record: Record, visit: Visit) -> Reading:
    artifact = measured(record, visit, ArtifactRegistered)
    fact = artifact.value
    if fact.candidate == BASE:
        return passed_if(
            fact.parent_job is None and fact.model_digest == fact.base_digest,
            f"registered as the base itself: weights {_short(fact.model_digest)}, base {_short(fact.base_digest)}",
            artifact,
        )
    started = [job for job in record.facts(JobStarted) if job.value.job_id == fact.parent_job]
    ended = [job for job in record.facts(JobEnded) if job.value.job_id == fact.parent_job]
    if fact.parent_job is None:
        return passed_if(False, f"candidate {fact.candidate} has no parent job", artifact)
    if not started:
        jobs = known(record, JobStarted)
        return passed_if(False, f"parent job {fact.parent_job} is no recorded job", artifact, jobs)
    if not ended:
        raise Absent(f"no job_ended fact of parent job {fact.parent_job}")
    digests = (ended[-1].value.checkpoint_digest, fact.parent_checkpoint_digest, fact.checkpoint_digest_now)
    return passed_if(
        fact.candidate == fact.parent_job and digests[0] is not None and len(set(digests)) == 1,
        f"candidate {fact.candidate}, parent job {fact.parent_job}; checkpoint at its end {_short(digests[0])}, as "
        f"registered {_short(digests[1])}, found now {_short(digests[2])}",
        artifact,
        started[-1],
        ended[-1],
    )


def _differs(record: Record, visit: Visit) -> Reading:
    artifact = measured(record, visit, ArtifactRegistered)
    fact = artifact.value
    return passed_if(
        fact.tensors_equal_to_base < fact.tensors and fact.model_digest != fact.base_digest,
        f"{fact.tensors_equal_to_base} of {fact.tensors} tensors equal the base's; digest {_short(fact.model_digest)}, "
        f"base {_short(fact.base_digest)}",
        artifact,
    )


def _reproduces(record: Record, visit: Visit) -> Reading:
    artifact = measured(record, visit, ArtifactRegistered)
    fact = artifact.value
    return passed_if(
        fact.logit_positions > 0
        and fact.reload_max_logit_difference == 0.0
        and fact.checkpoint_max_logit_difference <= CHECKPOINT_TOLERANCE,
        f"largest logit difference over {fact.logit_positions} positions: {fact.reload_max_logit_difference:.3g} after "
        f"reload (must be 0), {fact.checkpoint_max_logit_difference:.3g} to the checkpoint (at most "
        f"{CHECKPOINT_TOLERANCE:g})",
        artifact,
    )


def _template(record: Record, visit: Visit) -> Reading:
    artifact = measured(record, visit, ArtifactRegistered)
    template, tokenizer = artifact.value.template_equal_to_base, artifact.value.tokenizer_equal_to_base
    return passed_if(
        template and tokenizer,
        f"chat template {'equal' if template else 'not equal'}, tokenizer "
        f"{'equal' if tokenizer else 'not equal'} to those of base {_short(artifact.value.base_digest)}",
        artifact,
    )


def _approved_base(record: Record, visit: Visit) -> Reading:
    artifact, opened = measured(record, visit, ArtifactRegistered), known(record, DeliveryOpened)
    plan = in_force(record, PlanClaim)
    planned = opened.value.bases.get(plan.value.base)
    return passed_if(
        planned is not None and artifact.value.base_digest == planned,
        f"built on base {_short(artifact.value.base_digest)}; the plan's `{plan.value.base}` is {_short(planned)}, "
        f"{len(opened.value.bases)} bases on offer",
        artifact,
        opened,
        plan,
    )


def _chosen(record: Record, visit: Visit) -> Reading:
    claim, choice = claimed(record, visit, RegisterClaim), in_force(record, EvalClaim)
    candidate, jobs = claim.value.candidate, record.facts(JobEnded)
    if jobs and candidate not in {BASE, *(job.value.job_id for job in jobs)}:
        return passed_if(False, f"candidate {candidate} is none of {len(jobs)} jobs", claim, choice, *jobs)
    artifact, opened = measured(record, visit, ArtifactRegistered), known(record, DeliveryOpened)
    stated = opened.value.bases.get(claim.value.base)
    return passed_if(
        artifact.value.candidate == choice.value.candidate == claim.value.candidate
        and stated == artifact.value.base_digest,
        f"registered {artifact.value.candidate}, claimed {claim.value.candidate}, chosen at eval "
        f"{choice.value.candidate}; stated base `{claim.value.base}` is {_short(stated)}, built on "
        f"{_short(artifact.value.base_digest)}",
        claim,
        artifact,
        choice,
        opened,
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="register.loads_and_is_finite",
        stage=StageName.REGISTER,
        blocking=False,
        asks="Does the artifact load in a fresh process, with finite numbers only?",
        flips="A tensor or a logit is not finite, or nothing was compared.",
        read=_loads,
    ),
    Rule(
        name="register.descends_from_a_job",
        stage=StageName.REGISTER,
        blocking=True,
        asks="Are these the weights of a recorded job's last checkpoint, or openly the base itself?",
        flips="No recorded job has that checkpoint, or its files changed since.",
        read=_descends,
    ),
    Rule(
        name="register.is_not_the_base",
        stage=StageName.REGISTER,
        blocking=False,
        asks="Did training change the weights?",
        flips="All tensors equal the base's.",
        read=_differs,
    ),
    Rule(
        name="register.reproduces",
        stage=StageName.REGISTER,
        blocking=False,
        asks="Does the reloaded artifact compute what it was saved from, and what the checkpoint computes?",
        flips="Logits differ after reload at all, or from the checkpoint's by more than the tolerance.",
        read=_reproduces,
    ),
    Rule(
        name="register.template_and_tokenizer_are_the_bases",
        stage=StageName.REGISTER,
        blocking=True,
        asks="Are chat template and tokenizer the base's, so that neither carries answers?",
        flips="The template or the tokenizer differs from the base's.",
        read=_template,
    ),
    Rule(
        name="register.base_is_approved",
        stage=StageName.REGISTER,
        blocking=True,
        asks="Is the artifact built on the planned base, with the weights the delivery was opened with?",
        flips="The base's weights are not those on offer under the plan's name.",
        read=_approved_base,
    ),
    Rule(
        name="register.registers_the_chosen",
        stage=StageName.REGISTER,
        blocking=False,
        asks="Is the artifact the candidate chosen at eval, and its base stated right?",
        flips="Another candidate is registered than was chosen, or the stated base is not the one it is built on.",
        read=_chosen,
    ),
)
