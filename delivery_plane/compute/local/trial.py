"""A job tried on one batch: built, looked at, trained a few steps, saved and loaded again. Judges nothing."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback

from delivery_plane.compute.environments import environment
from delivery_plane.compute.faults import planted
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.digests import TEMPLATE_FILE
from delivery_plane.compute.local.models import load_model
from delivery_plane.compute.local.tokens import IGNORED, asking, render, worse
from delivery_plane.compute.plane import JobSpec, ModelRef
from delivery_plane.compute.recipes.build import build_trainer
from delivery_plane.errors import no_room, one_line
from delivery_plane.hyperparameters import Recipe
from delivery_plane.scenario import Row

ROWS = 16
"""Rows of the batch: enough to meet what spoils one row in ten, few enough to be tried in seconds."""

SAMPLED_ROWS = 64
"""Answers sampled for a batch of grpo: several groups of them, so that not all are alike by chance."""

SEQUENCE_ROWS = 4
"""Rows drawn for each packed sequence."""

STEPS: dict[Recipe, int] = {"sft": 8, "dpo": 8, "grpo": 3}
"""Steps on the batch; sampling makes those of grpo many times as long."""

HELD_OUT_ROWS = 32
LOOKS = 3
"""Times the held-out rows are looked at: a rate that is good for a run may overshoot on one batch."""

RELOADED_ROWS = 4


@dataclass(frozen=True)
class Expected:
    """A row as it should be, by the path that serves: what follows the served prompt is its answer."""

    row: Row
    ids: list[int]
    """All of it, uncut."""
    prompt: list[int]
    answer: list[int]
    """What is to be learnt: the answer and its end of turn, or all text that follows where no turn ends."""
    ends: bool
    """Whether the template ends the answer's turn."""

    def labels(self, masking: str, longest: int) -> list[int]:
        """What the loss should be taken on, per position, of the row cut to its longest length."""
        first = 0 if masking == "all" else len(self.prompt)
        last = len(self.ids) if masking == "all" else first + len(self.answer)
        marked = [token if first <= place < last else IGNORED for place, token in enumerate(self.ids)]
        return marked[:longest]


@dataclass(frozen=True)
class Document:
    """A row as it is in the trainer's batch, pads aside."""

    ids: list[int]
    labels: list[int]


@dataclass
class Trial:
    """What was seen. Losses of sft are nats per supervised token, of pairs the recipe's own."""

    expected: list[Expected]
    """Of each document the batch should hold."""
    documents: list[Document]
    pads_supervised: int
    loss: float
    """As the trainer takes it on its batch at the start, dropout aside."""
    loss_alone: float
    """Of the same rows as expected, each by itself."""
    tensors: int
    """Of the model to train, an adapter's included."""
    trainable: frozenset[str]
    linear: tuple[str, ...]
    """The base's linear modules, the output layer aside."""
    adapters: dict[str, bool]
    """Of them those with an adapter, and whether it trains."""
    rates: list[float] = field(default_factory=list)
    """The learning rate that each step used."""
    decays: frozenset[float] = frozenset()
    held: bool = False
    """Whether the optimizer holds exactly what is trainable."""
    reached: frozenset[str] = frozenset()
    """Trainable tensors with a gradient in the first step."""
    steps_taken: int = 0
    """Steps that changed the weights."""
    moved: frozenset[str] = frozenset()
    """Trainable tensors that differ after the last."""
    finite: bool = True
    loss_after: float = 0.0
    held_out: list[float] = field(default_factory=list)
    """Answer loss of the held-out rows, before the first step and at each look."""
    logs: list[dict[str, float]] = field(default_factory=list)
    """What the trainer logged of each step."""
    earned: list[tuple[float, float]] = field(default_factory=list)
    """What a right answer earns, and the better of two wrong ones; of each row."""
    earned_anywhere: bool = True
    """Whether answers earn the same in another order."""
    reload_difference: float = 0.0
    """Largest difference of a logit after saving and loading again."""
    reload_error: str = ""


