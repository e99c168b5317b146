"""Facts of the stages before training: the customer's data, the plan, the rendered rows, the quote."""

from typing import Literal

from delivery_plane.claims import IssueKind
from delivery_plane.delivery import Frozen
from delivery_plane.facts.base import FactBase, RowSet
from delivery_plane.hyperparameters import Recipe


class DataProfiled(FactBase):
    """What the platform measured on the customer's drop. Overlap is computed by the evaluator's process."""

    kind: Literal["data_profiled"] = "data_profiled"
    v: Literal[1] = 1
    rows: int
    dataset_digest: str
    distinct_answers: int
    prompt_characters_p95: int
    licences: dict[str, int]
    issues: dict[IssueKind, RowSet]
    overlap_ngram: int
    """Words per n-gram of the overlap search."""


class DataSelected(FactBase):
    """The training set that the plan's selectors leave, and what is still wrong with it."""

    kind: Literal["data_selected"] = "data_selected"
    v: Literal[2] = 2
    rows_in: int
    rows_out: int
    removed: dict[str, int]
    """Rows each selector took out, by its position and name."""
    dataset_digest: str
    remaining: dict[IssueKind, RowSet]
    preference_rows: int = 0
    """Selected rows that hold a rejected answer beside the right one."""


class PlanChecked(FactBase):
    """The plan as far as the platform can check it without running it."""

    kind: Literal["plan_checked"] = "plan_checked"
    v: Literal[2] = 2
    base: str
    base_digest: str | None
    """None: no such base on offer."""
    base_licence: str | None
    abort_criteria: int
    uncheckable_criteria: tuple[str, ...]
    known_measures: tuple[str, ...]
    dev_evaluations_planned: int
    dev_evaluations_left: int
    selection_split: str
    parent: str = "base"
    parent_known: bool = True
    """Whether training would start from the planned base, or from a job on it that ended with a checkpoint."""
    rows_for_objective: int | None = None
    """Selected rows that the objective can train on; None: not counted."""


class ConfigRendered(FactBase):
    """Real rows rendered with the job's template and mask, and what would train."""

    kind: Literal["config_rendered"] = "config_rendered"
    v: Literal[2] = 2
    job_digest: str
    recipe: Recipe = "sft"
    mechanism: Literal["full", "lora"]
    rows: int
    rendered_rows: int
    """How many rows the shares below were measured on."""
    prompt_tokens: int
    supervised_tokens: int
    supervised_prompt_tokens: int
    """Prompt tokens the loss would be taken on: 0 when the mask covers exactly the answer."""
    end_of_turn_supervised_share: float
    rows_without_answer: int
    truncated_rows: int
    longest_row_tokens: int
    max_tokens_per_row: int
    context_tokens: int
    template_digest_train: str
    template_digest_serve: str
    trainable_parameters: int
    total_parameters: int
    adapted_modules: int
    steps: int
    batch_rows: int
    epochs: float
    planned_tokens: int
    seconds_per_step: float
    """Measured on this machine: one optimizer step on a full batch, sampling included, median of 3."""


class PreflightCheck(Frozen):
    """One thing tried before the job: whether it held, what was seen, and which setting to change if it did not."""

    name: str
    passed: bool
    message: str
    field: str
    """The claim's field, or what of the data or base, a failure is mended by."""


class PreflightChecked(FactBase):
    """The job tried out on a few rows before anything was metered. The same job is tried once."""

    kind: Literal["preflight_checked"] = "preflight_checked"
    v: Literal[1] = 1
    job_digest: str
    checks: tuple[PreflightCheck, ...]
    seconds: float
    """What it took; the platform's own time, charged to nobody."""

    @property
    def failed(self) -> tuple[PreflightCheck, ...]:
        """The checks that did not hold."""
        return tuple(check for check in self.checks if not check.passed)


class Offer(Frozen):
    """One way to run the job."""

    gpu_kind: str
    gpus: int
    precision: str
    memory_bytes_needed: int
    memory_bytes_available: int
    tokens_per_second: float
    wall_seconds: float
    gpu_seconds: float
    usd: float
    feasible: bool
    why_not: str


class ScheduleOffered(FactBase):
    """Every way the plane could run the configured job, with its price."""

    kind: Literal["schedule_offered"] = "schedule_offered"
    v: Literal[1] = 1
    offers: tuple[Offer, ...]
    usd_left: float
    wall_seconds_left: float
    price_book: str


class ScheduleQuoted(FactBase):
    """The offer the seat chose, as the platform prices it; None when it matches no offer."""

    kind: Literal["schedule_quoted"] = "schedule_quoted"
    v: Literal[1] = 1
    offer: Offer | None
    cheapest_usd: float | None
    """Of the feasible offers; None when nothing is feasible."""
