"""The ten claims a seat submits, one per stage, and its answer to a flag. Claims are never evidence.

Form is checked here; whether a claim is right is the oracle's business, so fields a seat may get
wrong in meaning (a metric's name, an abort criterion's measure) stay free text.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from delivery_plane.delivery import Amounts, Frozen, StageName
from delivery_plane.errors import BadInput, one_line
from delivery_plane.hyperparameters import Hyperparameters, Recipe

Text = Annotated[str, Field(max_length=4000)]
Name = Annotated[str, Field(max_length=200)]
Share = Annotated[float, Field(ge=0, le=1)]

IssueKind = Literal["duplicates", "conflicting_labels", "unlicensed_rows", "pii", "sealed_overlap"]


class IssueNoted(Frozen):
    """One problem the seat says it found in the customer's data."""

    kind: IssueKind
    rows: int = Field(ge=0)
    action: Literal["keep", "drop"]


class IntakeClaim(Frozen):
    """Statement of work: what will be delivered, from which data, and what is refused."""

    stage: Literal["intake"] = "intake"
    decision: Literal["accept", "decline"]
    statement_of_work: Text
    metric: Text
    target_margin: float = Field(description="uplift over the base promised to the customer, as a share")
    permitted_licences: tuple[Name, ...]
    issues: tuple[IssueNoted, ...] = ()
    constraints: tuple[Text, ...] = ()
    refusals: tuple[Text, ...] = ()


class Selector(Frozen):
    """One platform-run step over the customer's rows; `rows` is the size for `sample` only."""

    name: Literal["dedupe", "drop_conflicting", "drop_unlicensed", "drop_pii", "drop_overlap", "sample"]
    rows: int | None = Field(default=None, gt=0)


class AbortCriterion(Frozen):
    """Stop when `measure` compares so with `value` at `at_fraction` of the run."""

    measure: Text
    comparison: Literal["above", "below"]
    value: float
    at_fraction: float


class PlanClaim(Frozen):
    """The strategy: objective, mechanism, data, base, and when to give up."""

    stage: Literal["plan"] = "plan"
    objective: Recipe
    mechanism: Literal["full", "lora"]
    base: Name
    parent: Name = Field(default="base", description="where training starts: `base`, or an earlier job's id")
    selectors: tuple[Selector, ...]
    training_stages: tuple[Text, ...] = ("sft",)
    abort_criteria: tuple[AbortCriterion, ...] = ()
    dev_evaluations: int = Field(ge=0)
    selection_split: Text = "dev"
    rationale: Text


class ConfigClaim(Hyperparameters):
    """Hyper-parameters of the job."""

    stage: Literal["config"] = "config"


class ScheduleClaim(Frozen):
    """Where and when the job runs, and what it should cost."""

    stage: Literal["schedule"] = "schedule"
    gpu_kind: Name
    gpus: int = Field(gt=0)
    precision: Literal["fp32", "bf16", "fp16", "fp8"]
    sharding: Literal["none", "ddp", "zero2", "zero3"] = "none"
    start: Literal["now"] = "now"
    expected_wall_seconds: float = Field(gt=0)
    expected_usd: float = Field(ge=0)


class TrainClaim(Frozen):
    """`start` runs the configured job; `stop` trains nothing."""

    stage: Literal["train"] = "train"
    action: Literal["start", "stop"]
    reason: Text = ""


class EvalClaim(Frozen):
    """The candidate chosen, its uplift on dev, and what to do next.

    `stop`: training is over, register this candidate. `continue`: reopen config, same strategy.
    `switch`: reopen plan, another strategy.
    """

    stage: Literal["eval"] = "eval"
    candidate: Name = Field(description="a job id, or `base`")
    uplift: float = Field(ge=-1, le=1)
    uplift_interval: tuple[float, float]
    action: Literal["continue", "switch", "stop"]
    evidence: tuple[int, ...] = Field(default=(), description="entry numbers the decision rests on")
    reason: Text = ""


class RegisterClaim(Frozen):
    """The artifact and where it says it comes from."""

    stage: Literal["register"] = "register"
    candidate: Name
    artifact_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")]
    base: Name
    merge_adapter: bool = True


class DeployClaim(Frozen):
    """Staged roll-out: growing shares of traffic, limits that stop it, and the way back."""

    stage: Literal["deploy"] = "deploy"
    canary_shares: tuple[Share, ...] = Field(min_length=1, max_length=8)
    requests_per_step: int = Field(gt=0, le=200)
    max_error_share: Share
    max_p95_milliseconds: float = Field(gt=0)
    rollback_to: Name
    rollback_plan: Text


class CostClaim(Frozen):
    """The invoice."""

    stage: Literal["cost"] = "cost"
    total: Amounts
    notes: Text = ""


class CardNumber(Frozen):
    """One number printed on the card and the fact field it comes from (dotted path into the payload)."""

    label: Name
    value: float
    entry: int = Field(gt=0)
    field: Name


class CardClaim(Frozen):
    """The model card, in the Hugging Face format: YAML front matter, then Markdown."""

    stage: Literal["card"] = "card"
    markdown: str = Field(max_length=20_000)
    numbers: tuple[CardNumber, ...] = Field(max_length=200)


class FlagAnswer(Frozen):
    """The seat's answer to a flag on its job."""

    stage: Literal["flag"] = "flag"
    flag_id: Name
    action: Literal["stop", "switch", "continue"]
    reason: Text


Claim = Annotated[
    IntakeClaim
    | PlanClaim
    | ConfigClaim
    | ScheduleClaim
    | TrainClaim
    | EvalClaim
    | RegisterClaim
    | DeployClaim
    | CostClaim
    | CardClaim
    | FlagAnswer,
    Field(discriminator="stage"),
]

_CLAIM: TypeAdapter[Claim] = TypeAdapter(Claim)


def parse_claim(payload: object) -> Claim:
    """A claim from untrusted data. Raises BadInput with one line naming each field that is wrong."""
    try:
        return _CLAIM.validate_python(payload)
    except ValidationError as error:
        raise BadInput(f"claim not usable: {problems(error)}") from None


def problems(error: ValidationError) -> str:
    """A validation error as one line: fields and reasons, never the input nor a link."""
    found = [
        f"{'.'.join(one_line(part, 60) for part in item['loc']) or 'value'}: {one_line(item['msg'], 200)}"
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return "; ".join(found[:6]) + ("" if len(found) <= 6 else f"; and {len(found) - 6} more")


def stage_of(claim: Claim) -> StageName | None:
    """The stage a claim belongs to; None for a flag answer."""
    return None if isinstance(claim, FlagAnswer) else StageName(claim.stage)