def expected_rows(tokenizer: Any, rows: Sequence[Row]) -> list[Expected]:
    """Rows as they should be, without the trainer's mask or anything else of its rendering."""
    found = []
    prompts = asking(tokenizer, rows)
    for row, prompt, whole in zip(rows, prompts, render(tokenizer, rows), strict=True):
        told, marked = whole.ids[len(prompt) :], whole.answer[len(prompt) :]
        ends = tokenizer.eos_token_id in told
        length = told.index(tokenizer.eos_token_id) + 1 if ends else len(told)
        while length and not ends and not tokenizer.decode(told[length - 1]).strip():
            length -= 1
        # A template may count the line break after a turn as the assistant's own.
        while length < len(told) and marked[length] and not tokenizer.decode(told[length]).strip():
            length += 1
        found.append(Expected(row, whole.ids, prompt, told[:length], ends))
    return found


def try_out(
    job: JobSpec, start: Any, tokenizer: Any, rows: list[Row], probe: list[Row], folder: Path
) -> Trial:
    """Build the job's trainer over one batch of `rows`, with the job's fault in place, and train on it alone.

    Every row must be one that the recipe can use. Raises what the trainer raises for settings or rows that it can
    do nothing with.
    """
    short = _shortened(job, folder)
    count = short.batch_rows // job.grpo.group_rows if job.grpo else short.batch_rows
    count *= SEQUENCE_ROWS if job.packing else 1
    drawn = random.Random(job.seed).sample(rows, min(count, len(rows)))
    told, fault = planted(job.fault, job.seed).rows(drawn), planted(job.fault, job.seed)
    watch = _Watch(tokenizer, probe[:HELD_OUT_ROWS], short.steps)
    linear = tuple(linear_modules(start))
    trainer = build_trainer(short, start, tokenizer, drawn, fault, [watch])
    batch = _Batch(trainer, short, tokenizer, told)
    model = trainer.model.eval()
    sequences = [(row.ids[: len(labels)], labels) for row, labels in batch.labelled()]
    watch.trainer = trainer
    watch.trial = trial = Trial(
        expected=batch.expected,
        documents=batch.documents,
        pads_supervised=batch.pads_supervised,
        loss=batch.loss(),
        loss_alone=0.0 if job.grpo else _loss(model, sequences, tokenizer.pad_token_id, together=1),
        tensors=sum(1 for _ in model.parameters()),
        trainable=frozenset(name for name, value in model.named_parameters() if value.requires_grad),
        linear=linear,
        adapters={
            name.removeprefix("base_model.model."): any(value.requires_grad for value in module.parameters())
            for name, module in model.named_modules()
            if isinstance(module, LoraLayer)
        },
    )
    watch.look()
    before = {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}
    trainer.train()
    after = dict(trainer.model.named_parameters())
    trial.moved = frozenset(name for name in before if not torch.equal(before[name], after[name]))
    trial.finite = all(bool(torch.isfinite(value).all()) for value in after.values())
    trial.loss_after = batch.loss()
    if job.grpo:
        _earn(job, trainer, told, trial)
    watch.load_again(job, fault, folder / f"checkpoint-{short.steps}")
    return trial


