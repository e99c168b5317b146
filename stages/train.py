"""Train: run the job on the plane, probe by probe, within what was reserved for it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from delivery_plane import meter
from delivery_plane.claims import PlanClaim, TrainClaim
from delivery_plane.compute.plane import JobSpec, Resume
from delivery_plane.delivery import Amounts, StageName
from delivery_plane.facts import (
    BudgetReserved,
    CheckpointSaved,
    ConfigRendered,
    FactBase,
    JobEnded,
    JobStarted,
    ProbeObserved,
    ScheduleQuoted,
    Strategy,
)
from delivery_plane.hyperparameters import Recipe
from delivery_plane.record import Record
from stages.jobs import BASE, base_name, job_id, job_spec, parent_of
from stages.stage import Facts, StageContext

RESERVE_FACTOR = 3.0
"""How much more than the quote is set aside, budget allowing: the quote is timed on one batch, and a machine that
is shared may become half as fast while the job runs."""


class Train:
    """Stage 5."""

    name = StageName.TRAIN

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """The quote is on record already."""
        return ()

    def execute(self, context: StageContext, claim: TrainClaim) -> Facts:
        """One job: reserve, start or resume, probe and checkpoint, settle.

        Sending "stop" after a probe saves a checkpoint and leaves the job paused, neither ended nor settled.
        """
        if claim.action == "stop" or _ended(context.record, job_id(context)):
            return
        job = job_spec(context)
        if not context.reserve(job.job_id, _reservation(context)):
            return
        resume = _resume(context.record, job.job_id)
        parent = _parent(context)
        keeps_reference = job.dpo is not None or (job.grpo is not None and job.grpo.beta > 0)
        yield JobStarted(
            job_id=job.job_id,
            job_digest=job.digest,
            recipe=job.recipe,
            strategy=_strategy(job, parent),
            dataset_digest=job.dataset_digest,
            base=base_name(context),
            base_digest=job.base_digest,
            parent=parent.job_id if parent else BASE,
            parent_digest=job.parent_digest,
            reference_digest=(job.parent_digest or job.base_digest) if keeps_reference else None,
            reward=f"{job.grpo.environment}:{job.metric}" if job.grpo else None,
            steps=job.steps,
            resume_step=resume.step if resume else 0,
            fence=context.fence,
            device=job.device,
            world_size=1,
        )
        ceiling = granted(context.record, job.job_id) or _reservation(context)
        probes = [
            fact.value for fact in context.record.facts(ProbeObserved) if fact.value.job_id == job.job_id
        ]
        saved = [
            fact.value for fact in context.record.facts(CheckpointSaved) if fact.value.job_id == job.job_id
        ]
        training = context.plane.train(job, resume)
        paused = over_budget = False
        reply: Literal["stop"] | None = None
        while True:
            try:
                observed = training.send(reply)
            except StopIteration as end:
                status = end.value
                break
            reply = None
            if isinstance(observed, CheckpointSaved):
                saved.append(observed)
                yield observed
                continue
            probes.append(observed)
            asked = yield observed
            cost = context.plane.usd(observed.device_seconds)
            over_budget = observed.device_seconds > ceiling.gpu_seconds or cost > ceiling.usd
            if asked == "stop" or over_budget:
                paused, reply = asked == "stop", "stop"
        if paused:
            return
        yield from _end(context, job.job_id, "over_budget" if over_budget else status, probes, saved)

    def end_paused(self, context: StageContext) -> Facts:
        """Close a job that a flag paused and nobody continued."""
        identity = job_id(context)
        if not _ended(context.record, identity):
            probes = [f.value for f in context.record.facts(ProbeObserved) if f.value.job_id == identity]
            saved = [f.value for f in context.record.facts(CheckpointSaved) if f.value.job_id == identity]
            yield from _end(context, identity, "stopped", probes, saved)


def _end(
    context: StageContext,
    identity: str,
    status: str,
    probes: list[ProbeObserved],
    saved: list[CheckpointSaved],
) -> Facts:
    first, last = (probes[0], probes[-1]) if probes else (None, None)
    seconds = last.device_seconds if last else 0.0
    policy = last.policy if last else None
    ended = JobEnded.model_validate(
        {
            "job_id": identity,
            "status": status,
            "steps": last.step if last else 0,
            "tokens": last.tokens if last else 0,
            "supervised_tokens": last.supervised_tokens if last else 0,
            "gpu_seconds": seconds,
            "usd": context.plane.usd(seconds),
            "train_loss_first": first.train_loss if first else None,
            "train_loss_last": last.train_loss if last else None,
            "probe_first": first.probe_correct / first.probe_items if first else None,
            "probe_last": last.probe_correct / last.probe_items if last else None,
            "peak_memory_bytes": max((probe.peak_memory_bytes for probe in probes), default=0),
            "checkpoint_digest": saved[-1].digest if saved else None,
            "rollouts": policy.rollouts if policy else 0,
            "policy_versions": policy.policy_versions if policy else 0,
            "generated_tokens": policy.generated_tokens if policy else 0,
            "consumed_rows": last.consumed_rows if last else 0,
            "distinct_rows": last.distinct_rows if last else 0,
            "consumed_digest": last.consumed_digest if last else None,
        }
    )
    tokens = ended.tokens + ended.generated_tokens
    context.settle(identity, Amounts(usd=ended.usd, gpu_seconds=seconds, wall_seconds=seconds, tokens=tokens))
    yield ended


OBJECTIVE: Mapping[Recipe, Literal["SFT", "PREF", "ONLINE_RL"]] = MappingProxyType(
    {"sft": "SFT", "dpo": "PREF", "grpo": "ONLINE_RL"}
)
"""What a recipe is called in the state of a training run (arXiv 2608.19072 counts changes between these)."""


def _strategy(job: JobSpec, parent: JobStarted | None) -> Strategy:
    """The run's state by construction: the platform itself runs the recipe, on rows it selected."""
    objective = OBJECTIVE[job.recipe]
    return Strategy(
        k=objective,
        m=f"adapter(r={job.lora.rank})" if job.lora else "full",
        d="on-policy" if job.grpo else "customer",
        g=(*(parent.strategy.g if parent else ("base",)), objective),
    )


