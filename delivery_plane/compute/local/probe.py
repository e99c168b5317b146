"""The held-out probe and the distance from the start: what is looked at during a run. Runs in the trainer."""

from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn.functional import cross_entropy

from delivery_plane.compute.environments import environment
from delivery_plane.compute.local.decoding import SPARE_TOKENS
from delivery_plane.compute.local.models import context_tokens
from delivery_plane.compute.local.tokens import IGNORED, RenderedRow, asking, left_padded, render
from delivery_plane.compute.plane import JobSpec
from delivery_plane.compute.recipes.episodes import Episode, play
from delivery_plane.hyperparameters import EnvironmentName
from delivery_plane.scenario import Row

_LOGIT_BYTES = 1 << 28
"""Most memory the logits of one probe batch may take."""

GENERATED_ROWS = 64
"""Probe rows whose answers are generated too, at most."""


@dataclass(frozen=True)
class ProbeResult:
    """Teacher-forced: losses in nats per token of answers and of prompts; `correct`: all its tokens are the argmax."""

    loss: float
    prompt_loss: float
    correct: tuple[bool, ...]


@dataclass(frozen=True)
class Generated:
    """Greedy answers: how many, how many right, the share that ended their turn, mean length in tokens."""

    items: int
    correct: int
    ended_share: float
    tokens_mean: float


class Probe:
    """The probe rows, ready to be put through a model again and again. Nothing here draws at random."""

    def __init__(self, job: JobSpec, rows: list[Row], tokenizer: Any, device: torch.device) -> None:
        self._job, self._tokenizer = job, tokenizer
        rendered = render(tokenizer, rows)
        longest = max(len(row.ids) for row in rendered)
        size = max(1, min(64, _LOGIT_BYTES // (4 * len(tokenizer) * longest)))
        self._batches = [
            {name: value.to(device) for name, value in _batch(rendered[i : i + size], tokenizer).items()}
            for i in range(0, len(rendered), size)
        ]
        self._rows = rows[:GENERATED_ROWS]
        self._prompts = asking(tokenizer, self._rows)
        answers = tokenizer([row["answer"] for row in rows], add_special_tokens=False)["input_ids"]
        self._longest_answer = max(map(len, answers)) + 1 + SPARE_TOKENS

    def measure(self, model: Any) -> ProbeResult:
        """Losses and exact match, teacher-forced."""
        was_training = model.training
        model.eval()
        sums = {"answer": 0.0, "prompt": 0.0}
        counts = {"answer": 0, "prompt": 0}
        correct: list[bool] = []
        for batch in self._batches:
            labels = {name: batch[name][:, 1:] for name in sums}
            given = {name: value for name, value in batch.items() if name not in sums}
            with torch.no_grad():
                logits = model(**given, use_cache=False).logits[:, :-1].float()
            for name, wanted in labels.items():
                sums[name] += float(
                    cross_entropy(
                        logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORED, reduction="sum"
                    )
                )
                counts[name] += int((wanted != IGNORED).sum())
            wanted = labels["answer"]
            right = ((logits.argmax(-1) == wanted) | (wanted == IGNORED)).all(1) & (wanted != IGNORED).any(1)
            correct.extend(bool(value) for value in right)
        model.train(was_training)
        losses = {name: sums[name] / max(1, counts[name]) for name in sums}
        return ProbeResult(losses["answer"], losses["prompt"], tuple(correct))

    def generate(self, model: Any) -> Generated:
        """Greedy answers, judged by the job's metric; a game is played out."""
        job = self._job
        name: EnvironmentName = "guess-number" if job.metric == "game_won" else "answer"
        episodes = [
            Episode(prompt, environment(name, row, job.metric))
            for prompt, row in zip(self._prompts, self._rows, strict=True)
        ]
        new = job.grpo.max_new_tokens if job.grpo else self._longest_answer
        play(model, self._tokenizer, episodes, new, context_tokens(model))
        return Generated(
            items=len(episodes),
            correct=sum(episode.won for episode in episodes),
            ended_share=sum(episode.ended_by_itself for episode in episodes) / len(episodes),
            tokens_mean=sum(sum(episode.own) for episode in episodes) / len(episodes),
        )


def _batch(rows: list[RenderedRow], tokenizer: Any) -> dict[str, torch.Tensor]:
    """Rows padded on the left, as served; (rows, tokens) each. `answer` and `prompt` are labels of the two parts."""
    ids = [row.ids for row in rows]
    mask = torch.tensor(left_padded([[1] * len(row) for row in ids], 0))
    prompts = [
        [token if place < row.prompt_tokens else IGNORED for place, token in enumerate(row.ids)]
        for row in rows
    ]
    return {
        "input_ids": torch.tensor(left_padded(ids, tokenizer.pad_token_id)),
        "attention_mask": mask,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "answer": torch.tensor(left_padded([row.labels("assistant_only") for row in rows], IGNORED)),
        "prompt": torch.tensor(left_padded(prompts, IGNORED)),
    }


class Distance:
    """Euclidean distance of a model's weights from where a job started; an adapter counts as its product."""

    def __init__(self, job: JobSpec, start: Any) -> None:
        """Remember `start`, the model before its adapter is attached: a copy of every weight of a full run."""
        self._before = (
            {name: value.detach().clone() for name, value in start.named_parameters()}
            if job.lora is None
            else None
        )

    def of(self, model: Any) -> float:
        """The distance now."""
        with torch.no_grad():
            if self._before is None:
                layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
                changes = [layer.get_delta_weight(name) for layer in layers for name in layer.active_adapters]
            else:
                changes = [value - self._before[name] for name, value in model.named_parameters()]
            return float(sum(float(change.double().square().sum()) for change in changes) ** 0.5)
