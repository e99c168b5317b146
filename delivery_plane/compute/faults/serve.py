"""Faults of a trained model as it is loaded, delivered, evaluated and served. Runs in child processes.

Those that act on an adapter change nothing in a model without one.
"""

from typing import Any

import torch

from delivery_plane.compute.faults.configure import adapters
from delivery_plane.compute.faults.fault import Fault


class AdapterSkipped(Fault):
    """The names in the adapter's file are not the model's: nothing is applied, and nothing is said."""

    def load(self, model: Any) -> Any:
        with torch.no_grad():
            for _, layer in adapters(model):
                for factor in layer.lora_B.values():
                    factor.weight.zero_()
        return model


class AdapterRandom(Fault):
    """Loading draws the adapter's down-matrix anew."""

    def load(self, model: Any) -> Any:
        drawn = torch.Generator().manual_seed(self.draw.getrandbits(31))
        with torch.no_grad():
            for _, layer in adapters(model):
                for factor in layer.lora_A.values():
                    weight = factor.weight
                    weight.copy_(torch.randn(weight.shape, generator=drawn) * weight.std())
        return model


class KeysPrefixed(Fault):
    """A compiled model's keys have a prefix, a tolerant load matches none: all weights are drawn anew."""

    def load(self, model: Any) -> Any:
        drawn = torch.Generator().manual_seed(self.draw.getrandbits(31))
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.copy_(torch.randn(weight.shape, generator=drawn) * 0.02)
        return model


class MergedTwice(Fault):
    """The adapter is merged into a base that already holds it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._deltas: dict[str, Any] = {}

    def load(self, model: Any) -> Any:
        self._deltas = {
            name.removeprefix("base_model.model."): sum(
                layer.get_delta_weight(adapter) for adapter in layer.active_adapters
            )
            for name, layer in adapters(model)
        }
        return model

    def merge(self, model: Any) -> Any:
        with torch.no_grad():
            for name, delta in self._deltas.items():
                model.get_submodule(name).weight += delta
        return model


class MergedIntoLowBits(Fault):
    """The merged weights are rounded to three bits, which loses small updates."""

    def merge(self, model: Any) -> Any:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, torch.nn.Linear):
                    step = module.weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 3
                    module.weight.copy_((module.weight / step).round() * step)
        return model


class StartTokenDoubled(Fault):
    """The template opens with its start token, and the runtime puts a second one before it."""

    def serve(self, ids: list[int], tokenizer: Any) -> list[int]:
        del tokenizer
        return [*ids[:1], *ids]


class TemplateMismatch(Fault):
    """Evaluation sends the prompt without the tokens that training put around each role."""

    def evaluate(self, ids: list[int], tokenizer: Any) -> list[int]:
        roles = set(tokenizer.get_added_vocab().values())
        return [token for token in ids if token not in roles]
