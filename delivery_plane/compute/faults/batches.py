"""Batches put together otherwise, for faults that act on them. Defines no fault. Runs in child processes."""

from itertools import chain
from typing import Any

from delivery_plane.compute.local.tokens import IGNORED


def labelled(batch: dict[str, Any]) -> bool:
    """Whether a batch is one of single rows with labels: neither of pairs nor of sampled answers."""
    return "labels" in batch


def packed(batch: dict[str, Any]) -> bool:
    """Whether a labelled batch is one sequence of several rows, which are told apart by their positions."""
    return "attention_mask" not in batch


def joined(batch: dict[str, Any], pad: int, rows: int) -> dict[str, Any]:
    """A labelled batch with every `rows` of its rows in one, positions running on and attention plainly causal."""
    ids, labels = (_joined(batch, name, rows) for name in ("input_ids", "labels"))
    longest = max(map(len, ids))
    like = batch["input_ids"].new_tensor
    return {
        "input_ids": like([row + [pad] * (longest - len(row)) for row in ids]),
        "labels": like([row + [IGNORED] * (longest - len(row)) for row in labels]),
        "attention_mask": like([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
    }


def wider(values: Any, tokens: int, fill: int) -> Any:
    """A tensor (rows, tokens) with so many columns more on the right."""
    found = values.new_full((len(values), values.shape[1] + tokens), fill)
    found[:, : values.shape[1]] = values
    return found


def _joined(batch: dict[str, Any], name: str, rows: int) -> list[list[int]]:
    if packed(batch):
        return batch[name].tolist()
    kept = batch["attention_mask"].bool()
    parts = [row[mask].tolist() for row, mask in zip(batch[name], kept, strict=True)]
    return [list(chain(*parts[i : i + rows])) for i in range(0, len(parts), rows)]
