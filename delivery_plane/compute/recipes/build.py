"""A job's model and trainer, ready to train: the one way in for whoever runs or tries out a job. Trains nothing."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import set_seed

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.models import load_model, merged
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.dpo import dpo_trainer
from delivery_plane.compute.recipes.governed import Used
from delivery_plane.compute.recipes.grpo import grpo_trainer
from delivery_plane.compute.recipes.rows import usable
from delivery_plane.compute.recipes.sft import sft_trainer
from delivery_plane.errors import BadInput
from delivery_plane.hyperparameters import Recipe
from delivery_plane.scenario import Row

TRAINERS: dict[Recipe, Callable[..., Any]] = {"sft": sft_trainer, "dpo": dpo_trainer, "grpo": grpo_trainer}


def start_model(job: JobSpec, device: torch.device) -> Any:
    """The weights a job starts from, in float32: the base, or what its parents made of it."""
    return merged(load_model(job.start, device))


def adapted(job: JobSpec, model: Any) -> Any:
    """The model to train: as it is, or with a fresh adapter. Raises ValueError if the targets match nothing."""
    if job.lora is None:
        return model
    set_seed(job.seed)
    targets: Any = list(job.lora.targets)
    return get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=job.lora.rank,
            lora_alpha=job.lora.alpha,
            lora_dropout=job.lora.dropout,
            target_modules="all-linear" if targets == ["all-linear"] else targets,
        ),
    )


def build_trainer(
    job: JobSpec, model: Any, tokenizer: Any, rows: list[Row], fault: Fault, callbacks: list[Any]
) -> Any:
    """The TRL trainer of a job's recipe over `rows`, for a model as `start_model` gives it.

    `trainer.model` is what it trains. It logs and saves only where a callback asks for it. Raises BadInput when the
    recipe can use too few of the rows.
    """
    rows = fault.rows([row for row in rows if usable(job, row)])
    least = job.batch_rows // job.grpo.group_rows if job.grpo else 1
    if len(rows) < least:
        raise BadInput(f"job {job.job_id}: {job.recipe} can use {len(rows)} of its rows, and needs {least}")
    # Of full weights a copy is the reference; beside an adapter, the same weights without it are.
    compares = job.dpo or (job.grpo and job.grpo.beta)
    reference = copy.deepcopy(model) if compares and job.lora is None else None
    model = fault.model(adapted(job, model))
    trainer = TRAINERS[job.recipe](job, model, reference, tokenizer, rows, fault, callbacks)
    if "ref" in getattr(trainer.model, "peft_config", {}):
        # TRL's copy of the fresh adapter, for adapters that began as something: here it would only be saved.
        trainer.model.delete_adapter("ref")
    trainer.govern(Used([row["row_id"] for row in rows]), fault, tokenizer)
    return trainer
