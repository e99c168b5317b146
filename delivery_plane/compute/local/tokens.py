"""Rows as token ids, with the answer marked by the chat template. Loads no model; runs in child processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trl.chat_template_utils import get_training_chat_template

from delivery_plane.errors import ComputeFault
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

    def last_answer(self) -> "RenderedRow":
        """The same row with the answers before the last one marked as prompt."""
        ended = len(self.answer) - self.answer[::-1].index(1) if 1 in self.answer else 0
        begun = max((place + 1 for place in range(ended) if not self.answer[place]), default=0)
        return RenderedRow(self.ids, [0] * begun + self.answer[begun:])

    def cut(self, max_tokens: int) -> "RenderedRow":
        """The first `max_tokens` tokens: the answer is last, so it goes first."""
        return RenderedRow(self.ids[:max_tokens], self.answer[:max_tokens])

    def labels(self, masking: Literal["assistant_only", "all"]) -> list[int]:
        """What the loss is taken on, per position."""
        if masking == "all":
            return list(self.ids)
        return [token if marked else IGNORED for token, marked in zip(self.ids, self.answer, strict=True)]


def render(tokenizer: Any, rows: Sequence[Row]) -> list[RenderedRow]:
    """Rows through the base's chat template, prompt to answer, untruncated."""
    return [row.last_answer() for row in _marked(tokenizer, [_conversation(row) for row in rows])]


def _conversation(row: Row) -> list[dict[str, str]]:
    said = [row["prompt"], *row.get("turns", []), row["answer"]]
    return [
        {"role": "user" if place % 2 == 0 else "assistant", "content": text}
        for place, text in enumerate(said)
    ]


def worse(row: Row) -> Row:
    """The other side of a preference: the row with its worse answer, which may be missing, as its answer."""
    return {**row, "answer": row.get("rejected", "")}


def _marked(tokenizer: Any, conversations: list[list[dict[str, str]]]) -> list[RenderedRow]:
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
    return _opened(tokenizer, [[{"role": "user", "content": prompt}] for prompt in prompts])


def asking(tokenizer: Any, rows: Sequence[Row]) -> list[list[int]]:
    """Rows as they are asked: the conversation up to the answer, and the opening of the assistant's turn."""
    return _opened(tokenizer, [_conversation(row)[:-1] for row in rows])


def reply_tokens(tokenizer: Any, reply: str) -> list[int]:
    """What stands between two turns of the assistant: the user's reply, and the opening of the next turn.

    It follows the end-of-turn token. Raises ComputeFault if the template does not mark where a turn ends.
    """
    talk = [{"role": "user", "content": "."}, {"role": "assistant", "content": "."}]
    (before,) = _marked(tokenizer, [talk])
    (whole,) = _opened(tokenizer, [[*talk, {"role": "user", "content": reply}]])
    ended = len(before.answer) - before.answer[::-1].index(1) if 1 in before.answer else 0
    if not ended or whole[:ended] != before.ids[:ended] or whole[ended - 1] != tokenizer.eos_token_id:
        raise ComputeFault(
            "the chat template does not say where a turn ends; several turns need one that does"
        )
    return whole[ended:]


def _opened(tokenizer: Any, conversations: list[list[dict[str, str]]]) -> list[list[int]]:
    """Conversations up to the opening of the assistant's next turn."""
    found = tokenizer.apply_chat_template(
        conversations, tokenize=True, add_generation_prompt=True, return_dict=True
    )
    return [list(ids) for ids in found["input_ids"]]


def left_padded(rows: Sequence[Sequence[int]], fill: int) -> list[list[int]]:
    """Rows of one length, filled on the left."""
    longest = max(len(row) for row in rows)
    return [[fill] * (longest - len(row)) + list(row) for row in rows]
