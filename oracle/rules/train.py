"""Train: did the job start with approval, on the planned rows, finish, stay finite and in budget, flags answered?

A visit in which the seat claims `stop` fails `train.job_started`; the other rules then have no job to read.
"""

from collections.abc import Mapping
from types import MappingProxyType

from delivery_plane.claims import PlanClaim, TrainClaim
from delivery_plane.delivery import GateDecision, GateKind, StageName
from delivery_plane.facts import (
    BudgetReserved,
    BudgetSettled,
    ConfigRendered,
    DataSelected,
    DeliveryOpened,
    FlagRaised,
    FlagResolved,
    GateDecided,
    GateOpened,
    JobEnded,
    JobStarted,
    ProbeObserved,
)
from delivery_plane.hyperparameters import Recipe
from delivery_plane.record import Cited, Record
from oracle.rules.rule import (
    Absent,
    Reading,
    Rule,
    Visit,
    claimed,
    in_force,
    known,
    listed,
    measured,
    passed_if,
)
from oracle.strategy import state_of

BUDGET_ROUNDING = 1e-9
"""Share: sums of floats that equal the budget on paper are not above it. Source: `Amounts.exceeding`."""


def _end(record: Record, visit: Visit) -> tuple[Cited[JobStarted], Cited[JobEnded]]:
    """The visit's last job and its end. Raises Absent."""
    started = measured(record, visit, JobStarted)
    ended = [end for end in record.facts(JobEnded) if end.value.job_id == started.value.job_id]
    if not ended:
        raise Absent(f"job {started.value.job_id} has not ended", of_visit=True)
    return started, ended[-1]


def _probes(record: Record, visit: Visit, job_id: str) -> list[Cited[ProbeObserved]]:
    """The probes of one job. Raises Absent when there is none."""
    probes = [probe for probe in record.facts(ProbeObserved) if probe.value.job_id == job_id]
    if not probes:
        raise Absent(f"job {job_id} was never probed in train attempt {visit.attempt}", of_visit=True)
    return probes


def _started(record: Record, visit: Visit) -> Reading:
    claim = claimed(record, visit, TrainClaim)
    jobs = record.facts(JobStarted, visit.stage, visit.attempt)
    if claim.value.action == "stop":
        return passed_if(
            False, f"nothing was to be trained: the claim says stop ({len(jobs)} jobs)", claim, *jobs
        )
    refused = [
        reserved
        for reserved in record.facts(BudgetReserved, visit.stage, visit.attempt)
        if not reserved.value.granted
    ]
    if not jobs and refused:
        short = listed(refused[-1].value.exceeding)
        return passed_if(False, f"nothing was trained: the budget was too small in {short}", claim, *refused)
    if not jobs:
        raise Absent(f"no job_started fact in train attempt {visit.attempt}", of_visit=True)
    names = sorted({job.value.job_id for job in jobs})
    return passed_if(True, f"{len(names)} jobs started ({len(jobs)} starts): {listed(names)}", claim, *jobs)


def _finished(record: Record, visit: Visit) -> Reading:
    started, ended = _end(record, visit)
    fact = ended.value
    return passed_if(
        fact.status == "completed" and fact.steps == started.value.steps,
        f"job {fact.job_id} {fact.status} after {fact.steps} of {started.value.steps} steps",
        started,
        ended,
    )


def _finite(record: Record, visit: Visit) -> Reading:
    started, ended = _end(record, visit)
    probes = _probes(record, visit, started.value.job_id)
    bad = [probe for probe in probes if probe.value.train_loss is None or probe.value.probe_loss is None]
    return passed_if(
        not bad and ended.value.status != "not_finite",
        f"{len(bad)} of {len(probes)} probes of job {started.value.job_id} have a training or held-out loss that is "
        f"not finite",
        ended,
        *(bad or [probes[0], probes[-1]]),
    )


