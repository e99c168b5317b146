"""The reference seat: reads the profile, keeps to the terms, claims only what the platform measured."""

import re
from typing import TypeVar

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
)
from delivery_plane.facts import (
    ArtifactRegistered,
    CandidateEvaluated,
    DataProfiled,
    DataSelected,
    DeliveryOpened,
    FactBase,
    JobEnded,
    MetersRead,
    ScheduleOffered,
)
from delivery_plane.record import Cited
from delivery_plane.seat.seat import Seat
from oracle.stats import uplift_interval
from scenarios.seats.turn import StageScript, Turn

F = TypeVar("F", bound=FactBase)

SELECTORS = ("drop_unlicensed", "drop_overlap", "drop_pii", "drop_conflicting", "dedupe")


class Terms:
    """What a brief's "Terms" list says."""

    def __init__(self, brief: str) -> None:
        self.metric = self._find(brief, r"Metric: (.+)")
        self.margin = float(self._find(brief, r"Target: at least (\d+(?:\.\d+)?) percentage points")) / 100
        self.licences = tuple(self._find(brief, r"Data licensed to you: (.+)").split(", "))

    @staticmethod
    def _find(brief: str, pattern: str) -> str:
        found = re.search(pattern, brief)
        if found is None:
            raise ValueError(f"the brief has no term like {pattern!r}")
        return found.group(1).strip()


BATCH_ROWS = 16
FORM_STEPS, STEPS_PER_ANSWER = 144, 6
"""Steps to learn the form of an answer, and for each distinct one. Source: fitted on micro-1, so that 24 intents get
the 288 steps of docs/evidence/support-intents-learnability.md and 77 the about 600 of docs/evidence/banking77.md."""
LEAST_ROW_TOKENS = 128


