"""Whole delivery records for the oracle's tests: a healthy one, and ways to change it."""

from collections.abc import Callable, Sequence
from typing import Any

from delivery_plane.claims import (
    AbortCriterion,
    CardClaim,
    CardNumber,
    Claim,
    ConfigClaim,
    CostClaim,
    DeployClaim,
    EvalClaim,
    IntakeClaim,
    IssueNoted,
    PlanClaim,
    RegisterClaim,
    ScheduleClaim,
    Selector,
    TrainClaim,
    stage_of,
)
from delivery_plane.delivery import STAGES, Amounts, Frozen, GateDecision, GateKind, StageName
from delivery_plane.entry import GENESIS, Entry, entry_hash
from delivery_plane.facts import (
    AcceptanceTested,
    ArtifactRegistered,
    BudgetReserved,
    BudgetSettled,
    CanaryStep,
    CandidateEvaluated,
    CardChecked,
    CheckpointSaved,
    ConfigRendered,
    DataProfiled,
    DataSelected,
    DeliveryClosed,
    DeliveryOpened,
    DeploymentObserved,
    EvaluationRequested,
    FactBase,
    GateDecided,
    GateOpened,
    JobEnded,
    JobStarted,
    MetersRead,
    Offer,
    PlanChecked,
    PlantedTruth,
    PreflightCheck,
    PreflightChecked,
    ProbeObserved,
    RowSet,
    ScheduleOffered,
    ScheduleQuoted,
    StageOpened,
    Strategy,
    Visibility,
)
from delivery_plane.hyperparameters import LoraSettings
from delivery_plane.record import Record
from oracle.judge import decide_outcome, judge_acceptance, judge_stage
from oracle.stats import uplift_interval

BASE, MODEL, DATA = "ba5e" * 16, "de11" * 16, "da7a" * 16
JOB, CHECKPOINT, SEALED = "10b5" * 16, "c4ec" * 16, "5ea1" * 16
MARGIN = 0.30
BUDGET = Amounts(
    usd=1.0, gpu_seconds=1000, wall_seconds=4000, tokens=1_000_000, dev_evaluations=3, bytes=100_000_000
)
USED = Amounts(
    usd=0.02, gpu_seconds=100, wall_seconds=120, tokens=60_000, dev_evaluations=1, bytes=12_000_000
)


class Builder:
    """Appends entries as a ledger would, without one."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries = list(entries)

    @property
    def record(self) -> Record:
        return Record(self.entries, for_oracle=True)

    def _append(self, kind: str, payload: Frozen, **fields: Any) -> Entry:
        number = len(self.entries) + 1
        body = {
            "delivery_id": "delivery-1",
            "number": number,
            "kind": kind,
            "visibility": "seat",
            "actor": "platform",
            "recorded_at": "2026-01-01T00:00:00+00:00",
            "idempotency_key": f"{kind}:{number}",
            "payload": payload.model_dump(mode="json"),
            "prev_hash": self.entries[-1].hash if self.entries else GENESIS,
            **fields,
        }
        self.entries.append(Entry.model_validate({**body, "hash": entry_hash(body)}))
        return self.entries[-1]

    def fact(self, fact: FactBase, stage: StageName | None = None, attempt: int = 0) -> Entry:
        kind = str(type(fact).model_fields["kind"].default)
        seen = Visibility(type(fact).visibility).value
        return self._append(kind, fact, type="fact", stage=stage, attempt=attempt, visibility=seen)

    def claim(self, claim: Claim, attempt: int = 1) -> Entry:
        stage = stage_of(claim) or StageName.TRAIN
        return self._append(claim.stage, claim, type="claim", stage=stage, attempt=attempt, actor="seat:test")

    def judge(self, stage: StageName, attempt: int = 1) -> Entry:
        verdict = judge_stage(self.record, stage, attempt)
        return self._append("stage", verdict, type="verdict", stage=stage, attempt=attempt)

    def accept(self) -> Entry:
        verdict = judge_acceptance(self.record)
        assert verdict is not None
        return self._append("acceptance", verdict, type="verdict", stage=None, attempt=0)

    def close(self) -> Entry:
        outcome, applied = decide_outcome(self.record)
        return self.fact(DeliveryClosed(outcome=outcome, applied=applied, not_reached=()))


def rows(count: int, prefix: str) -> RowSet:
    return RowSet(count=count, row_ids=tuple(f"{prefix}-{n}" for n in range(count)))


def clean() -> dict[str, RowSet]:
    kinds = ("duplicates", "conflicting_labels", "unlicensed_rows", "pii", "sealed_overlap")
    return {kind: rows(0, kind) for kind in kinds}


def opened() -> DeliveryOpened:
    return DeliveryOpened(
        scenario="support-intents",
        scenario_version=1,
        scenario_digest="5c" * 32,
        certificate=None,
        brief_digest="b1" * 32,
        seat="reference",
        seat_public_key="00" * 32,
        plane="local",
        device="cpu",
        seed=0,
        bases={"micro-1": BASE, "micro-2": "ba52" * 16},
        base_licences={"micro-1": "Apache-2.0", "micro-2": "Apache-2.0"},
        budget=BUDGET,
        detector_mode="act",
        platform_version="0.3.0",
    )


def truth() -> PlantedTruth:
    return PlantedTruth(
        metric="exact_match",
        metric_synonyms=("accuracy",),
        contract_margin=MARGIN,
        alpha=0.01,
        feasible=True,
        permitted_licences=("CC-BY-4.0", "MIT"),
        planted_rows={"duplicates": 40, "unlicensed_rows": 25, "pii": 12, "sealed_overlap": 8},
        sealed_items=400,
        sealed_digest=SEALED,
        dev_digest="de" * 32,
        probe_digest="0b" * 32,
    )


def probe(step: int, wins: int, losses: int = 0, **changes: Any) -> ProbeObserved:
    """A probe of the healthy job's 160 steps, on 64 items."""
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "step": step,
        "budget_fraction": step / 160,
        "train_loss": 1.0,
        "grad_norm": 0.5,
        "learning_rate": 1e-3,
        "probe_items": 64,
        "probe_loss": 1.2,
        "base_probe_loss": 3.0,
        "probe_correct": wins,
        "base_correct": losses,
        "wins": wins,
        "losses": losses,
        "parameter_delta_norm": 1.0,
        "tokens": 300 * step,
        "supervised_tokens": 40 * step,
        "device_seconds": 0.5 * step,
        "probe_seconds": 0.05 * step,
        "peak_memory_bytes": 1_000_000,
    }
    return ProbeObserved.model_validate({**fields, **changes})


