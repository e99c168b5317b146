"""The job a plan and a configuration describe, as the platform will run it. Built here and nowhere else."""

from pathlib import Path

from delivery_plane.claims import ConfigClaim, EvalClaim, PlanClaim
from delivery_plane.compute.plane import JobSpec, ModelRef, checkpoint_path
from delivery_plane.errors import BadInput, LedgerFault
from delivery_plane.facts import (
    CheckpointSaved,
    ConfigRendered,
    DataSelected,
    DeliveryOpened,
    JobEnded,
    JobStarted,
    PlantedTruth,
    PreflightChecked,
)
from delivery_plane.record import Record
from stages.stage import StageContext

BASE = "base"
"""The candidate that is the base model itself."""


def job_id(context: StageContext) -> str:
    """The job of this pass through the stages."""
    return f"job-{context.attempt}"


def job_spec(context: StageContext) -> JobSpec:
    """The job as claimed in the latest plan and configuration. Raises LedgerFault when one is missing."""
    plan = context.record.claim(PlanClaim)
    config = context.record.claim(ConfigClaim)
    selected = context.record.last(DataSelected)
    opened = context.record.last(DeliveryOpened)
    truth = context.record.last(PlantedTruth)
    if not (plan and config and selected and opened and truth):
        raise LedgerFault("a job needs a plan, a configuration and a selected data set on record")
    base = base_of(context, plan.value)
    identity = job_id(context)
    parent = parent_of(context, plan.value)
    return JobSpec(
        **config.value.model_dump(exclude={"stage", "seed"}),
        seed=config.value.seed + context.spec.seed,
        job_id=identity,
        base_path=context.bases[base],
        base_digest=opened.value.bases[base],
        parents=_chain(context, parent) if parent else (),
        parent_digest=parent.checkpoint_digest if parent else None,
        dataset_path=dataset_path(context, selected.value.dataset_digest),
        dataset_digest=selected.value.dataset_digest,
        probe_path=context.splits.probe,
        probe_digest=truth.value.probe_digest,
        job_folder=context.folder / "jobs" / identity,
        mechanism="lora" if config.value.lora else "full",
        metric=context.scenario.contract.metric,
        device=context.spec.device,
        fault=context.spec.fault,
    )


def parent_of(context: StageContext, plan: PlanClaim) -> JobEnded | None:
    """The finished job that a plan starts from; None: the base, also when the plan names no job on that base."""
    on_base = {
        fact.value.job_id
        for fact in context.record.facts(JobStarted)
        if fact.value.base == base_of(context, plan)
    }
    return finished_jobs(context).get(plan.parent) if plan.parent in on_base else None


def _chain(context: StageContext, job: JobEnded) -> tuple[Path, ...]:
    """A finished job's last checkpoint after those of the jobs it started from, oldest first."""
    model = model_of(context, job.job_id)
    assert model.checkpoint_path
    return (*model.parents, model.checkpoint_path)


def dataset_path(context: StageContext, digest: str) -> Path:
    """Where a selected data set lies."""
    return context.folder / "datasets" / f"{digest}.jsonl"


def nothing_to_train(record: Record) -> bool:
    """Whether the latest selection or configuration leaves nothing that a trainer could run on."""
    selected, rendered = record.last(DataSelected), record.last(ConfigRendered)
    plan = record.claim(PlanClaim)
    if selected and plan and rows_to_train(selected.value, plan.value) == 0:
        return True
    if rendered is None or (selected and rendered.entry < selected.entry):
        return False  # the configuration of this selection is still to come
    return rendered.value.trainable_parameters == 0 or rendered.value.supervised_tokens == 0


def rows_to_train(selected: DataSelected, plan: PlanClaim) -> int:
    """How many of the selected rows the plan's objective can train on: preferences need a rejected answer."""
    return selected.preference_rows if plan.objective == "dpo" else selected.rows_out


def preflight_failed(record: Record) -> bool:
    """Whether the latest configuration did not pass its preflight; a job is never started on such a one."""
    checked = record.last(PreflightChecked)
    return checked is not None and bool(checked.value.failed)


def base_name(context: StageContext) -> str:
    """The base model the latest plan chose, or the first on offer when it chose none of them."""
    plan = context.record.claim(PlanClaim)
    return base_of(context, plan.value) if plan else next(iter(context.bases))


def base_of(context: StageContext, plan: PlanClaim) -> str:
    """The base model that a plan names, or the first on offer when it names none of them."""
    return plan.base if plan.base in context.bases else next(iter(context.bases))


def finished_jobs(context: StageContext) -> dict[str, JobEnded]:
    """Jobs on record that ended with a checkpoint, by id."""
    ended = (fact.value for fact in context.record.facts(JobEnded))
    return {job.job_id: job for job in ended if job.checkpoint_digest}


def model_of(context: StageContext, candidate: str) -> ModelRef:
    """The weights a candidate's name stands for. Raises BadInput for a name that is neither job nor base."""
    if candidate == BASE:
        return ModelRef(base_path=context.bases[base_name(context)])
    if candidate not in finished_jobs(context):
        known = ", ".join([BASE, *finished_jobs(context)])
        raise BadInput(f"no candidate {candidate}; there are: {known}")
    started = [fact.value for fact in context.record.facts(JobStarted) if fact.value.job_id == candidate][-1]
    last = [fact.value for fact in context.record.facts(CheckpointSaved) if fact.value.job_id == candidate][
        -1
    ]
    parent = finished_jobs(context).get(started.parent)
    return ModelRef(
        base_path=context.bases[started.base],
        parents=_chain(context, parent) if parent else (),
        checkpoint_path=checkpoint_path(context.folder / "jobs" / candidate, last.step),
    )


def chosen_candidate(context: StageContext) -> str:
    """The candidate the seat settled on at eval."""
    claim = context.record.claim(EvalClaim)
    if claim is None:
        raise LedgerFault("no candidate was chosen at eval")
    return claim.value.candidate
