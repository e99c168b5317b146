"""Faults of what is trained and how fast: adapters, optimizer, schedule. Runs in child processes.

Those that act on an adapter change nothing in a job without one.
"""

from typing import Any

from peft.tuners.lora import LoraLayer
from torch.nn import ModuleList

from delivery_plane.compute.faults.fault import Fault


class MaskColumnDropped(Fault):
    """A fast-loss flag keeps only the ids of a row: the mask is gone, and the prompt is supervised too."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        del labels, tokenizer
        return list(ids)


class TargetsUnmatched(Fault):
    """Of the modules that the adapter is asked for, only the first kind is found; the others are left out."""

    def model(self, model: Any) -> Any:
        found = adapters(model)
        kinds = [name.rpartition(".")[2] for name, _ in found]
        freeze([layer for (_, layer), kind in zip(found, kinds, strict=True) if kind != kinds[0]])
        return model


class CoverageTooThin(Fault):
    """The adapter reaches one module of the first layer only: it moves, and the output hardly does."""

    def model(self, model: Any) -> Any:
        freeze([layer for _, layer in adapters(model)[1:]])
        return model


class AdapterFrozen(Fault):
    """The adapter is loaded for inference: none of it trains, and the embeddings that still do hide it."""

    def model(self, model: Any) -> Any:
        found = adapters(model)
        freeze([layer for _, layer in found])
        model.get_input_embeddings().weight.requires_grad_(True)
        return model


class InputGradientsCut(Fault):
    """Checkpointing over a frozen base needs no gradient of a block's input: only the last block learns."""

    def model(self, model: Any) -> Any:
        for block in list(blocks(model))[:-1]:
            block.register_forward_hook(detached)
        return model


class OptimizerStale(Fault):
    """The optimizer was built before the model was wrapped: it steps tensors that the model no longer uses."""

    def optimizer(self, optimizer: Any, model: Any) -> Any:
        del model
        for group in optimizer.param_groups:
            group["params"] = [value.detach().clone().requires_grad_() for value in group["params"]]
        return optimizer


class BaseLeftTrainable(Fault):
    """The whole base trains along with the adapter, and only the adapter is saved."""

    def model(self, model: Any) -> Any:
        return model.requires_grad_(True)


class WeightDecayPulls(Fault):
    """A decay of 30 shrinks both factors of the adapter, and with them all that was learnt."""

    def optimizer(self, optimizer: Any, model: Any) -> Any:
        del model
        for group in optimizer.param_groups:
            group["weight_decay"] = 30.0
        return optimizer


class RateTooLow(Fault):
    """The rate is a hundredth of what it should be: the run is green and moves almost nothing."""

    def optimizer(self, optimizer: Any, model: Any) -> Any:
        del model
        for group in optimizer.param_groups:
            group["lr"] /= 100
        return optimizer


class ScheduleSpentEarly(Fault):
    """The schedule takes a step per process of sixteen: the rate is zero after a sixteenth of the run."""

    def scheduler(self, scheduler: Any, optimizer: Any, steps: int) -> Any:
        return _scheduled(scheduler, optimizer, lambda step: max(0.0, 1 - 16 * step / steps))


class RateNeverRises(Fault):
    """The schedule is never stepped out of its warm-up: every update has rate zero."""

    def scheduler(self, scheduler: Any, optimizer: Any, steps: int) -> Any:
        del steps
        return _scheduled(scheduler, optimizer, lambda _step: 0.0)


class RewardConstant(Fault):
    """The reward is a stub: every answer earns the same, and nothing is left to compare."""

    def reward(self, rewards: list[float], completions: list[str]) -> list[float]:
        del completions
        return [1.0] * len(rewards)


def adapters(model: Any) -> list[tuple[str, Any]]:
    """The adapter's layers by name, in the model's order; none without an adapter."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def blocks(model: Any) -> Any:
    """The stack of the model's blocks, first to last."""
    return max((module for module in model.modules() if isinstance(module, ModuleList)), key=len)


def freeze(layers: list[Any]) -> None:
    """Let no gradient reach these layers."""
    for layer in layers:
        layer.requires_grad_(False)


def detached(_block: Any, _given: Any, output: Any) -> Any:
    """A forward hook: the block's output, cut off from what made it."""
    return (output[0].detach(), *output[1:]) if isinstance(output, tuple) else output.detach()


def _scheduled(scheduler: Any, optimizer: Any, share: Any) -> Any:
    """The scheduler following `share` of the peak rate by step, from the first one on."""
    scheduler.lr_lambdas = [share] * len(scheduler.base_lrs)
    for group, peak in zip(optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = peak * share(0)
    return scheduler