def evaluated(
    candidate: str = "job-1", wins: int = 220, losses: int = 4, look: int = 1
) -> CandidateEvaluated:
    """One look at 400 dev items."""
    return CandidateEvaluated(
        request_id=f"look-{look}",
        candidate=candidate,
        split_digest="de" * 32,
        model_digest=MODEL,
        items=400,
        correct=20 + wins,
        base_correct=20 + losses,
        wins=wins,
        losses=losses,
        ties=400 - wins - losses,
        uplift=(wins - losses) / 400,
        look=look,
        empty_answers=0,
        decoding_digest="dc" * 32,
        template_digest="7e" * 32,
    )


def sealed_test(wins: int = 210, losses: int = 5) -> AcceptanceTested:
    """The sealed test of 400 items."""
    return AcceptanceTested(
        model_digest=MODEL,
        base_digest=BASE,
        sealed_digest=SEALED,
        items=400,
        wins=wins,
        losses=losses,
        ties=400 - wins - losses,
        correct=20 + wins,
        base_correct=20 + losses,
        decoding_digest="dc" * 32,
        template_digest="7e" * 32,
    )


def gate(gate_id: str, kind: GateKind, decision: GateDecision) -> GateDecided:
    return GateDecided(
        gate_id=gate_id,
        gate=kind,
        decision=decision,
        by="approver-1",
        public_key="aa" * 32,
        reason="looks right",
        digest="bb" * 32,
        signature="cc" * 64,
        seconds_open=12.0,
    )


def gate_opened(gate_id: str, kind: GateKind) -> GateOpened:
    return GateOpened(
        gate_id=gate_id,
        gate=kind,
        attempt=1,
        subject=None,
        shown="{}",
        digest="bb" * 32,
        opened_at="2026-01-01T00:00:00+00:00",
        deadline_at="2026-01-02T00:00:00+00:00",
    )


def started(**changes: Any) -> JobStarted:
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "job_digest": JOB,
        "recipe": "sft",
        "strategy": Strategy(k="SFT", m="adapter(r=8)", d="customer", g=("base", "SFT")),
        "dataset_digest": DATA,
        "base": "micro-1",
        "base_digest": BASE,
        "steps": 160,
        "resume_step": 0,
        "fence": 1,
        "device": "cpu",
        "world_size": 1,
    }
    return JobStarted.model_validate({**fields, **changes})


