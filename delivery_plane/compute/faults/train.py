"""Faults of the step itself: the loss, the forward pass, steps that are not taken. Runs in child processes."""

import random
from typing import Any

from delivery_plane.compute.faults.batches import labelled
from delivery_plane.compute.faults.configure import adapters, blocks, detached
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import IGNORED


class LabelsShiftedTwice(Fault):
    """Labels are shifted before the loss shifts them again: the token after the next is learnt."""

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        del tokenizer
        if not labelled(batch):
            return batch
        moved = batch["labels"].roll(-1, 1)
        moved[:, -1] = IGNORED
        return {**batch, "labels": moved}


class LabelsNotShifted(Fault):
    """A position's own token is its target: the model learns to copy what it reads."""

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        del tokenizer
        if not labelled(batch):
            return batch
        moved = batch["labels"].roll(1, 1)
        moved[:, 0] = IGNORED
        return {**batch, "labels": moved}


class AdapterNotUsed(Fault):
    """The adapter is attached, trainable and stepped, but the forward pass never applies it."""

    def model(self, model: Any) -> Any:
        for _, layer in adapters(model):
            layer.scaling = dict.fromkeys(layer.scaling, 0.0)
        return model


class FirstBlockWithoutGradient(Fault):
    """The gradient's hook is on the wrong module: what lies before the second block never learns."""

    def model(self, model: Any) -> Any:
        blocks(model)[0].register_forward_hook(detached)
        return model


class EveryStepSkipped(Fault):
    """Loss scaling overflows at every step: none is taken, while schedule and progress go on."""

    def step(self, model: Any, optimizer: Any, step: int) -> None:
        del model, step
        optimizer.zero_grad(set_to_none=True)


class MostStepsSkipped(Fault):
    """Nineteen steps of twenty are skipped, and the schedule decays as if they had been taken."""

    def step(self, model: Any, optimizer: Any, step: int) -> None:
        del model
        # By the step alone, so that a resumed job skips the same ones.
        if random.Random(step).random() < 0.95:
            optimizer.zero_grad(set_to_none=True)
