"""The held-out probe and the distance from the base: what is looked at during a run. Runs in the trainer."""

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn.functional import cross_entropy

from delivery_plane.compute.local.tokens import IGNORED, RenderedRow
from delivery_plane.compute.recipes.sft import LeftPadded

_LOGIT_BYTES = 1 << 28
"""Most memory the logits of one probe batch may take."""


@dataclass(frozen=True)
class ProbeResult:
    """Teacher-forced: `loss` in nats per answer token; `correct` per item, all its tokens are the argmax."""

    loss: float
    correct: tuple[bool, ...]


class Probe:
    """The probe rows, ready to be put through a model again and again."""

    def __init__(
        self, rows: list[RenderedRow], tokenizer: Any, vocabulary: int, device: torch.device
    ) -> None:
        longest = max(len(row.ids) for row in rows)
        size = max(1, min(64, _LOGIT_BYTES // (4 * vocabulary * longest)))
        collate = LeftPadded(tokenizer.pad_token_id)
        encoded = [{"input_ids": row.ids, "labels": row.labels("assistant_only")} for row in rows]
        self._batches = [
            {name: value.to(device) for name, value in collate(encoded[i : i + size]).items()}
            for i in range(0, len(encoded), size)
        ]

    def measure(self, model: Any) -> ProbeResult:
        """Answer loss and exact match. Draws nothing at random, so training goes on as if never probed."""
        was_training = model.training
        model.eval()
        total, tokens = 0.0, 0
        correct: list[bool] = []
        for batch in self._batches:
            labels = batch["labels"][:, 1:]
            supervised = labels != IGNORED
            columns = supervised.any(0).nonzero().flatten()
            kept = labels[:, columns]
            given = {name: value for name, value in batch.items() if name != "labels"}
            with torch.no_grad():
                logits = model(**given, use_cache=False, logits_to_keep=columns).logits.float()
            loss = cross_entropy(logits.flatten(0, 1), kept.flatten(), ignore_index=IGNORED, reduction="sum")
            total += float(loss)
            tokens += int(supervised.sum())
            right = ((logits.argmax(-1) == kept) | (kept == IGNORED)).all(1) & supervised.any(1)
            correct.extend(bool(value) for value in right)
        model.train(was_training)
        return ProbeResult(total / max(1, tokens), tuple(correct))


class Distance:
    """Euclidean distance of a model's weights from where they were; an adapter counts as its product."""

    def __init__(self, model: Any) -> None:
        """Remember `model` (already adapted, if it will be): a copy of every trainable weight of a full run."""
        self._adapters = [module for module in model.modules() if isinstance(module, LoraLayer)]
        self._before = (
            {}
            if self._adapters
            else {name: value.detach().clone() for name, value in model.named_parameters()}
        )

    def of(self, model: Any) -> float:
        """The distance now."""
        with torch.no_grad():
            if self._adapters:
                changes = [
                    layer.get_delta_weight(name) for layer in self._adapters for name in layer.active_adapters
                ]
            else:
                changes = [value - self._before[name] for name, value in model.named_parameters()]
            return float(sum(float(change.double().square().sum()) for change in changes) ** 0.5)