def ended(**changes: Any) -> JobEnded:
    fields: dict[str, Any] = {
        "job_id": "job-1",
        "status": "completed",
        "steps": 160,
        "tokens": 48_000,
        "supervised_tokens": 6_400,
        "gpu_seconds": 80.0,
        "usd": 0.016,
        "train_loss_first": 2.5,
        "train_loss_last": 1.0,
        "probe_first": 0.1,
        "probe_last": 0.7,
        "peak_memory_bytes": 1_000_000,
        "checkpoint_digest": CHECKPOINT,
    }
    return JobEnded.model_validate({**fields, **changes})


def artifact(**changes: Any) -> ArtifactRegistered:
    fields: dict[str, Any] = {
        "candidate": "job-1",
        "artifact_name": "support-intents-sft",
        "model_digest": MODEL,
        "base_digest": BASE,
        "tensors": 30,
        "tensors_equal_to_base": 6,
        "files": {"model.safetensors": "f1" * 32},
        "bytes": 12_000_000,
        "parent_job": "job-1",
        "parent_checkpoint_digest": CHECKPOINT,
        "checkpoint_digest_now": CHECKPOINT,
        "template_equal_to_base": True,
        "tokenizer_equal_to_base": True,
        "reload_max_logit_difference": 0.0,
        "checkpoint_max_logit_difference": 1.7e-5,
        "logit_positions": 500,
        "finite": True,
    }
    return ArtifactRegistered.model_validate({**fields, **changes})


def _intake(b: Builder) -> None:
    found = clean() | {
        "duplicates": rows(40, "d"),
        "unlicensed_rows": rows(25, "u"),
        "pii": rows(12, "p"),
        "sealed_overlap": rows(8, "o"),
    }
    b.fact(
        DataProfiled(
            rows=1000,
            dataset_digest="d0" * 32,
            distinct_answers=20,
            prompt_characters_p95=120,
            licences={"CC-BY-4.0": 975, "proprietary": 25},
            issues=found,  # type: ignore[arg-type]
            overlap_ngram=8,
        ),
        StageName.INTAKE,
        1,
    )
    b.claim(
        IntakeClaim(
            decision="accept",
            statement_of_work="Classify support messages.",
            metric="Exact Match",
            target_margin=MARGIN,
            permitted_licences=("CC-BY-4.0",),
            issues=(
                IssueNoted(kind="duplicates", rows=41, action="drop"),
                IssueNoted(kind="unlicensed_rows", rows=25, action="drop"),
                IssueNoted(kind="pii", rows=12, action="drop"),
                IssueNoted(kind="sealed_overlap", rows=8, action="drop"),
            ),
        )
    )


def _plan(b: Builder, attempt: int) -> None:
    b.claim(
        PlanClaim(
            objective="sft",
            mechanism="lora",
            base="micro-1",
            selectors=(Selector(name="dedupe"), Selector(name="drop_unlicensed"), Selector(name="drop_pii")),
            abort_criteria=(
                AbortCriterion(measure="probe_accuracy", comparison="below", value=0.2, at_fraction=0.5),
            ),
            dev_evaluations=1,
            rationale="Few labels, short answers.",
        ),
        attempt,
    )
    b.fact(
        DataSelected(
            rows_in=1000,
            rows_out=915,
            removed={"0:dedupe": 40, "1:drop_unlicensed": 25, "2:drop_pii": 12, "3:drop_overlap": 8},
            dataset_digest=DATA,
            remaining=clean(),  # type: ignore[arg-type]
        ),
        StageName.PLAN,
        attempt,
    )
    b.fact(
        PlanChecked(
            base="micro-1",
            base_digest=BASE,
            base_licence="Apache-2.0",
            abort_criteria=1,
            uncheckable_criteria=(),
            known_measures=("probe_accuracy", "probe_loss"),
            dev_evaluations_planned=1,
            dev_evaluations_left=3,
            selection_split="dev",
            rows_for_objective=915,
        ),
        StageName.PLAN,
        attempt,
    )


