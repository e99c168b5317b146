"""Rows as token ids, with the answer marked by the chat template. Loads no model; runs in child processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trl.chat_template_utils import get_training_chat_template

from delivery_plane.scenario import Row

IGNORED = -100
"""Label of a position the loss is not taken on."""


@dataclass(frozen=True)
class RenderedRow:
    """One row as the trainer sees it: ids, and 1 where the template marks the answer (end of turn included)."""

    ids: list[int]
    answer: list[int]

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the answer; all of them when no answer is marked."""
        return self.answer.index(1) if 1 in self.answer else len(self.answer)

    def cut(self, max_tokens: int) -> "RenderedRow":
        """The first `max_tokens` tokens: the answer is last, so it goes first."""
        return RenderedRow(self.ids[:max_tokens], self.answer[:max_tokens])

    def labels(self, masking: Literal["assistant_only", "all"]) -> list[int]:
        """What the loss is taken on, per position."""
        if masking == "all":
            return list(self.ids)
        return [token if marked else IGNORED for token, marked in zip(self.ids, self.answer, strict=True)]


def render(tokenizer: Any, rows: Sequence[Row]) -> list[RenderedRow]:
    """Rows through the base's chat template, prompt and answer, untruncated."""
    conversations = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
        for row in rows
    ]
    found = tokenizer.apply_chat_template(
        conversations,
        chat_template=_marking_template(tokenizer),
        tokenize=True,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    return [
        RenderedRow(list(ids), list(mask))
        for ids, mask in zip(found["input_ids"], found["assistant_masks"], strict=True)
    ]


def _marking_template(tokenizer: Any) -> str:
    """The template with the answer marked: the base's own, or TRL's for a family it knows."""
    template: str = tokenizer.chat_template
    if "generation %}" in template:
        return template
    try:
        return get_training_chat_template(tokenizer) or template
    except ValueError:
        # No answer will be found in any row, and that is recorded.
        return template


def serving_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[list[int]]:
    """Prompts as they are served: the user's turn and the opening of the assistant's."""
    conversations = [[{"role": "user", "content": prompt}] for prompt in prompts]
    found = tokenizer.apply_chat_template(
        conversations, tokenize=True, add_generation_prompt=True, return_dict=True
    )
    return [list(ids) for ids in found["input_ids"]]


def left_padded(rows: Sequence[Sequence[int]], fill: int) -> list[list[int]]:
    """Rows of one length, filled on the left."""
    longest = max(len(row) for row in rows)
    return [[fill] * (longest - len(row)) + list(row) for row in rows]