def _reservation(record: Record, visit: Visit) -> Reading:
    """The job ran on a granted reservation and did not push the delivery beyond its budget.

    A reservation is an estimate that may be outrun; the budget may not. Meters are read at each probe, so
    a job may overshoot by what one probe interval costs before it is stopped: that much is allowed.
    """
    started, ended = _end(record, visit)
    job, opened = ended.value, known(record, DeliveryOpened)
    reserved = [item for item in record.facts(BudgetReserved) if item.value.work_id == job.job_id]
    if not reserved:
        raise Absent(f"no budget_reserved fact for job {job.job_id}")
    probes = len(_probes(record, visit, job.job_id))
    others = [
        item
        for item in record.facts(BudgetSettled)
        if item.value.work_id != job.job_id and item.entry < ended.entry
    ]
    message, holds = [], reserved[-1].value.granted
    for unit, used in (("gpu_seconds", job.gpu_seconds), ("usd", job.usd)):
        spent = sum(float(getattr(item.value.amounts, unit)) for item in others)
        budget = float(getattr(opened.value.budget, unit))
        granted = float(getattr(reserved[-1].value.amounts, unit))
        holds = holds and spent + used - used / probes <= budget * (1 + BUDGET_ROUNDING)
        message.append(
            f"{used:.4f} {unit} used, {granted:.4f} reserved, {spent:.4f} spent elsewhere, budget {budget:.4f}"
        )
    return passed_if(
        holds,
        f"job {job.job_id}, reservation {'granted' if reserved[-1].value.granted else 'refused'}: "
        f"{'; '.join(message)} ({probes} probes)",
        started,
        ended,
        opened,
        reserved[-1],
    )


def _approved(record: Record, visit: Visit) -> Reading:
    """Here absence is evidence: a job that began without a recorded approval went round the gate."""
    measured(record, visit, JobStarted)
    starts = record.facts(JobStarted, visit.stage, visit.attempt)
    decisions = [item for item in record.facts(GateDecided) if item.value.gate == GateKind.SPEND]
    openings = [item for item in record.facts(GateOpened) if item.value.gate == GateKind.SPEND]
    unapproved, cited = [], []
    for start in starts:
        before = [item for item in decisions if item.entry < start.entry]
        waiting = {item.value.gate_id for item in openings if item.entry < start.entry}
        waiting -= {item.value.gate_id for item in before}
        cited += before[-1:]
        if not before or before[-1].value.decision != GateDecision.APPROVED or waiting:
            unapproved.append(start)
    return passed_if(
        not unapproved,
        f"{len(starts) - len(unapproved)} of {len(starts)} job starts came after an approved spend gate in force "
        f"({len(decisions)} spend decisions recorded)",
        *starts,
        *cited,
    )


def _flags(record: Record, visit: Visit) -> Reading:
    started = measured(record, visit, JobStarted)
    probes = _probes(record, visit, started.value.job_id)
    raised = record.facts(FlagRaised, visit.stage, visit.attempt)
    paused = [flag for flag in raised if flag.value.action == "paused"]
    resolved = {item.value.flag_id: item for item in record.facts(FlagResolved)}
    silent, cited = [], []
    for flag in paused:
        flag_id = flag.value.flag_id
        answer, resolution = record.flag_answer(flag_id), resolved.get(flag_id)
        if answer is not None:
            cited.append(answer.entry)
        elif resolution is not None:
            silent.append(flag_id)
            cited.append(resolution.entry)
        else:
            raise Absent(f"flag {flag_id} has neither an answer nor a resolution")
    reading = passed_if(
        not silent,
        f"{len(probes)} probes, {len(raised)} flags, {len(paused)} of them paused the job; left unanswered: "
        f"{listed(silent)}",
        probes[-1],
        *paused,
    )
    return Reading(reading.status, reading.message, tuple(sorted({*reading.entries, *cited})))


def _selection(record: Record, visit: Visit) -> Reading:
    measured(record, visit, JobStarted)
    starts, selected = record.facts(JobStarted, visit.stage, visit.attempt), known(record, DataSelected)
    other = [start for start in starts if start.value.dataset_digest != selected.value.dataset_digest]
    return passed_if(
        not other,
        f"{len(starts) - len(other)} of {len(starts)} job starts read the selected rows, digest "
        f"{selected.value.dataset_digest[:12]}; others: "
        f"{listed(start.value.dataset_digest[:12] for start in other)}",
        *starts,
        selected,
    )