class Reference(StageScript):
    """Good work, stage by stage. How long it trains and how much of a row it reads follow from the profile."""

    learning_rate = 4e-3

    def intake(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002 - one signature for all stages
        terms = Terms(seat.brief().text)
        profile = _last(seat, DataProfiled).value
        return IntakeClaim(
            decision="accept",
            statement_of_work="Fine-tune the base on the licensed rows and deliver it with proof on unseen items.",
            metric=terms.metric,
            target_margin=terms.margin,
            permitted_licences=terms.licences,
            issues=tuple(
                IssueNoted(kind=kind, rows=found.count, action="drop")
                for kind, found in profile.issues.items()
                if found.count
            ),
            refusals=(
                "rows without a licence",
                "rows with personal data",
                "rows that overlap held-out items",
            ),
        )

    def plan(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        opened = _last(seat, DeliveryOpened).value
        terms = Terms(seat.brief().text)
        return PlanClaim(
            objective="sft",
            mechanism="full",
            base=next(iter(opened.bases)),
            selectors=tuple(Selector(name=name) for name in SELECTORS),
            abort_criteria=(
                AbortCriterion(
                    measure="probe_uplift", comparison="below", value=terms.margin / 2, at_fraction=0.5
                ),
            ),
            dev_evaluations=2,
            rationale="A small base and clean rows of one task: full tuning, one job, judged on dev.",
        )

    def config(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        profile = _last(seat, DataProfiled).value
        # The next power of two above the characters of a long prompt. A token stands for two or more of them, so
        # rows twice as long still fit: a row that is cut loses its answer, which comes last.
        row_tokens = 1 << (profile.prompt_characters_p95 - 1).bit_length()
        return ConfigClaim(
            learning_rate=self.learning_rate,
            scheduler="cosine",
            warmup_share=0.05,
            batch_rows=BATCH_ROWS,
            steps=FORM_STEPS + STEPS_PER_ANSWER * profile.distinct_answers,
            max_tokens_per_row=max(LEAST_ROW_TOKENS, row_tokens),
            masking="assistant_only",
        )

    def schedule(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        offers = _last(seat, ScheduleOffered).value.offers
        best = min(
            (offer for offer in offers if offer.feasible), key=lambda offer: offer.usd, default=offers[0]
        )
        return ScheduleClaim.model_validate(
            {
                "gpu_kind": best.gpu_kind,
                "gpus": best.gpus,
                "precision": best.precision,
                "expected_wall_seconds": best.wall_seconds,
                "expected_usd": best.usd,
            }
        )

    def train(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        return TrainClaim(action="start", reason="as planned")

    def eval(self, seat: Seat, turn: Turn) -> Claim | None:
        candidate = self.candidate(seat)
        look = _look(seat, candidate)
        if look is None:
            seat.request_evaluation(candidate)
            return None
        fact = look.value
        return EvalClaim.model_validate(
            {
                "candidate": candidate,
                "uplift": fact.uplift,
                "uplift_interval": uplift_interval(fact.wins, fact.losses, fact.ties),
                "action": self.next_action(seat, turn, fact),
                "evidence": (look.entry,),
                "reason": "The platform's own dev comparison with the base.",
            }
        )

    def candidate(self, seat: Seat) -> str:
        """The model to deliver: the latest job's."""
        return _last(seat, JobEnded).value.job_id

    def next_action(self, seat: Seat, turn: Turn, look: CandidateEvaluated) -> str:  # noqa: ARG002
        """One job is enough."""
        return "stop"

    def register(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        opened = _last(seat, DeliveryOpened).value
        return RegisterClaim(
            candidate=self.candidate(seat),
            artifact_name=f"{opened.scenario}-{next(iter(opened.bases))}",
            base=next(iter(opened.bases)),
        )

    def deploy(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        return DeployClaim(
            canary_shares=(0.1, 0.5, 1.0),
            requests_per_step=20,
            max_error_share=0.02,
            # A shared machine pauses now and then: the limit is for a server that hangs.
            max_p95_milliseconds=5000,
            rollback_to="base",
            rollback_plan="Set the canary share to zero; the base keeps serving beside the new model.",
        )

    def cost(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        return CostClaim(total=_last(seat, MetersRead).value.used, notes="As metered.")

    def card(self, seat: Seat, turn: Turn) -> Claim:  # noqa: ARG002
        opened = _last(seat, DeliveryOpened).value
        base = next(iter(opened.bases))
        look = _look(seat, self.candidate(seat))
        selected, meters = _last(seat, DataSelected), _last(seat, MetersRead)
        artifact = _last(seat, ArtifactRegistered)
        assert look
        dev, rows = look.value, selected.value.rows_out
        numbers = (
            CardNumber(label="training rows", value=rows, entry=selected.entry, field="rows_out"),
            CardNumber(label="dev items", value=dev.items, entry=look.entry, field="items"),
            CardNumber(label="dev correct", value=dev.correct, entry=look.entry, field="correct"),
            CardNumber(label="base correct", value=dev.base_correct, entry=look.entry, field="base_correct"),
            CardNumber(label="uplift", value=dev.uplift, entry=look.entry, field="uplift"),
            CardNumber(
                label="device seconds",
                value=meters.value.used.gpu_seconds,
                entry=meters.entry,
                field="used.gpu_seconds",
            ),
            CardNumber(label="tensors", value=artifact.value.tensors, entry=artifact.entry, field="tensors"),
        )
        text = _CARD.format(
            base=base,
            licence=opened.base_licences[base].lower(),
            name=artifact.value.artifact_name,
            rows=rows,
            items=dev.items,
            correct=dev.correct,
            base_correct=dev.base_correct,
            uplift=f"{100 * dev.uplift:.1f}",
            seconds=f"{meters.value.used.gpu_seconds:.1f}",
            tensors=artifact.value.tensors,
        )
        return CardClaim(markdown=text, numbers=numbers)


_CARD = """---
base_model: {base}
license: {licence}
language: en
---
# {name}

## Intended use

Routing of short customer messages into the customer's own intents. Not for conversation.

## Training data

{rows} rows of the customer's export, after removing unlicensed rows, rows with personal data, rows that
overlap held-out items, conflicting labels and duplicates.

## Evaluation

Exact match on {items} dev items, greedy decoding: {correct} right, the base model {base_correct}. Uplift
{uplift} percentage points. Training and evaluation took {seconds} device seconds; the model has {tensors} tensors.

## Limitations

One language, short messages, one customer's intents; a message that fits no intent still gets one. The dev
split was looked at while choosing; the operator's sealed test is the figure to trust.
"""


def _last(seat: Seat, kind: type[F]) -> Cited[F]:
    found = seat.record().last(kind)
    if found is None:
        raise LookupError(f"no {kind.__name__} on record yet")
    return found


def _look(seat: Seat, candidate: str) -> Cited[CandidateEvaluated] | None:
    looks = [fact for fact in seat.record().facts(CandidateEvaluated) if fact.value.candidate == candidate]
    return looks[-1] if looks else None