def _config(b: Builder, attempt: int) -> None:
    b.claim(
        ConfigClaim(
            learning_rate=1e-3,
            scheduler="cosine",
            batch_rows=16,
            steps=160,
            max_tokens_per_row=256,
            masking="assistant_only",
            lora=LoraSettings(rank=8, alpha=16),
        ),
        attempt,
    )
    b.fact(
        ConfigRendered(
            job_digest=JOB,
            mechanism="lora",
            rows=915,
            rendered_rows=64,
            prompt_tokens=3000,
            supervised_tokens=540,
            supervised_prompt_tokens=0,
            end_of_turn_supervised_share=1.0,
            rows_without_answer=0,
            truncated_rows=0,
            longest_row_tokens=180,
            max_tokens_per_row=256,
            context_tokens=512,
            template_digest_train="7e" * 32,
            template_digest_serve="7e" * 32,
            trainable_parameters=50_000,
            total_parameters=3_000_000,
            adapted_modules=28,
            steps=160,
            batch_rows=16,
            epochs=160 * 16 / 915,
            planned_tokens=140_000,
            seconds_per_step=0.4,
        ),
        StageName.CONFIG,
        attempt,
    )
    b.fact(preflight(), StageName.CONFIG, attempt)


def preflight(passed: bool = True) -> PreflightChecked:
    checks = (
        PreflightCheck(name="mask", passed=True, message="64 of 64 answers", field="masking"),
        PreflightCheck(name="overfit", passed=passed, message="loss moved by 0.4", field="learning_rate"),
    )
    return PreflightChecked(job_digest=JOB, checks=checks, seconds=2.0)


def offer(**changes: Any) -> Offer:
    fields: dict[str, Any] = {
        "gpu_kind": "cpu",
        "gpus": 1,
        "precision": "fp32",
        "memory_bytes_needed": 200_000_000,
        "memory_bytes_available": 8_000_000_000,
        "tokens_per_second": 1500.0,
        "wall_seconds": 75.0,
        "gpu_seconds": 75.0,
        "usd": 0.015,
        "feasible": True,
        "why_not": "",
    }
    return Offer.model_validate({**fields, **changes})


def _schedule(b: Builder, attempt: int) -> None:
    b.fact(
        ScheduleOffered(offers=(offer(),), usd_left=1.0, wall_seconds_left=4000.0, price_book="local-cpu"),
        StageName.SCHEDULE,
        attempt,
    )
    b.claim(
        ScheduleClaim(
            gpu_kind="cpu", gpus=1, precision="fp32", expected_wall_seconds=80.0, expected_usd=0.016
        ),
        attempt,
    )
    b.fact(ScheduleQuoted(offer=offer(), cheapest_usd=0.015), StageName.SCHEDULE, attempt)