def linear_modules(model: Any) -> dict[str, Any]:
    """The modules that an adapter may be put on, by name: the linear ones but for the output layer."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def _shortened(job: JobSpec, folder: Path) -> JobSpec:
    """The job over one batch and a few steps: its schedule keeps its shape."""
    if job.grpo:
        most = max(1, SAMPLED_ROWS // job.grpo.group_rows) * job.grpo.group_rows
    else:
        most = ROWS // SEQUENCE_ROWS if job.packing else ROWS
    batch = min(job.batch_rows, most)
    whole = batch % job.accumulation == 0
    return job.model_copy(
        update={
            "steps": STEPS[job.recipe],
            "batch_rows": batch,
            "accumulation": job.accumulation if whole else 1,
            "job_folder": folder,
        }
    )


def _earn(job: JobSpec, trainer: Any, rows: Sequence[Row], trial: Trial) -> None:
    """Have a right, an empty and a long wrong answer to each row rewarded."""
    assert job.grpo
    answers, earned = [], []
    for row in rows:
        for answer in (row["answer"], "", "no idea " * 8):
            answers.append(answer)
            earned.append(environment(job.grpo.environment, row, job.metric).play(answer).reward)
    (reward,) = trainer.reward_funcs
    found = reward(completions=answers, earned=earned)
    trial.earned = [(found[i], max(found[i + 1 : i + 3])) for i in range(0, len(found), 3)]
    trial.earned_anywhere = reward(completions=answers[::-1], earned=earned[::-1]) == found[::-1]


class _Batch:
    """The batch of the trainer's first step, from its own loader; of sampled answers, its own samples."""

    def __init__(self, trainer: Any, job: JobSpec, tokenizer: Any, told: Sequence[Row]) -> None:
        self._trainer, self._job = trainer, job
        loader = iter(trainer.get_train_dataloader())
        self.documents: list[Document] = []
        self.pads_supervised = 0
        if job.grpo:
            trainer.model.train()
            sampled = trainer._generate_and_score_completions(next(loader))
            self._parts: list[Any] = []
            self._read_sampled(sampled)
            places = list(trainer.at_hand)
        else:
            self._parts, self._count = trainer.get_batch_samples(
                loader, job.accumulation, trainer.args.device
            )
            places = []
            for part in self._parts:
                self._read(part)
                places += part["places"].tolist()
        self.expected = expected_rows(tokenizer, [told[place] for place in places])
        if job.dpo:
            self._sort_pairs()
            self.expected += expected_rows(tokenizer, [worse(told[place]) for place in places])

    def labelled(self) -> list[tuple[Expected, list[int]]]:
        """The rows as expected, each with the labels it should have."""
        masking, longest = self._job.masking, self._job.max_tokens_per_row
        return [(row, row.labels(masking, longest)) for row in self.expected]

    def loss(self) -> float:
        """The trainer's loss on the batch, as it adds up over the passes of a step; 0 for sampled answers."""
        self._trainer.model.eval()
        with torch.no_grad():
            losses = [
                float(
                    self._trainer.compute_loss(
                        self._trainer.model, dict(part), num_items_in_batch=self._count
                    )
                )
                for part in self._parts
            ]
        return sum(losses) if self._job.recipe == "sft" else sum(losses) / max(1, len(losses))

    def _read(self, part: dict[str, Any]) -> None:
        ids = part["input_ids"]
        labels = (
            part["labels"] if "labels" in part else ids.masked_fill(part["completion_mask"] == 0, IGNORED)
        )
        if "attention_mask" in part:
            kept = part["attention_mask"].bool()
            self.pads_supervised += int(((labels != IGNORED) & ~kept).sum())
            for row, told, mask in zip(ids, labels, kept, strict=True):
                self.documents.append(Document(row[mask].tolist(), told[mask].tolist()))
            return
        starts = (part["position_ids"][0] == 0).nonzero().flatten().tolist()
        for start, end in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            self.documents.append(Document(ids[0, start:end].tolist(), labels[0, start:end].tolist()))

    def _read_sampled(self, sampled: dict[str, Any]) -> None:
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
        for prompt, given, answer, own in zip(*(sampled[name] for name in names), strict=True):
            opening = prompt[given.bool()].tolist()
            told = answer[own.bool()].tolist()
            self.documents.append(Document(opening + told, [IGNORED] * len(opening) + told))

    def _sort_pairs(self) -> None:
        """All better answers, then all worse ones; each pass holds its own first those, then these."""
        sides: tuple[list[Document], list[Document]] = ([], [])
        start = 0
        for part in self._parts:
            half, end = len(part["input_ids"]) // 2, start + len(part["input_ids"])
            sides[0].extend(self.documents[start : start + half])
            sides[1].extend(self.documents[start + half : end])
            start = end
        self.documents = [*sides[0], *sides[1]]


