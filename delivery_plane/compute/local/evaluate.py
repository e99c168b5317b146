"""A suite answered greedily and judged by program, as lm-eval's run of its task. Caches nothing, compares no models."""

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from lm_eval.api.filter import Filter
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from delivery_plane.compute.environments import environment
from delivery_plane.compute.faults import planted
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.graders import grade
from delivery_plane.compute.local.decoding import BATCH, asked, decoding_digest, new_tokens
from delivery_plane.compute.local.digests import file_digest, reference_digest, tokenizer_digest
from delivery_plane.compute.local.models import (
    context_tokens,
    greedy,
    load_model,
    load_tokenizer,
    use_device,
)
from delivery_plane.compute.local.tokens import asking, left_padded, serving_prompts
from delivery_plane.compute.plane import ModelRef, Scored, Suite
from delivery_plane.compute.recipes.episodes import Episode, play
from delivery_plane.errors import ComputeFault
from delivery_plane.rows import read_rows
from delivery_plane.scenario import Metric, Row

SUITES = Path(__file__).parent / "suites"
"""A task for each metric, as lm-eval reads them."""


def score(model: ModelRef, suite: Suite, fault_name: str | None, device_name: str) -> Scored:
    """Every item answered and judged, in the suite's order."""
    started = time.perf_counter()
    device = use_device(device_name)
    fault = planted(fault_name, 0)
    tokenizer = load_tokenizer(model.base_path)
    loaded = load_model(model, device)
    if model.checkpoints:
        loaded = fault.load(loaded)
    language_model = Greedy(loaded, tokenizer, fault)
    samples = run(language_model, load_task(suite, tokenizer))
    answers = tuple(sample["filtered_resps"][0][0] for sample in samples)
    return Scored(
        model_digest=reference_digest(model),
        items_digest=file_digest(suite.items),
        metric=suite.metric,
        indices=suite.indices,
        answers=answers,
        correct=tuple(sample["right"] == 1.0 for sample in samples),
        empty_answers=sum(not text.strip() for text in answers),
        generated_tokens=language_model.generated_tokens,
        device_seconds=time.perf_counter() - started,
        decoding_digest=decoding_digest(),
        template_digest=tokenizer_digest(model.base_path),
    )


def load_task(suite: Suite, tokenizer: Any) -> Any:
    """The suite as a task of lm-eval, with the answers' end and length set for this tokenizer."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # The default task index takes twenty seconds to read, and none of its tasks is wanted.
    manager = TaskManager(
        include_defaults=False,
        include_path=SUITES,
        metadata={"items": str(suite.items), "indices": suite.indices, "metric": suite.metric},
    )
    task = manager.load([suite.metric])["tasks"][suite.metric]
    # Of the whole file: an item's answer must not depend on which others are asked.
    every = [row["answer"] for row in read_rows(suite.items)]
    longest = max(len(ids) for ids in tokenizer(every, add_special_tokens=False)["input_ids"])
    ends = {"until": [tokenizer.eos_token], "max_gen_toks": new_tokens(suite.metric, longest)}
    task.set_config("generation_kwargs", ends, update=True)
    return task


def run(language_model: LM, task: Any) -> list[dict[str, Any]]:
    """What lm-eval says of each item, in the suite's order. Raises ComputeFault when one is missing."""
    name = task.config.task
    results = evaluate(lm=language_model, task_dict={"tasks": {name: task}}, bootstrap_iters=0)
    samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
    if [sample["doc_id"] for sample in samples] != list(range(len(task.eval_docs))):
        raise ComputeFault(f"{name}: {len(samples)} of {len(task.eval_docs)} items were scored")
    return samples


def answers(model: ModelRef, prompts: list[str], max_new_tokens: int, device_name: str) -> list[str]:
    """Greedy answers one by one, each in a batch of its own: the very shapes that serving uses."""
    device = use_device(device_name)
    tokenizer = load_tokenizer(model.base_path)
    loaded = load_model(model, device)
    found = []
    for ids in serving_prompts(tokenizer, prompts):
        tokens = torch.tensor([ids], device=device)
        new = greedy(loaded, tokenizer, tokens, torch.ones_like(tokens), max_new_tokens)
        found.append(tokenizer.decode(new[0], skip_special_tokens=True).strip())
    return found


