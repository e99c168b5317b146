"""What trains in a job's trial, how fast, and what comes of it, check by check. Tries nothing out itself."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from delivery_plane.compute.local.trial import Trial, linear_modules
from delivery_plane.compute.plane import JobSpec
from delivery_plane.errors import one_line
from delivery_plane.facts import PreflightCheck as Check

BASE = "the base"
"""What a failure is mended by where no setting is to blame."""

COVERED_SHARE = 0.1
"""Of a block's linear modules, the least that an adapter may reach. Source: the thinnest honest choice is one kind of
module in every block, a seventh of a usual one's."""

REACHED_SHARE = 0.9
"""Of the trainable tensors, those that a first gradient must reach: experts may be left out of one batch."""

DECAYED_LIMIT = 2.0
"""Learning rate times decay, summed over the run: by so many nats decay alone would shrink the weights. Source: 0.1 at
a rate of 1e-3 over 10000 steps comes to 0.5; a decay of 30 at 4e-3 comes to 2 within 17 steps."""

FALLS_SHARE = 5e-6
"""Of a loss, what the trial's steps must take away. Source: a float32 mean is good to about 1e-7, and the weakest
honest adapter tried, of rank 1 on two kinds of modules at a rate of 1e-4 (docs/evidence/preflight.md), takes 3e-5."""

TAKEN_SHARE = 0.75
"""Of the steps with a rate above zero, those that must change the weights: the last of a schedule may be too small for
float32."""

KNOWN_LOSS = 1.5
"""Nats per token: held-out answers that the start narrows to four or five tokens may lose by one batch of others."""


def check(name: str, passed: bool, message: str, field: str) -> Check:
    return Check(name=name, passed=passed, message=message, field=field)


def of_training(job: JobSpec, trial: Trial) -> Iterator[Check]:
    """Whether what should train does, as planned, and is learnt and kept."""
    yield from _of_what_trains(job, trial)
    yield from _of_rates(job, trial)
    yield from _of_samples(job, trial)
    yield from _of_learning(job, trial)


def of_targets(job: JobSpec, model: Any) -> Check:
    """Whether every target is the name of linear modules, the output layer's excepted."""
    assert job.lora
    linear = linear_modules(model)
    wrong = []
    for target in job.lora.targets:
        found = [name for name, _ in model.named_modules() if _named(name, target)]
        if target != "all-linear" and not (found and linear.keys() >= set(found)):
            wrong.append(target)
    listed = one_line(", ".join(wrong), 200)
    kinds = one_line(", ".join(sorted({name.rpartition(".")[2] for name in linear})), 200)
    return check(
        "targets-exist",
        not wrong,
        f"{len(wrong)} of {len(job.lora.targets)} targets name nothing that can be adapted"
        f"{f': {listed}' if wrong else ''}; the base has {kinds}",
        "lora.targets",
    )