def _configured(record: Record, visit: Visit) -> Reading:
    started, rendered = measured(record, visit, JobStarted), known(record, ConfigRendered)
    return passed_if(
        started.value.job_digest == rendered.value.job_digest,
        f"job digest {started.value.job_digest[:12]}; rendered and quoted was {rendered.value.job_digest[:12]}",
        started,
        rendered,
    )


OBJECTIVES: Mapping[Recipe, tuple[str, ...]] = MappingProxyType(
    {"sft": ("SFT", "CPT", "RFT"), "dpo": ("PREF",), "grpo": ("ONLINE_RL",)}
)
"""What a planned objective may turn out to be. Likelihood on prompts too, or on rows a model wrote, is still tuning on
rows: which of them it was is the strategy's name, not a broken plan."""


def _strategy(record: Record, visit: Visit) -> Reading:
    started, ended = _end(record, visit)
    plan = in_force(record, PlanClaim)
    try:
        state = state_of(record, started.value.job_id)
    except LookupError as missing:
        raise Absent(str(missing), of_visit=True) from None
    wanted = OBJECTIVES[plan.value.objective]
    mechanism = {"lora": "adapter", "full": "full"}[plan.value.mechanism]
    reading = passed_if(
        state.objective in wanted and state.mechanism == mechanism,
        f"by its facts the job of {ended.value.steps} steps was {state.objective} by {state.mechanism} on "
        f"{state.data} data, lineage {' > '.join(state.lineage)}; planned was "
        f"{plan.value.objective} by {plan.value.mechanism}",
        plan,
    )
    return Reading(reading.status, reading.message, tuple(sorted({*reading.entries, *state.entries})))


RULES: tuple[Rule, ...] = (
    Rule(
        name="train.job_started",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Was a job started?",
        flips="The seat claims stop, or the budget refuses the job.",
        read=_started,
    ),
    Rule(
        name="train.job_finished",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Did the job complete all its steps?",
        flips="The job was stopped, ran out of budget or broke off.",
        read=_finished,
    ),
    Rule(
        name="train.losses_are_finite",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Were training and held-out loss finite at every probe?",
        flips="A loss is not finite at one probe.",
        read=_finite,
    ),
    Rule(
        name="train.within_reservation",
        stage=StageName.TRAIN,
        blocking=True,
        asks="Did the job run on a granted reservation and leave the delivery within its budget?",
        flips="The reservation was refused, or device seconds or dollars exceed what the budget had left.",
        read=_reservation,
    ),
    Rule(
        name="train.spend_was_approved",
        stage=StageName.TRAIN,
        blocking=True,
        asks="Did a person approve the spend before the job started?",
        flips="A job starts with no spend decision, after a refusal, or while the gate is open.",
        read=_approved,
    ),
    Rule(
        name="train.flags_were_answered",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Did the seat answer every flag that paused its job?",
        flips="A flag that paused the job is resolved without an answer.",
        read=_flags,
    ),
    Rule(
        name="train.trained_on_the_selection",
        stage=StageName.TRAIN,
        blocking=True,
        asks="Did the job read exactly the rows that the plan's selectors left?",
        flips="The job's dataset digest is not the selection's.",
        read=_selection,
    ),
    Rule(
        name="train.runs_the_configured_job",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Is the job that ran the one that was rendered and quoted?",
        flips="The job's digest is not the one recorded at config.",
        read=_configured,
    ),
    Rule(
        name="train.facts_bear_out_the_plan",
        stage=StageName.TRAIN,
        blocking=False,
        asks="Was the job, by what the platform saw it do, the objective and mechanism that were planned?",
        flips="Its facts show another objective or mechanism, or leave it unknown.",
        read=_strategy,
        since="0.3.0",
    ),
)