class Greedy(LM):  # type: ignore[misc,unused-ignore]
    """A model as lm-eval asks it: the base's template, greedy decoding to the end of turn, tokens counted.

    A prompt that leaves no room in the context for one token has no answer, as it would have none when served.
    """

    def __init__(self, model: Any, tokenizer: Any, fault: Fault) -> None:
        super().__init__()
        self.generated_tokens = 0
        self._model, self._tokenizer, self._fault = model, tokenizer, fault
        self._context = context_tokens(model)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """An answer for each request, as text; of a game, its turns, a line each."""
        del disable_tqdm
        settings = requests[0].args[1]
        end = self._tokenizer.eos_token
        if settings["until"] != [end]:
            raise ComputeFault(f"decoding stops at {end}, the task asks for {settings['until']}")
        # From the row, not lm-eval's text of it: that has room for the prompt alone.
        asked_as = asking(self._tokenizer, [request.doc for request in requests])
        prompts = [self._fault.evaluate(ids, self._tokenizer) for ids in asked_as]
        if requests[0].task_name == "game_won":
            return self._played(prompts, [request.doc for request in requests], settings["max_gen_toks"])
        return self._answered(prompts, settings["max_gen_toks"])

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """No suite asks for it."""
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood

    def _answered(self, prompts: Sequence[list[int]], most: int) -> list[str]:
        """One answer per prompt, of at most `most` tokens."""
        found = [""] * len(prompts)
        for places, room in self._batches(prompts, most):
            given = [prompts[place] for place in places]
            ids = torch.tensor(left_padded(given, self._tokenizer.pad_token_id), device=self._model.device)
            mask = torch.tensor(left_padded([[1] * len(row) for row in given], 0), device=self._model.device)
            new = greedy(self._model, self._tokenizer, ids, mask, room)
            for place, row in zip(places, new.tolist(), strict=True):
                found[place] = self._text(row)
        return found

    def _batches(self, prompts: Sequence[list[int]], most: int) -> Iterator[tuple[list[int], int]]:
        """Places of prompts to answer together, and how many tokens their answers may have."""
        rooms = [min(most, self._context - len(ids)) for ids in prompts]
        # Longest first, so that little is padded; what has less room than others must not shorten theirs.
        order = sorted(range(len(prompts)), key=lambda place: (rooms[place], -len(prompts[place])))
        for room, group in groupby(order, key=rooms.__getitem__):
            places = list(group)
            for start in range(0, len(places) if room > 0 else 0, BATCH):
                yield places[start : start + BATCH], room

    def _played(self, prompts: Sequence[list[int]], docs: Sequence[Row], most: int) -> list[str]:
        """The turns of each game, of at most `most` tokens each; a game whose prompt fills the context has none."""
        episodes = [
            Episode(ids, environment("guess-number", row, "game_won"))
            for ids, row in zip(prompts, docs, strict=True)
        ]
        roomy = [episode for episode in episodes if len(episode.prompt) + most <= self._context]
        play(self._model, self._tokenizer, roomy, most, self._context)
        found = []
        for episode in episodes:
            runs = groupby(zip(episode.own, episode.tokens, strict=True), key=lambda pair: pair[0])
            turns = [self._text([token for _, token in run]) for own, run in runs if own]
            # A turn is a line, whatever it holds: no turn can pass for two.
            found.append("\n".join(" ".join(turn.split()) for turn in turns))
        return found

    def _text(self, ids: list[int]) -> str:
        """Generated tokens up to the end of turn as text; counts them."""
        end = self._tokenizer.eos_token_id
        kept = ids[: ids.index(end) + 1] if end in ids else ids
        self.generated_tokens += len(kept)
        return self._tokenizer.decode(kept, skip_special_tokens=True)


def documents(
    items: str, metric: Metric, indices: Sequence[int] | None = None, **_: Any
) -> dict[str, Dataset]:
    """The rows a task asks, for lm-eval. In memory: its own loader would copy each split below the home folder."""
    chosen = None if indices is None else tuple(indices)
    rows = asked(Suite(items=Path(items), metric=metric, indices=chosen))
    fields = {"row_id": "", "prompt": "", "turns": [], "answer": "", "tests": ""}
    columns = {name: [row.get(name, missing) for row in rows] for name, missing in fields.items()}
    return {"test": Dataset.from_dict(columns)}


def prompt(doc: Row) -> str:
    """What is asked."""
    return doc["prompt"]


def answer(doc: Row) -> str:
    """The right answer, or one of them."""
    return doc["answer"]


class Graded(Filter):  # type: ignore[misc,unused-ignore]
    """Each answer with whether it is right: all at once, since code is run in a process that takes time to start."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def apply(self, resps: Sequence[Sequence[str]], docs: Sequence[Row]) -> list[tuple[str, bool]]:
        """See Filter."""
        said = [answers[0] for answers in resps]
        if self._metric == "game_won":
            return [(turns, _won(row, turns)) for row, turns in zip(docs, said, strict=True)]
        return list(zip(said, grade(self._metric, docs, said), strict=True))


def right(_doc: Row, found: Sequence[tuple[str, bool]]) -> dict[str, float]:
    """The metric of one item: 1 for a right answer."""
    return {"right": float(found[0][1])}


def _won(row: Row, turns: str) -> bool:
    """Whether a game that went like this was won: it is played again with these turns."""
    game = environment("guess-number", row, "game_won")
    for said in turns.split("\n"):
        turn = game.play(said)
        if turn.reply is None:
            return turn.won
    return False