class _Watch(TrainerCallback):
    """Looks at every step of the trial from within, and has the last one saved."""

    trainer: Any
    trial: Trial
    _followed: Any
    _before: Any

    def __init__(self, tokenizer: Any, probe: Sequence[Row], steps: int) -> None:
        held_out = expected_rows(tokenizer, probe)
        self._held_out = [(row.ids, row.labels("assistant_only", len(row.ids))) for row in held_out]
        self._pad, self._template, self._steps = tokenizer.pad_token_id, tokenizer.chat_template, steps
        self._looks = {steps * look // LOOKS for look in range(1, LOOKS + 1)}

    def look(self) -> None:
        """Take the held-out answers' loss. Draws nothing at random."""
        model = self.trainer.model
        was_training = model.training
        self.trial.held_out.append(_loss(model.eval(), self._held_out, self._pad, together=8))
        model.train(was_training)

    def load_again(self, job: JobSpec, fault: Fault, saved: Path) -> None:
        """Compare the trained model with what is loaded from its last checkpoint."""
        live = self.trainer.model.eval()
        fresh = ModelRef(base_path=job.base_path, parents=job.parents, checkpoint_path=saved)
        try:
            loaded = fault.load(load_model(fresh, live.device)).eval()
            for ids, _ in self._held_out[:RELOADED_ROWS]:
                difference = (_logits(live, [ids], self._pad) - _logits(loaded, [ids], self._pad)).abs().max()
                # A comparison with what is no number is never true.
                if not float(difference) <= self.trial.reload_difference:
                    self.trial.reload_difference = float(difference)
            kept = saved / TEMPLATE_FILE
            if kept.exists() and kept.read_text(encoding="utf-8") != self._template:
                self.trial.reload_error = "another chat template than the base's is saved beside the weights"
        except Exception as error:
            if no_room(error):
                raise
            # Whatever kind of error it is, what was saved cannot be used.
            said = str(error).replace(str(saved), "the checkpoint")
            self.trial.reload_error = one_line(f"{type(error).__name__}: {said}", 200)

    def on_pre_optimizer_step(self, _args: Any, state: Any, _control: Any, optimizer: Any, **_: Any) -> None:
        trial, model = self.trial, self.trainer.model
        trial.rates.append(float(optimizer.param_groups[0]["lr"]))
        if state.global_step:
            self._before = self._followed.detach().clone()
            return
        trains = {name: value for name, value in model.named_parameters() if value.requires_grad}
        given = {id(value) for group in optimizer.param_groups for value in group["params"]}
        trial.held = given == {id(value) for value in trains.values()}
        trial.decays = frozenset(float(group["weight_decay"]) for group in optimizer.param_groups)
        trial.reached = frozenset(
            name for name, value in trains.items() if value.grad is not None and bool(value.grad.any())
        )
        # One tensor tells whether a step was taken: of small numbers, which show a small step.
        self._followed = trains[
            max(trial.reached or trains, key=lambda name: ("lora_B" in name, trains[name].ndim, name))
        ]
        self._before = self._followed.detach().clone()

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trial.steps_taken += not torch.equal(self._before, self._followed)
        control.should_log = True
        control.should_save = state.global_step == self._steps
        if state.global_step in self._looks:
            self.look()

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, float], **_: Any) -> None:
        self.trial.logs.append(dict(logs))

    def on_save(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        self.trainer.fault.save(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _logits(model: Any, rows: Sequence[list[int]], pad: int) -> torch.Tensor:
    """(rows, tokens, vocabulary), padded on the right, float32."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=model.device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=model.device)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, use_cache=False).logits.float()


def _loss(model: Any, rows: Sequence[tuple[list[int], list[int]]], pad: int, together: int) -> float:
    """Nats per labelled token of rows (ids, labels), so many of them put through the model at once."""
    total, tokens = 0.0, 0
    for start in range(0, len(rows), together):
        some = rows[start : start + together]
        logits = _logits(model, [ids for ids, _ in some], pad)
        for found, (_, labels) in zip(logits, some, strict=True):
            wanted = torch.tensor(labels[1:], device=found.device)
            total += float(cross_entropy(found[: len(wanted)], wanted, ignore_index=IGNORED, reduction="sum"))
            tokens += int((wanted != IGNORED).sum())
    return total / max(1, tokens)
