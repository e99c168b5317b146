"""How a job trains: the settings a seat claims and a plane runs, with what contradicts itself refused. Runs nothing."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from delivery_plane.delivery import Frozen

Recipe = Literal["sft", "dpo", "grpo"]
"""Supervised fine-tuning, direct preference optimisation, group relative policy optimisation (online)."""

EnvironmentName = Literal["answer", "guess-number"]
"""What a policy's turns are met with: one answer graded by the task's metric, or a game of several turns."""


class LoraSettings(Frozen):
    """Adapter shape: rank, alpha, and the module names it attaches to (`all-linear` for all of them)."""

    rank: int = Field(gt=0, le=1024)
    alpha: float = Field(gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: tuple[Annotated[str, Field(max_length=200)], ...] = Field(default=("all-linear",), min_length=1)


class DpoSettings(Frozen):
    """Preference optimisation on rows that hold a `rejected` answer beside the right one."""

    beta: float = Field(default=0.1, gt=0, le=100, description="strength of the pull to the reference")


class GrpoSettings(Frozen):
    """Online reinforcement learning: answers are sampled from the policy and rewarded by a program."""

    environment: EnvironmentName = "answer"
    group_rows: int = Field(
        default=8, ge=2, description="answers sampled for each prompt and compared together"
    )
    max_new_tokens: int = Field(gt=0, le=4096, description="per turn of the policy")
    temperature: float = Field(default=1.0, ge=0, le=10)
    beta: float = Field(
        default=0.0, ge=0, le=100, description="weight of the divergence from the start; 0: none"
    )


class Hyperparameters(Frozen):
    """Everything that decides how a job trains, its data and its starting point aside.

    `dpo` or `grpo` chooses that recipe; with neither, the job is supervised fine-tuning.
    """

    learning_rate: float = Field(gt=0)
    scheduler: Literal["linear", "cosine", "constant"]
    warmup_share: float = Field(default=0.05, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    batch_rows: int = Field(gt=0, le=4096, description="rows, pairs or sampled answers per optimizer step")
    accumulation: int = Field(default=1, gt=0, description="passes that make up one optimizer step")
    steps: int = Field(ge=16, le=1_000_000)
    max_tokens_per_row: int = Field(gt=0)
    masking: Literal["assistant_only", "all"]
    packing: bool = Field(
        default=False, description="several rows in one sequence of max_tokens_per_row tokens"
    )
    lora: LoraSettings | None = None
    dpo: DpoSettings | None = None
    grpo: GrpoSettings | None = None
    seed: int = Field(default=0, ge=0, lt=2**31)

    @property
    def recipe(self) -> Recipe:
        """The recipe these settings are for."""
        return "dpo" if self.dpo else "grpo" if self.grpo else "sft"

    @model_validator(mode="after")
    def _consistent(self) -> "Hyperparameters":
        if found := contradictions(self):
            raise ValueError("; ".join(f"{field}: {why}" for field, why in found.items()))
        return self


def contradictions(settings: Hyperparameters) -> dict[str, str]:
    """What settings say against each other, by the field to change."""
    found: dict[str, str] = {}
    if settings.batch_rows % settings.accumulation:
        found["accumulation"] = (
            f"{settings.accumulation} passes cannot share {settings.batch_rows} batch_rows"
        )
    if settings.warmup_share == 1 and settings.scheduler != "constant":
        found["warmup_share"] = "a rate that rises to the last step never falls; take less than 1"
    if settings.packing and settings.recipe != "sft":
        found["packing"] = f"{settings.recipe} compares whole answers; only sft packs rows"
    if settings.masking == "all" and settings.recipe != "sft":
        found["masking"] = f"{settings.recipe} takes its loss on answers; only sft may take it on prompts"
    lora = settings.lora
    if lora and "all-linear" in lora.targets and len(lora.targets) > 1:
        found["lora.targets"] = "all-linear names every module already; leave the others out"
    elif lora and len(set(lora.targets)) < len(lora.targets):
        found["lora.targets"] = "a module is named twice"
    if lora and lora.dropout and settings.dpo:
        found["lora.dropout"] = "dpo compares with the reference without dropout; take 0"
    if settings.dpo and settings.grpo:
        found["grpo"] = "a job has one recipe; leave out dpo or grpo"
    if grpo := settings.grpo:
        found |= _contradictions_of_grpo(settings, grpo)
    return found


def _contradictions_of_grpo(settings: Hyperparameters, grpo: GrpoSettings) -> dict[str, str]:
    found = {}
    if settings.batch_rows % grpo.group_rows:
        found["grpo.group_rows"] = f"groups of {grpo.group_rows} do not fill {settings.batch_rows} batch_rows"
    if grpo.temperature == 0:
        found["grpo.temperature"] = (
            "0 samples the same answer throughout a group, which leaves nothing to compare"
        )
    if grpo.max_new_tokens >= settings.max_tokens_per_row:
        found["grpo.max_new_tokens"] = "leaves no room for the prompt in max_tokens_per_row"
    return found