def _parent(context: StageContext) -> JobStarted | None:
    """The start of the job that this one goes on from; None: it starts from the base."""
    plan = context.record.claim(PlanClaim)
    ended = parent_of(context, plan.value) if plan else None
    started = [fact.value for fact in context.record.facts(JobStarted)]
    return next((job for job in reversed(started) if ended and job.job_id == ended.job_id), None)


def _ended(record: Record, identity: str) -> bool:
    return any(fact.value.job_id == identity for fact in record.facts(JobEnded))


def granted(record: Record, work_id: str) -> Amounts | None:
    """What was reserved for a piece of work, or None."""
    for fact in record.facts(BudgetReserved):
        if fact.value.work_id == work_id and fact.value.granted:
            return fact.value.amounts
    return None


def _reservation(context: StageContext) -> Amounts:
    quoted = context.record.last(ScheduleQuoted)
    rendered = context.record.last(ConfigRendered)
    offer = quoted.value.offer if quoted else None
    left = meter.left(context.record)
    seconds = offer.gpu_seconds if offer else left.gpu_seconds
    tokens = rendered.value.planned_tokens if rendered else 0
    wanted = {
        "gpu_seconds": seconds * RESERVE_FACTOR,
        "wall_seconds": (offer.wall_seconds if offer else left.wall_seconds) * RESERVE_FACTOR,
        "usd": context.plane.usd(seconds * RESERVE_FACTOR),
        "tokens": int(tokens * 1.1),
    }
    # The quote itself must fit the budget; the head-room above it takes what is left.
    least = {name: value / RESERVE_FACTOR for name, value in wanted.items() if name != "tokens"}
    return Amounts.model_validate(
        {name: max(least.get(name, value), min(value, getattr(left, name))) for name, value in wanted.items()}
    )


def _resume(record: Record, identity: str) -> Resume | None:
    saved = [fact.value for fact in record.facts(CheckpointSaved) if fact.value.job_id == identity]
    if not saved:
        return None
    probe = next(
        fact.value
        for fact in record.facts(ProbeObserved)
        if fact.value.job_id == identity and fact.value.step == saved[-1].step
    )
    return Resume(step=probe.step, device_seconds=probe.device_seconds, probe_seconds=probe.probe_seconds)
