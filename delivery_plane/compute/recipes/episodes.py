"""Answers of a policy, turn by turn, against their environments: for training and for probing. Trains nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from delivery_plane.compute.environments import Environment
from delivery_plane.compute.local.models import greedy, sampled
from delivery_plane.compute.local.tokens import left_padded, reply_tokens

_TOGETHER = 128
"""Episodes decoded in one batch."""


@dataclass
class Episode:
    """One row's turns. After the prompt, `tokens` are the policy's answers and the environment's replies."""

    prompt: list[int]
    environment: Environment
    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """Per token of `tokens`: 1 for the policy's, 0 for the environment's."""
    reward: float = 0.0
    won: bool = False
    ended_by_itself: bool = False
    """Whether the last answer came to its end of turn."""


def play(
    model: Any,
    tokenizer: Any,
    episodes: Sequence[Episode],
    max_new_tokens: int,
    max_tokens: int,
    temperature: float | None = None,
) -> None:
    """Play each episode to its end: sampled at a temperature, or greedily without one.

    An answer has at most `max_new_tokens`; an episode has no further turn for which prompt and turns would come
    to more than `max_tokens`.
    """
    was_training, configured = model.training, model.generation_config
    model.eval()
    replies: dict[str, list[int]] = {}
    going = list(episodes)
    while going:
        for start in range(0, len(going), _TOGETHER):
            _turn(model, tokenizer, going[start : start + _TOGETHER], max_new_tokens, temperature, replies)
        going = [
            episode
            for episode in going
            if episode.own[-1] == 0
            and len(episode.prompt) + len(episode.tokens) + max_new_tokens <= max_tokens
        ]
    model.generation_config = configured
    model.train(was_training)


def _turn(
    model: Any,
    tokenizer: Any,
    episodes: Sequence[Episode],
    max_new_tokens: int,
    temperature: float | None,
    replies: dict[str, list[int]],
) -> None:
    """One answer of each episode, and what the environment replies; an episode that is over gets no reply."""
    so_far = [episode.prompt + episode.tokens for episode in episodes]
    ids = torch.tensor(left_padded(so_far, tokenizer.pad_token_id), device=model.device)
    mask = torch.tensor(left_padded([[1] * len(row) for row in so_far], 0), device=model.device)
    with torch.no_grad():
        if temperature is None:
            new = greedy(model, tokenizer, ids, mask, max_new_tokens)
        else:
            new = sampled(model, tokenizer, ids, mask, max_new_tokens, temperature)
    for episode, row in zip(episodes, new.tolist(), strict=True):
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        episode.tokens += row[:end]
        episode.own += [1] * end
        episode.ended_by_itself = row[end - 1] == tokenizer.eos_token_id
        turn = episode.environment.play(tokenizer.decode(row[:end], skip_special_tokens=True))
        episode.reward, episode.won = turn.reward, turn.won
        if turn.reply is None:
            continue
        if turn.reply not in replies:
            replies[turn.reply] = reply_tokens(tokenizer, turn.reply)
        # A turn that was cut is ended for the policy, so that the next one opens as it will be served.
        ended = [] if episode.ended_by_itself else [tokenizer.eos_token_id]
        episode.tokens += ended + replies[turn.reply]
        episode.own += [0] * (len(ended) + len(replies[turn.reply]))
