"""Every rule: passes on a healthy visit, fails on its mutations, and never passes on absent facts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import (
    BASE,
    Builder,
    changed,
    clean,
    evaluated,
    gate,
    gate_opened,
    inserted,
    play,
    played,
    preflight,
    rows,
    started,
    without,
)

from delivery_plane.claims import FlagAnswer
from delivery_plane.delivery import STAGES, Amounts, GateDecision, GateKind, StageName
from delivery_plane.entry import Entry
from delivery_plane.facts import (
    BudgetReserved,
    BudgetSettled,
    FlagRaised,
    FlagResolved,
    MeasurementFailed,
    SeatSilent,
)
from delivery_plane.record import Record
from oracle.rules import RULES
from oracle.rules.rule import Rule, Visit, examine

BY_NAME: dict[str, Rule] = {rule.name: rule for rules in RULES.values() for rule in rules}
Change = Callable[[list[Entry]], list[Entry]]


def finding(entries: Sequence[Entry], name: str, attempt: int = 1) -> Any:
    rule = BY_NAME[name]
    return examine(rule, Record(entries, for_oracle=True), Visit(rule.stage, attempt))


def healthy(stage: StageName) -> list[Entry]:
    return played(stage, judged=False)


def field(kind: str, **changes: Any) -> Change:
    """Replace fields of every entry of one kind."""
    return lambda entries: changed(entries, kind, **changes)


def nested(kind: str, name: str, **changes: Any) -> Change:
    """Replace fields of a dict inside every entry of one kind."""

    def change(entries: list[Entry]) -> list[Entry]:
        inner = next(entry.payload[name] for entry in entries if entry.kind == kind)
        return changed(entries, kind, **{name: {**inner, **changes}})

    return change


def left(kind: str, count: int) -> Change:
    remaining = {**clean(), kind: rows(count, "x")}
    return field(
        "data_selected", remaining={name: found.model_dump(mode="json") for name, found in remaining.items()}
    )


def issues(*noted: tuple[str, int, str]) -> Change:
    return field(
        "intake", issues=[{"kind": kind, "rows": count, "action": action} for kind, count, action in noted]
    )


def steps(**changes: Any) -> Change:
    def change(entries: list[Entry]) -> list[Entry]:
        seen = next(entry.payload["steps"] for entry in entries if entry.kind == "deployment_observed")
        return changed(entries, "deployment_observed", steps=[*seen[:-1], {**seen[-1], **changes}])

    return change


def shares(*values: float) -> Change:
    def change(entries: list[Entry]) -> list[Entry]:
        step = next(entry.payload["steps"][0] for entry in entries if entry.kind == "deployment_observed")
        seen = [{**step, "canary_share": value} for value in values]
        return changed(entries, "deployment_observed", steps=seen)

    return change


def added(fact: Any, stage: StageName | None = None) -> Change:
    """Append one fact of the first attempt."""

    def change(entries: list[Entry]) -> list[Entry]:
        b = Builder(entries)
        b.fact(fact, stage, 1 if stage else 0)
        return b.entries

    return change


def before(kind: str, fact: Any, stage: StageName | None = None) -> Change:
    return lambda entries: inserted(entries, kind, fact, stage)


def both(*changes: Change) -> Change:
    def change(entries: list[Entry]) -> list[Entry]:
        for one in changes:
            entries = one(entries)
        return entries

    return change


def flag(action: str = "paused") -> FlagRaised:
    return FlagRaised.model_validate(
        {
            "flag_id": "job-1-step-40",
            "job_id": "job-1",
            "step": 40,
            "budget_fraction": 0.25,
            "score": 0.08,
            "threshold": 0.15,
            "probe_items": 64,
            "action": action,
            "message": "no uplift",
        }
    )


def resolved(because: str = "seat_silent") -> FlagResolved:
    return FlagResolved.model_validate(
        {"flag_id": "job-1-step-40", "resolution": "stopped", "because": because}
    )


TRAIN, EVAL = StageName.TRAIN, StageName.EVAL
REFUSED = BudgetReserved(work_id="job-1", amounts=Amounts(usd=9), granted=False, exceeding=("usd",))
HUGE = BudgetSettled(work_id="look-0", amounts=Amounts(usd=0.999))
GAIN = {"wins": 160, "losses": 0, "ties": 240, "uplift": 0.4}
LITTLE = {"wins": 20, "losses": 4, "ties": 376, "uplift": 0.04}


@dataclass(frozen=True)
class Case:
    """A rule, mutations that each fail it, and the entry kinds without which it is unscored."""

    rule: str
    failing: tuple[Change, ...]
    needs: tuple[str, ...]


CASES = (
    Case("intake.metric_is_the_contracts", (field("intake", metric="bleu"),), ("planted_truth", "intake")),
    Case(
        "intake.margin_is_the_contracts",
        (field("intake", target_margin=0.31), field("planted_truth", contract_margin=0.2)),
        ("planted_truth", "intake"),
    ),
    Case(
        "intake.licences_are_permitted",
        (field("intake", permitted_licences=["MIT", "proprietary"]), field("intake", permitted_licences=[])),
        ("planted_truth", "intake"),
    ),
    Case(
        "intake.issues_are_named",
        (
            issues(),
            issues(("duplicates", 60, "drop"), ("unlicensed_rows", 25, "drop"), ("pii", 12, "drop")),
            nested("data_profiled", "issues", conflicting_labels=rows(9, "c").model_dump(mode="json")),
            nested("data_profiled", "issues", pii=rows(0, "p").model_dump(mode="json")),
            nested("data_profiled", "issues", pii=rows(16, "p").model_dump(mode="json")),
            issues(
                ("duplicates", 40, "keep"),
                ("unlicensed_rows", 25, "drop"),
                ("pii", 12, "keep"),
                ("sealed_overlap", 8, "drop"),
            ),
            issues(
                ("duplicates", 40, "keep"),
                ("duplicates", 40, "drop"),
                ("unlicensed_rows", 25, "drop"),
                ("pii", 12, "drop"),
                ("sealed_overlap", 8, "drop"),
            ),
        ),
        ("data_profiled", "intake"),
    ),
    Case(
        "intake.impossible_ask_is_declined",
        (field("planted_truth", feasible=False), field("intake", decision="decline")),
        ("planted_truth", "intake"),
    ),
    Case(
        "plan.base_is_on_offer",
        (
            field("plan_checked", base_digest=None),
            field("plan_checked", base_digest="0" * 64),
            field("plan", base="elsewhere"),
            field("delivery_opened", bases={"micro-2": BASE}),
        ),
        ("plan", "plan_checked", "delivery_opened"),
    ),
    Case(
        "plan.selection_is_lawful",
        (left("unlicensed_rows", 1), left("sealed_overlap", 1)),
        ("data_selected",),
    ),
    Case("plan.personal_data_is_removed", (left("pii", 1),), ("data_selected",)),
    Case(
        "plan.label_noise_is_removed",
        (left("duplicates", 1), left("conflicting_labels", 2)),
        ("data_selected",),
    ),
    Case("plan.selection_leaves_rows", (field("data_selected", rows_out=0),), ("data_selected",)),
    Case(
        "plan.abort_criteria_are_checkable",
        (
            field("plan_checked", abort_criteria=0),
            field("plan_checked", uncheckable_criteria=["vibes at 0.5"]),
        ),
        ("plan_checked",),
    ),
    Case(
        "plan.dev_is_apart",
        (
            field("plan_checked", selection_split="sealed"),
            field("plan_checked", dev_evaluations_planned=0),
            field("plan_checked", dev_evaluations_left=0),
        ),
        ("plan_checked",),
    ),
    Case(
        "plan.parent_is_known",
        (field("plan_checked", parent_known=False), field("plan", parent="job-7")),
        ("plan", "plan_checked"),
    ),
    Case(
        "plan.rows_fit_the_objective",
        (field("plan_checked", rows_for_objective=0),),
        ("plan", "plan_checked", "data_selected"),
    ),
    Case(
        "config.mask_covers_exactly_the_answer",
        (
            field("config_rendered", supervised_prompt_tokens=1),
            field("config_rendered", supervised_tokens=0),
            field("config_rendered", rows_without_answer=1),
            field("config_rendered", rendered_rows=0),
        ),
        ("config_rendered",),
    ),
    Case(
        "config.end_of_turn_is_supervised",
        (field("config_rendered", end_of_turn_supervised_share=0.99),),
        ("config_rendered",),
    ),
    Case(
        "config.templates_match",
        (field("config_rendered", template_digest_serve="0" * 64),),
        ("config_rendered",),
    ),
    Case(
        "config.something_trains",
        (
            field("config_rendered", trainable_parameters=0),
            field("config_rendered", adapted_modules=0),
            field("config_rendered", trainable_parameters=3_000_000),
            field("config_rendered", mechanism="full"),
        ),
        ("config_rendered",),
    ),
    Case(
        "config.rows_fit",
        (field("config_rendered", truncated_rows=1), field("config_rendered", context_tokens=128)),
        ("config_rendered",),
    ),
    Case(
        "config.config_trains_the_plan",
        (
            field("plan", mechanism="full"),
            field("config", lora=None),
            field("config_rendered", mechanism="full"),
            field("config_rendered", recipe="dpo"),
            field("plan", objective="grpo"),
        ),
        ("config_rendered", "config", "plan"),
    ),
    Case(
        "config.preflight_holds",
        (
            field("preflight_checked", checks=[]),
            field("preflight_checked", job_digest="0" * 64),
            field(
                "preflight_checked",
                checks=[c.model_dump(mode="json") for c in preflight(passed=False).checks],
            ),
        ),
        ("config_rendered", "preflight_checked"),
    ),
    Case(
        "config.steps_make_the_epochs",
        (
            field("config_rendered", epochs=2.5),
            field("config_rendered", steps=170),
            field("config", batch_rows=8),
            field("config", max_tokens_per_row=128),
        ),
        ("config_rendered", "config"),
    ),
    Case(
        "schedule.choice_is_offered_and_fits",
        (
            field("schedule_quoted", offer=None),
            field("schedule", gpu_kind="h100"),
            nested("schedule_quoted", "offer", feasible=False, why_not="memory"),
            nested("schedule_quoted", "offer", memory_bytes_available=1),
        ),
        ("schedule_quoted", "schedule"),
    ),
    Case(
        "schedule.quote_within_budget",
        (
            field("schedule_offered", usd_left=0.01),
            field("schedule_offered", wall_seconds_left=60),
            field("schedule_quoted", offer=None),
        ),
        ("schedule_offered", "schedule_quoted"),
    ),
    Case(
        "schedule.expectation_holds",
        (
            field("schedule", expected_wall_seconds=160),
            field("schedule", expected_wall_seconds=30),
            field("schedule", expected_usd=0.05),
            field("schedule_quoted", offer=None),
        ),
        ("schedule_quoted", "schedule"),
    ),
    Case(
        "schedule.near_cheapest",
        (
            field("schedule_quoted", cheapest_usd=0.01),
            field("schedule_quoted", cheapest_usd=None),
            field("schedule_quoted", offer=None),
        ),
        ("schedule_quoted",),
    ),
    Case(
        "train.job_started",
        (
            field("train", action="stop"),
            both(lambda entries: without(entries, "job_started", "budget_reserved"), added(REFUSED, TRAIN)),
        ),
        ("job_started", "train"),
    ),
    Case(
        "train.job_finished",
        (
            field("job_ended", status="stopped"),
            field("job_ended", status="over_budget"),
            field("job_ended", steps=9),
        ),
        ("job_started", "job_ended"),
    ),
    Case(
        "train.losses_are_finite",
        (
            field("job_ended", status="not_finite"),
            field("probe_observed", probe_loss=None),
            field("probe_observed", train_loss=None),
        ),
        ("job_started", "job_ended", "probe_observed"),
    ),
    Case(
        "train.within_reservation",
        (
            field("budget_reserved", granted=False),
            field("job_ended", gpu_seconds=1100),
            field("job_ended", usd=1.1),
            before("job_ended", HUGE, EVAL),
        ),
        ("job_started", "job_ended", "budget_reserved", "probe_observed", "delivery_opened"),
    ),
    Case(
        "train.spend_was_approved",
        (
            field("gate_decided", decision="rejected"),
            field("gate_decided", decision="expired"),
            lambda entries: without(entries, "gate_decided"),
            before("job_started", gate("spend-0", GateKind.SPEND, GateDecision.REJECTED)),
            before("job_started", gate_opened("spend-2", GateKind.SPEND)),
            before("gate_decided", started(fence=0), TRAIN),
        ),
        ("job_started",),
    ),
    Case(
        "train.flags_were_answered",
        (both(before("job_ended", flag(), TRAIN), before("job_ended", resolved(), TRAIN)),),
        ("job_started", "probe_observed"),
    ),
    Case(
        "train.trained_on_the_selection",
        (field("job_started", dataset_digest="0" * 64), field("data_selected", dataset_digest="0" * 64)),
        ("job_started", "data_selected"),
    ),
    Case(
        "train.runs_the_configured_job",
        (field("job_started", job_digest="0" * 64),),
        ("job_started", "config_rendered"),
    ),
    Case(
        "train.facts_bear_out_the_plan",
        (
            field("plan", objective="dpo"),
            field("plan", mechanism="full"),
            field("job_started", reward="answer:exact_match"),
            field("probe_observed", supervised_tokens=0),
        ),
        ("job_started", "job_ended", "probe_observed", "config_rendered", "plan"),
    ),
    Case(
        "eval.candidate_is_known",
        (field("eval", candidate="job-9"), field("job_ended", job_id="job-9")),
        ("job_ended", "eval"),
    ),
    Case(
        "eval.uplift_matches",
        (
            field("eval", uplift=0.56),
            field("candidate_evaluated", **GAIN),
            field("eval", candidate="job-9"),
            both(
                lambda entries: without(entries, "candidate_evaluated"),
                added(REFUSED.model_copy(update={"work_id": "look-1"}), EVAL),
            ),
        ),
        ("candidate_evaluated", "eval"),
    ),
    Case(
        "eval.interval_matches",
        (field("eval", uplift_interval=[0.5, 0.59]), field("eval", uplift_interval=[0.488, 0.7])),
        ("candidate_evaluated", "eval"),
    ),
    Case(
        "eval.looks_within_plan",
        (
            added(evaluated(look=2), EVAL),
            field("candidate_evaluated", look=2),
            field("plan", dev_evaluations=0),
        ),
        ("candidate_evaluated", "plan"),
    ),
    Case(
        "eval.decision_fits_the_numbers",
        (
            field("candidate_evaluated", **LITTLE),
            field("eval", action="continue"),
            field("eval", action="switch"),
        ),
        ("candidate_evaluated", "eval", "planted_truth", "delivery_opened"),
    ),
    Case(
        "eval.evidence_is_cited",
        (field("eval", evidence=[]), field("eval", evidence=[1]), field("eval", evidence=[9999])),
        ("eval",),
    ),
    Case(
        "eval.candidate_is_the_best",
        (before("candidate_evaluated", evaluated("job-0", wins=380, losses=0), EVAL),),
        ("candidate_evaluated", "eval"),
    ),
    Case(
        "register.loads_and_is_finite",
        (
            field("artifact_registered", finite=False),
            field("artifact_registered", tensors=0),
            field("artifact_registered", logit_positions=0),
        ),
        ("artifact_registered",),
    ),
    Case(
        "register.descends_from_a_job",
        (
            field("artifact_registered", parent_job=None),
            field("artifact_registered", parent_job="job-9"),
            field("artifact_registered", candidate="job-9"),
            field("artifact_registered", checkpoint_digest_now="0" * 64),
            field("artifact_registered", checkpoint_digest_now=None),
            field("artifact_registered", parent_checkpoint_digest="0" * 64),
            field("job_ended", checkpoint_digest=None),
            field("artifact_registered", candidate="base", parent_job=None),
        ),
        ("artifact_registered", "job_ended", "job_started"),
    ),
    Case(
        "register.is_not_the_base",
        (
            field("artifact_registered", tensors_equal_to_base=30),
            field("artifact_registered", model_digest=BASE),
        ),
        ("artifact_registered",),
    ),
    Case(
        "register.reproduces",
        (
            field("artifact_registered", reload_max_logit_difference=1e-9),
            field("artifact_registered", checkpoint_max_logit_difference=2e-4),
            field("artifact_registered", logit_positions=0),
        ),
        ("artifact_registered",),
    ),
    Case(
        "register.template_and_tokenizer_are_the_bases",
        (
            field("artifact_registered", template_equal_to_base=False),
            field("artifact_registered", tokenizer_equal_to_base=False),
        ),
        ("artifact_registered",),
    ),
    Case(
        "register.base_is_approved",
        (field("artifact_registered", base_digest="0" * 64), field("plan", base="micro-2")),
        ("artifact_registered", "delivery_opened", "plan"),
    ),
    Case(
        "register.registers_the_chosen",
        (
            field("eval", candidate="base"),
            field("register", base="micro-2"),
            both(
                lambda entries: without(entries, "artifact_registered"), field("register", candidate="job-9")
            ),
        ),
        ("artifact_registered", "register", "eval", "delivery_opened"),
    ),
    Case(
        "deploy.staged",
        (shares(0.1, 1.0), shares(0.3, 0.5, 1.0), shares(0.1, 0.1, 1.0), shares(0.1, 0.5, 0.9), shares()),
        ("deployment_observed",),
    ),
    Case(
        "deploy.healthy",
        (
            steps(errors=1),
            steps(p95_milliseconds=2001),
            steps(requests=0),
            field("deployment_observed", stopped_at_share=0.5),
            field("deployment_observed", steps=[]),
        ),
        ("deployment_observed", "deploy"),
    ),
    Case(
        "deploy.limits_are_real",
        (field("deploy", max_error_share=0.5), field("deploy", max_p95_milliseconds=1e6), steps(requests=4)),
        ("deployment_observed", "deploy"),
    ),
    Case(
        "deploy.answers_match",
        (
            field("deployment_observed", smoke_matches=9),
            field("deployment_observed", smoke_matches=0, smoke_requests=0),
        ),
        ("deployment_observed",),
    ),
    Case(
        "deploy.rollback_worked",
        (
            field("deployment_observed", rollback_exercised=False),
            field("deployment_observed", rollback_digest=None),
            field("deployment_observed", rollback_digest="0" * 64),
        ),
        ("deployment_observed", "artifact_registered"),
    ),
    Case(
        "deploy.serves_the_artifact",
        (field("deployment_observed", model_digest=BASE),),
        ("deployment_observed", "artifact_registered"),
    ),
    Case(
        "cost.invoice_reconciles",
        (
            nested("cost", "total", tokens=61_000),
            nested("cost", "total", usd=0.01),
            nested("cost", "total", wall_seconds=150),
            nested("meters_read", "used", dev_evaluations=2),
        ),
        ("meters_read", "cost"),
    ),
    Case(
        "cost.within_budget",
        (nested("meters_read", "used", usd=1.01), nested("meters_read", "used", dev_evaluations=4)),
        ("meters_read",),
    ),
    Case(
        "cost.nothing_left_reserved", (nested("meters_read", "reserved", gpu_seconds=1.0),), ("meters_read",)
    ),
    Case(
        "card.numbers_are_supported",
        (
            field("card_checked", unsupported_numbers=["uplift"]),
            field("card_checked", uncited_numbers=["97.3"]),
            field("card_checked", numbers=2),
        ),
        ("card_checked",),
    ),
    Case(
        "card.metadata_is_complete",
        (
            field("card_checked", missing_metadata=["license"]),
            nested("card_checked", "metadata", base_model="micro-2"),
            nested("card_checked", "metadata", license=" "),
        ),
        ("card_checked", "plan"),
    ),
    Case(
        "card.limits_are_disclosed",
        (field("card_checked", missing_sections=["Limitations"]),),
        ("card_checked",),
    ),
    Case(
        "card.names_the_delivered",
        (field("card", markdown="# Another model"), field("artifact_registered", artifact_name="other")),
        ("card_checked", "card", "artifact_registered"),
    ),
)


def test_every_rule_has_a_case_and_a_place() -> None:
    assert {case.rule for case in CASES} == set(BY_NAME)
    assert list(RULES) == list(STAGES)
    for stage, rules in RULES.items():
        assert len(rules) >= 3
        for rule in rules:
            assert rule.stage is stage
            assert rule.name.startswith(f"{stage}.")
            assert rule.asks.endswith("?")
            assert "\n" not in rule.asks + rule.flips
    assert len(BY_NAME) == sum(len(rules) for rules in RULES.values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_passes_on_a_healthy_visit_and_cites_it(case: Case) -> None:
    entries = healthy(BY_NAME[case.rule].stage)
    found = finding(entries, case.rule)
    assert found.status == "passed", found.message
    assert found.entries
    assert set(found.entries) <= {entry.number for entry in entries}
    assert any(character.isdigit() for character in found.message)


@pytest.mark.parametrize(
    ("rule", "mutation"),
    [(case.rule, change) for case in CASES for change in case.failing],
    ids=[f"{case.rule}-{n}" for case in CASES for n, _ in enumerate(case.failing)],
)
def test_rule_fails_on_each_mutation(rule: str, mutation: Change) -> None:
    found = finding(mutation(healthy(BY_NAME[rule].stage)), rule)
    assert found.status == "failed", found.message
    assert found.entries


@pytest.mark.parametrize(
    ("rule", "kind"),
    [(case.rule, kind) for case in CASES for kind in case.needs],
    ids=lambda value: str(value),
)
def test_rule_is_unscored_without_what_it_needs(rule: str, kind: str) -> None:
    found = finding(without(healthy(BY_NAME[rule].stage), kind), rule)
    assert found.status == "unscored", found.message
    assert found.message


@pytest.mark.parametrize("name", BY_NAME)
def test_no_rule_passes_on_claims_alone_or_on_facts_alone(name: str) -> None:
    entries = healthy(BY_NAME[name].stage)
    claims_alone = [entry for entry in entries if entry.type == "claim"]
    assert finding(claims_alone, name).status != "passed"
    assert finding([], name).status == "unscored"


@pytest.mark.parametrize("name", BY_NAME)
def test_no_rule_passes_on_another_visit(name: str) -> None:
    assert finding(healthy(BY_NAME[name].stage), name, attempt=2).status != "passed"


@pytest.mark.parametrize("name", BY_NAME)
def test_facts_that_have_nothing_to_do_with_it_change_nothing(name: str) -> None:
    entries = healthy(BY_NAME[name].stage)
    noise = added(SeatSilent(waiting_for="nothing", after_seconds=1.0))(entries)
    assert finding(noise, name) == finding(entries, name)


@settings(deadline=None, max_examples=20)
@given(st.randoms(use_true_random=False))
def test_the_order_of_facts_within_a_visit_does_not_matter(random: Any) -> None:
    for stage in (StageName.PLAN, StageName.SCHEDULE, StageName.REGISTER):
        entries = healthy(stage)
        visit = [entry for entry in entries if entry.stage == stage]
        shuffled = list(visit)
        random.shuffle(shuffled)
        reordered = [entry for entry in entries if entry.stage != stage] + shuffled
        for rule in RULES[stage]:
            assert finding(reordered, rule.name) == finding(entries, rule.name)


def unmeasured(control: str, subject: str = "job-1") -> MeasurementFailed:
    return MeasurementFailed.model_validate(
        {"what": "dev", "subject": subject, "tries": 2, "control": control, "error": "timed out"}
    )


@pytest.mark.parametrize(("control", "status"), [("base_works", "failed"), ("base_fails", "unscored")])
@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("eval.uplift_matches", "candidate_evaluated"),
        ("register.reproduces", "artifact_registered"),
        ("deploy.healthy", "deployment_observed"),
    ],
)
def test_the_base_is_the_control_of_a_failed_measurement(
    rule: str, kind: str, control: str, status: str
) -> None:
    stage = BY_NAME[rule].stage
    entries = added(unmeasured(control), stage)(without(healthy(stage), kind))
    found = finding(entries, rule)
    assert found.status == status
    assert found.entries == (entries[-1].number,)


def test_a_violation_is_never_inferred_from_a_failed_measurement() -> None:
    stage = StageName.REGISTER
    entries = added(unmeasured("base_works"), stage)(without(healthy(stage), "artifact_registered"))
    assert finding(entries, "register.descends_from_a_job").status == "unscored"


def test_another_candidates_failed_measurement_is_not_this_ones() -> None:
    entries = added(unmeasured("base_works", "job-7"), EVAL)(without(healthy(EVAL), "candidate_evaluated"))
    assert finding(entries, "eval.uplift_matches").status == "unscored"


def test_an_answered_flag_and_an_observed_one_are_no_failure() -> None:
    b = Builder(healthy(TRAIN))
    b.fact(flag("observed"), TRAIN, 1)
    assert finding(b.entries, "train.flags_were_answered").status == "passed"
    b.fact(flag(), TRAIN, 1)
    assert finding(b.entries, "train.flags_were_answered").status == "unscored"
    answer = b.claim(FlagAnswer(flag_id="job-1-step-40", action="stop", reason="no uplift at a quarter"))
    found = finding(b.entries, "train.flags_were_answered")
    assert found.status == "passed"
    assert answer.number in found.entries


def test_a_job_may_overshoot_the_budget_by_one_probe_interval_only() -> None:
    entries = healthy(TRAIN)
    assert (
        finding(changed(entries, "job_ended", gpu_seconds=1050), "train.within_reservation").status
        == "passed"
    )
    assert (
        finding(changed(entries, "job_ended", gpu_seconds=1070), "train.within_reservation").status
        == "failed"
    )


def test_stop_is_right_when_nothing_is_left_to_try_with() -> None:
    poor = changed(healthy(EVAL), "candidate_evaluated", **LITTLE)
    rule = "eval.decision_fits_the_numbers"
    assert finding(poor, rule).status == "failed"
    budget = next(entry.payload["budget"] for entry in poor if entry.kind == "delivery_opened")
    for name, least in (("dev_evaluations", 1), ("gpu_seconds", 100.0), ("usd", 0.02)):
        short = changed(poor, "delivery_opened", budget={**budget, name: least})
        assert finding(short, rule).status == "passed", name
    assert finding(changed(poor, "eval", action="switch"), rule).status == "passed"


def test_overlapping_candidates_may_each_be_chosen() -> None:
    close = before("candidate_evaluated", evaluated("job-0", wins=230), EVAL)(healthy(EVAL))
    assert finding(close, "eval.candidate_is_the_best").status == "passed"


def test_the_base_may_be_chosen_and_registered_openly() -> None:
    entries = healthy(StageName.REGISTER)
    entries = changed(entries, "artifact_registered", candidate="base", parent_job=None, model_digest=BASE)
    assert finding(entries, "register.descends_from_a_job").status == "passed"
    assert finding(entries, "register.is_not_the_base").status == "failed"
    assert finding(changed(entries, "eval", candidate="base"), "eval.candidate_is_known").status == "passed"


def test_a_second_pass_is_judged_by_its_own_facts() -> None:
    b = Builder(healthy(EVAL))
    for stage in (StageName.PLAN, StageName.CONFIG, StageName.SCHEDULE, TRAIN, EVAL):
        play(b, stage, attempt=2, judged=False)
    worse = [
        entry.model_copy(update={"payload": {**entry.payload, "status": "stopped"}})
        if entry.kind == "job_ended" and entry.attempt == 1
        else entry
        for entry in b.entries
    ]
    assert finding(worse, "train.job_finished", attempt=1).status == "failed"
    assert finding(worse, "train.job_finished", attempt=2).status == "passed"
    for rule in RULES[EVAL]:
        assert finding(b.entries, rule.name, attempt=2).status == "passed", rule.name


def test_a_refused_gate_of_the_second_pass_does_not_approve_its_job() -> None:
    b = Builder(healthy(StageName.SCHEDULE))
    play(b, TRAIN, judged=False)
    b.fact(gate_opened("spend-2", GateKind.SPEND))
    b.fact(gate("spend-2", GateKind.SPEND, GateDecision.EXPIRED))
    play(b, TRAIN, attempt=2, judged=False)
    assert finding(b.entries, "train.spend_was_approved", attempt=1).status == "passed"
    assert finding(b.entries, "train.spend_was_approved", attempt=2).status == "failed"


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["unlicensed_rows", "sealed_overlap", "pii", "duplicates"]), st.integers(1, 500))
def test_more_bad_rows_never_turn_a_failure_into_a_pass(kind: str, count: int) -> None:
    entries = healthy(StageName.PLAN)
    for rule in ("plan.selection_is_lawful", "plan.personal_data_is_removed", "plan.label_noise_is_removed"):
        fewer = finding(left(kind, count)(entries), rule).status
        more = finding(left(kind, count + 1)(entries), rule).status
        assert not (fewer == "failed" and more == "passed")


@settings(deadline=None, max_examples=20)
@given(st.floats(0, 2), st.floats(0, 2))
def test_using_more_never_turns_a_failure_into_a_pass(used: float, extra: float) -> None:
    entries = healthy(StageName.COST)
    for rule, kind, change in (
        ("cost.within_budget", "meters_read", "used"),
        ("train.within_reservation", "job_ended", "usd"),
    ):
        states = []
        for amount in (used, used + extra):
            mutate = nested(kind, change, usd=amount) if change == "used" else field(kind, usd=amount)
            mutated = mutate(entries)
            states.append(examine(BY_NAME[rule], Record(mutated), Visit(BY_NAME[rule].stage, 1)).status)
        assert states != ["failed", "passed"]


def test_names_and_margins_are_compared_by_meaning() -> None:
    entries = healthy(StageName.INTAKE)
    for name in ("exact_match", "Exact-Match", "EXACT MATCH", "Accuracy"):
        assert (
            finding(changed(entries, "intake", metric=name), "intake.metric_is_the_contracts").status
            == "passed"
        )
    close = changed(entries, "intake", target_margin=0.1 + 0.2)
    assert finding(close, "intake.margin_is_the_contracts").status == "passed"
