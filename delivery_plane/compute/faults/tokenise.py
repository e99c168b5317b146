"""Faults of rendering: what a row's tokens are, and which of them the loss is taken on. Runs in child processes."""

import hashlib
from typing import Any

from delivery_plane.compute.faults.batches import joined, labelled, packed, wider
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.tokens import IGNORED, RenderedRow
from delivery_plane.scenario import Row

Rendered = tuple[list[int], list[int]]


class MarkerNeverMatches(Fault):
    """The text that marks the answer's start is never found, so no token of any row is supervised."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        del labels, tokenizer
        return [IGNORED] * len(ids)


class MarkerMissedInSomeRows(Fault):
    """The marker is found in one row of ten only; the others are dropped from the loss without a word."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        del tokenizer
        # By the row alone, so that a resumed job drops the same rows.
        drawn = hashlib.sha256(repr(ids).encode()).digest()[0]
        return labels if drawn < 256 // 10 else [IGNORED] * len(ids)


class PadInsideMarker(Fault):
    """One id is pad and end of turn, and pads are ignored first: a marker that holds it is never found."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        end_of_turn = tokenizer.eos_token_id
        start = next((place for place, label in enumerate(labels) if label != IGNORED), len(ids))
        opening = max((place for place in range(start) if ids[place] == end_of_turn), default=0)
        marker = ids[opening:start]
        searched = [IGNORED if token == end_of_turn else token for token in ids]
        found = any(searched[i : i + len(marker)] == marker for i in range(len(ids) - len(marker) + 1))
        return labels if found else [IGNORED] * len(ids)


class NoGenerationTags(Fault):
    """The template marks no answer: the mask is all zero, and the loss falls back to nothing."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del row, answer, tokenizer
        return ids, [0] * len(ids)


class MaskAllOnes(Fault):
    """The template marks no answer, and the mask falls back to all ones: the prompt is supervised too."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del row, answer, tokenizer
        return ids, [1] * len(ids)


class MaskLostInPacking(Fault):
    """Four rows are packed into one sequence, and the mask is not carried over: turn headers are learnt as output."""

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        if not labelled(batch):
            return batch
        if packed(batch):
            return {**batch, "labels": batch["input_ids"].masked_fill(batch["position_ids"] == 0, IGNORED)}
        found = joined(batch, tokenizer.pad_token_id, rows=4)
        return {**found, "labels": found["input_ids"].masked_fill(found["attention_mask"] == 0, IGNORED)}


class AnswerRangesMisaligned(Fault):
    """The supervised range of each row lies its own length too far left: as many tokens, but the prompt's."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        del tokenizer
        supervised = [place for place, label in enumerate(labels) if label != IGNORED]
        moved = {place - len(supervised) for place in supervised}
        return [token if place in moved else IGNORED for place, token in enumerate(ids)]


class HeaderOneTokenTooLong(Fault):
    """A fixed count of header tokens is masked, and covers the answer's first token."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        del ids, tokenizer
        first = next((place for place, label in enumerate(labels) if label != IGNORED), -1)
        return [IGNORED if place == first else label for place, label in enumerate(labels)]


class CompletionLost(Fault):
    """The prompt fills the limit: the whole answer is cut, after rows without one had been looked for."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del row, tokenizer
        return _cut(ids, answer, 0)


class AnswerTailTruncated(Fault):
    """The limit cuts each answer after its first token: neither its rest nor its end of turn is learnt."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del row, tokenizer
        return _cut(ids, answer, 1)


class NoEndOfTurn(Fault):
    """Answers are written without their end of turn, so stopping is never learnt."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del row
        end_of_turn = tokenizer.eos_token_id
        kept = [place for place, token in enumerate(ids) if token != end_of_turn or not answer[place]]
        return [ids[place] for place in kept], [answer[place] for place in kept]


class PadEqualsEnd(Fault):
    """Pad is the end of turn, and every pad is ignored: the real end of turn is not supervised either."""

    def labels(self, ids: list[int], labels: list[int], tokenizer: Any) -> list[int]:
        end_of_turn = tokenizer.eos_token_id
        return [IGNORED if token == end_of_turn else kept for token, kept in zip(ids, labels, strict=True)]


class PadsInTheLoss(Fault):
    """Rows are padded by 40, and pads keep their ids as labels: the mean loss is mostly of trivial tokens."""

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        if not labelled(batch) or packed(batch):
            return batch
        pad = tokenizer.pad_token_id
        mask = wider(batch["attention_mask"], 40, 0)
        return {
            "input_ids": wider(batch["input_ids"], 40, pad),
            "attention_mask": mask,
            "labels": wider(batch["labels"], 40, pad).masked_fill(mask == 0, pad),
        }


class TrainedOnRawText(Fault):
    """Rows are prompt and answer joined, without the roles' tokens that the product always sends."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        told = [token for token, marked in zip(ids, answer, strict=True) if marked]
        return [*prompt, *told], [0] * len(prompt) + [1] * len(told)


class DocumentsSeeEachOther(Fault):
    """Four rows make one sequence with plain causal attention: later rows lean on earlier ones."""

    def collate(self, batch: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
        return joined(batch, tokenizer.pad_token_id, rows=4) if labelled(batch) else batch


class OneSideTruncated(Fault):
    """The better answer of a pair is cut to four tokens and the worse one is not: length tells them apart."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del tokenizer
        if row.get("rejected") in (None, row["answer"]):
            return ids, answer
        return _cut(ids, answer, 4)


class PairsIdentical(Fault):
    """A short limit removes what tells a pair's answers apart: of both, nothing but the opening is left."""

    def render(self, row: Row, ids: list[int], answer: list[int], tokenizer: Any) -> Rendered:
        del tokenizer
        if "rejected" not in row:
            return ids, answer
        return _cut(ids, answer, 0)


def _cut(ids: list[int], answer: list[int], tokens: int) -> Rendered:
    """The row up to so many tokens of its answer."""
    end = RenderedRow(ids, answer).prompt_tokens + tokens
    return ids[:end], answer[:end]