def _train(b: Builder, attempt: int) -> None:
    job = f"job-{attempt}"
    place = (StageName.TRAIN, attempt)
    b.claim(TrainClaim(action="start"), attempt)
    amounts = Amounts(usd=0.03, gpu_seconds=150, wall_seconds=150, tokens=150_000)
    b.fact(BudgetReserved(work_id=job, amounts=amounts, granted=True, exceeding=()), *place)
    b.fact(started(job_id=job), *place)
    for step in range(10, 161, 10):
        b.fact(probe(step, wins=min(40, step // 4), job_id=job), *place)
        b.fact(CheckpointSaved(job_id=job, step=step, digest=CHECKPOINT, bytes=400_000), *place)
    used = Amounts(usd=0.016, gpu_seconds=80, wall_seconds=80, tokens=48_000)
    b.fact(BudgetSettled(work_id=job, amounts=used), *place)
    b.fact(ended(job_id=job), *place)


def _eval(b: Builder, attempt: int) -> None:
    job = f"job-{attempt}"
    place = (StageName.EVAL, attempt)
    b.fact(EvaluationRequested(request_id=f"look-{attempt}", candidate=job), *place)
    score = b.fact(evaluated(job, look=attempt), *place)
    b.claim(
        EvalClaim(
            candidate=job,
            uplift=216 / 400,
            uplift_interval=uplift_interval(220, 4, 176),
            action="stop",
            evidence=(score.number,),
        ),
        attempt,
    )


def _register(b: Builder, attempt: int) -> None:
    job = f"job-{attempt}"
    b.claim(RegisterClaim(candidate=job, artifact_name="support-intents-sft", base="micro-1"), attempt)
    b.fact(artifact(candidate=job, parent_job=job), StageName.REGISTER, attempt)


def _deploy(b: Builder, attempt: int) -> None:
    b.claim(
        DeployClaim(
            canary_shares=(0.1, 0.5, 1.0),
            requests_per_step=20,
            max_error_share=0.02,
            max_p95_milliseconds=2000,
            rollback_to="base",
            rollback_plan="Route all traffic back.",
        ),
        attempt,
    )
    steps = tuple(
        CanaryStep(
            canary_share=share,
            requests=20,
            canary_requests=int(20 * share),
            errors=0,
            p50_milliseconds=80,
            p95_milliseconds=200,
        )
        for share in (0.1, 0.5, 1.0)
    )
    b.fact(
        DeploymentObserved(
            model_digest=MODEL,
            steps=steps,
            smoke_requests=10,
            smoke_matches=10,
            stopped_at_share=None,
            rollback_exercised=True,
            rollback_digest=BASE,
            rollback_seconds=0.2,
        ),
        StageName.DEPLOY,
        attempt,
    )


def _cost(b: Builder, attempt: int) -> None:
    b.fact(
        MetersRead(used=USED, reserved=Amounts(), budget=BUDGET, price_book="local-cpu"),
        StageName.COST,
        attempt,
    )
    b.claim(CostClaim(total=USED), attempt)


def _card(b: Builder, attempt: int) -> None:
    score = next(entry.number for entry in b.entries if entry.kind == "candidate_evaluated")
    numbers = tuple(
        CardNumber(label=name, value=value, entry=score, field=name)
        for name, value in (("uplift", 0.54), ("items", 400), ("correct", 240))
    )
    b.claim(CardClaim(markdown="# support-intents-sft\n", numbers=numbers), attempt)
    b.fact(
        CardChecked(
            card_digest="ca" * 32,
            numbers=3,
            unsupported_numbers=(),
            uncited_numbers=(),
            metadata={"base_model": "micro-1", "license": "apache-2.0", "language": "en"},
            missing_metadata=(),
            missing_sections=(),
        ),
        StageName.CARD,
        attempt,
    )


_PLAYED: dict[StageName, Callable[[Builder, int], None]] = {
    StageName.INTAKE: lambda b, attempt: _intake(b),  # noqa: ARG005 - intake is visited once
    StageName.PLAN: _plan,
    StageName.CONFIG: _config,
    StageName.SCHEDULE: _schedule,
    StageName.TRAIN: _train,
    StageName.EVAL: _eval,
    StageName.REGISTER: _register,
    StageName.DEPLOY: _deploy,
    StageName.COST: _cost,
    StageName.CARD: _card,
}


def play(b: Builder, stage: StageName, attempt: int = 1, *, judged: bool = True) -> None:
    """One healthy visit of one stage, with the spend gate after schedule."""
    b.fact(StageOpened(stage=stage, attempt=attempt), stage, attempt)
    _PLAYED[stage](b, attempt)
    if judged:
        b.judge(stage, attempt)
    if stage is StageName.SCHEDULE:
        b.fact(gate_opened(f"spend-{attempt}", GateKind.SPEND))
        b.fact(gate(f"spend-{attempt}", GateKind.SPEND, GateDecision.APPROVED))


def opening() -> Builder:
    """A delivery just opened."""
    b = Builder()
    b.fact(opened())
    b.fact(truth())
    return b


def played(until: StageName, *, judged: bool = True) -> list[Entry]:
    """A healthy delivery up to and including one stage."""
    b = opening()
    for stage in STAGES[: STAGES.index(until) + 1]:
        play(b, stage, judged=judged)
    return b.entries


def healthy_record() -> list[Entry]:
    """A healthy delivery from opening to an accepted outcome."""
    b = Builder(played(StageName.CARD))
    b.fact(sealed_test(), StageName.CARD, 1)
    b.accept()
    b.fact(gate_opened("release-1", GateKind.RELEASE))
    b.fact(gate("release-1", GateKind.RELEASE, GateDecision.APPROVED))
    b.close()
    return b.entries


def changed(entries: Sequence[Entry], kind: str, **changes: Any) -> list[Entry]:
    """The entries with fields of every fact or claim of one kind replaced. Hashes are left as they were."""
    assert any(entry.kind == kind for entry in entries), kind
    return [
        entry.model_copy(update={"payload": {**entry.payload, **changes}}) if entry.kind == kind else entry
        for entry in entries
    ]


def without(entries: Sequence[Entry], *kinds: str) -> list[Entry]:
    """The entries without those of some kinds."""
    return [entry for entry in entries if entry.kind not in kinds]


def inserted(
    entries: Sequence[Entry], before: str, fact: FactBase, stage: StageName | None = None
) -> list[Entry]:
    """The entries with one fact of the first attempt put before the first of a kind; all numbers stay as they are."""
    b = Builder()
    entry = b.fact(fact, stage, 1 if stage else 0)
    place = next(n for n, other in enumerate(entries) if other.kind == before)
    number = entries[place - 1].number if place else 0
    return [*entries[:place], entry.model_copy(update={"number": number}), *entries[place:]]