def _named(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


# --- what trains, and how fast


def _of_what_trains(job: JobSpec, trial: Trial) -> Iterator[Check]:
    blame = "lora.targets" if job.lora else BASE
    if job.lora:
        train = sum(trial.adapters.values())
        named = sum(_targeted(name, job.lora.targets) for name in trial.linear)
        beside = sum(".lora_" not in name for name in trial.trainable)
        yield check(
            "trains-as-planned",
            0 < train == named and beside == 0,
            f"{train} modules train an adapter, the targets name {named}; beside it {beside} tensors train",
            blame,
        )
        yield _covers(trial)
    else:
        yield check(
            "trains-as-planned",
            len(trial.trainable) == trial.tensors,
            f"{len(trial.trainable)} of {trial.tensors} tensors train",
            blame,
        )
    if not _all_alike(job, trial):
        # An adapter's down-matrix has no gradient as long as its up-matrix is zero.
        due = [name for name in trial.trainable if ".lora_A" not in name]
        reached = len(trial.reached & set(due))
        yield check(
            "gradient-arrives",
            reached > 0 and reached >= REACHED_SHARE * len(due),
            f"{reached} of {len(due)} tensors get a gradient in the first step",
            blame,
        )
    yield check(
        "optimizer-holds-it",
        trial.held,
        f"the optimizer {'holds' if trial.held else 'does not hold'} just the {len(trial.trainable)} trainable tensors",
        blame,
    )


def _targeted(name: str, targets: tuple[str, ...]) -> bool:
    return targets == ("all-linear",) or any(_named(name, target) for target in targets)


def _covers(trial: Trial) -> Check:
    """Whether the adapter reaches every block, and enough of it."""
    there = Counter(filter(None, map(_block, trial.linear)))
    reached = Counter(_block(name) for name, trains in trial.adapters.items() if trains)
    least = min((reached[block] / count for block, count in there.items()), default=1.0)
    return check(
        "adapter-covers",
        least >= COVERED_SHARE,
        f"{sum(reached.values())} of {len(trial.linear)} modules are adapted; in the thinnest block {least:.0%}",
        "lora.targets",
    )


def _block(name: str) -> str:
    """The block that a module lies in, as `model.layers.3`; none: "" """
    found = re.match(r".*?\.\d+(?=\.)", name)
    return found.group() if found else ""


def _of_rates(job: JobSpec, trial: Trial) -> Iterator[Check]:
    planned = _planned_rates(job, len(trial.rates))
    yield check(
        "rate-as-planned",
        all(math.isclose(*both, rel_tol=1e-4) for both in zip(trial.rates, planned, strict=True)),
        f"over {len(planned)} steps the learning rate is {_mean(trial.rates):.3g} in the mean and at most "
        f"{max(trial.rates, default=0):.3g}; planned are {_mean(planned):.3g} and {max(planned, default=0):.3g}",
        "scheduler",
    )
    decay = max(trial.decays, default=0.0)
    decayed = decay * _mean(planned) * job.steps
    yield check(
        "decay-leaves-something",
        trial.decays <= {0.0, job.weight_decay} and decayed <= DECAYED_LIMIT,
        f"weight decay is {decay:g}, planned {job.weight_decay:g}; over the run it comes to {decayed:.3g}, at most "
        f"{DECAYED_LIMIT:g} may be",
        "weight_decay",
    )


def _planned_rates(job: JobSpec, steps: int) -> list[float]:
    """The rate of each step, by the schedule's definition alone."""
    warmup = round(job.warmup_share * steps)
    shares = []
    for step in range(steps):
        gone = (step - warmup) / max(1, steps - warmup)
        if step < warmup:
            shares.append(step / warmup)
        elif job.scheduler == "linear":
            shares.append(1 - gone)
        else:
            shares.append(1.0 if job.scheduler == "constant" else (1 + math.cos(math.pi * gone)) / 2)
    return [job.learning_rate * share for share in shares]


def _mean(values: list[float]) -> float:
    return sum(values) / max(1, len(values))


# --- what is sampled


def _of_samples(job: JobSpec, trial: Trial) -> Iterator[Check]:
    if not job.grpo:
        return
    more = sum(right > wrong for right, wrong in trial.earned)
    yield check(
        "right-earns-more",
        more == len(trial.earned) and trial.earned_anywhere,
        f"{more} of {len(trial.earned)} right answers earn more than wrong ones; in another order answers earn "
        f"{'the same' if trial.earned_anywhere else 'something else'}",
        "grpo.environment",
    )
    logs = trial.logs[0]
    cut, alike = logs["completions/clipped_ratio"], logs["frac_reward_zero_std"]
    yield check(
        "samples-end",
        cut < 1,
        f"{cut:.0%} of the sampled answers are cut at {job.grpo.max_new_tokens} tokens",
        "grpo.max_new_tokens",
    )
    yield check(
        "groups-differ",
        not _all_alike(job, trial),
        f"in {alike:.0%} of the groups all answers earn the same; answers earn {logs['reward']:.3f} in the mean",
        "grpo.max_new_tokens" if cut == 1 else "grpo.temperature" if job.grpo.temperature < 0.1 else "grpo",
    )


def _all_alike(job: JobSpec, trial: Trial) -> bool:
    """Whether nothing sampled in the first step could be told apart by what it earned."""
    return bool(job.grpo) and trial.logs[0]["frac_reward_zero_std"] == 1


# --- what is learnt, and kept


def _of_learning(job: JobSpec, trial: Trial) -> Iterator[Check]:
    due = sum(rate > 0 for rate in trial.rates)
    blame = _weakest(job)
    moved = len(trial.moved)
    if not _all_alike(job, trial):
        yield check(
            "steps-are-taken",
            due > 0
            and trial.steps_taken >= TAKEN_SHARE * due
            and trial.finite
            and moved >= REACHED_SHARE * len(trial.trainable),
            f"{trial.steps_taken} of {len(trial.rates)} steps change the weights, {moved} of {len(trial.trainable)} "
            f"trainable tensors in the end; all are {'' if trial.finite else 'not '}finite",
            blame,
        )
    if not job.grpo:
        yield check(
            "batch-is-learnt",
            trial.loss - trial.loss_after >= FALLS_SHARE * trial.loss > 0,
            f"{len(trial.rates)} steps on one batch take its loss from {trial.loss:.4f} to {trial.loss_after:.4f}",
            blame,
        )
    yield from _of_held_out(job, trial, blame)
    yield check(
        "loads-again-the-same",
        not trial.reload_error and trial.reload_difference == 0,
        trial.reload_error
        or f"saved and loaded again, logits differ by at most {trial.reload_difference:.3g} from the live model's",
        "lora" if job.lora else BASE,
    )


def _weakest(job: JobSpec) -> str:
    """The setting that most likely keeps a job from learning: one far below what is used anywhere, or the rate."""
    if job.lora and job.lora.alpha < 0.1 * job.lora.rank:
        return "lora.alpha"
    if job.dpo and job.dpo.beta < 1e-3:
        return "dpo.beta"
    return "max_grad_norm" if job.max_grad_norm < 1e-6 else "learning_rate"


def _of_held_out(job: JobSpec, trial: Trial, blame: str) -> Iterator[Check]:
    if _all_alike(job, trial):
        return
    first, *looks = trial.held_out
    low = min(looks, default=math.nan)
    falls = first - low >= FALLS_SHARE * first
    # Neither pairs nor rewards ask for the given answers to become likelier, nor does one batch for what is known.
    moves = any(look != first for look in looks) and all(map(math.isfinite, looks))
    yield check(
        "held-out-answers-move",
        falls or (moves and (job.recipe != "sft" or first <= KNOWN_LOSS)),
        f"the loss of {len(looks)} looks at held-out answers: {first:.4f} at the start, then "
        f"{', '.join(f'{look:.4f}' for look in looks)}",
        blame,
    )
