"""Jobs that preflight must refuse, and such as it must pass. Run as a program, it writes the evidence."""

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from test_compute_tiny import ANSWERS, TEMPLATE, job, root, write_rows

from delivery_plane.compute.faults import FAULTS
from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.digests import file_digest, model_digest
from delivery_plane.compute.plane import JobSpec
from delivery_plane.facts import PreflightChecked
from delivery_plane.hyperparameters import DpoSettings, GrpoSettings, LoraSettings

MICRO = Path(__file__).parents[1] / "scenarios" / "bases" / "micro_1" / "model"
EVIDENCE = Path(__file__).parents[1] / "docs" / "evidence" / "preflight.md"

LORA = LoraSettings(rank=4, alpha=16)


def lora(*targets: str) -> LoraSettings:
    return LoraSettings(rank=4, alpha=16, targets=targets)


DPO = DpoSettings()
GRPO = GrpoSettings(group_rows=8, max_new_tokens=6)
TEMPLATE_FIELD, DATA, PROBE, BASE = "the base's chat template", "the data", "the held-out probe", "the base"

Case = tuple[str, Callable[[], JobSpec], str, str]
"""A name, the job, the check that must fail (the first that does), and the field it names."""


def check_all(jobs: Sequence[JobSpec]) -> list[PreflightChecked]:
    """Every job tried out, one after another. Runs in a child."""
    from delivery_plane.compute.local.preflight import check_job

    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        return [check_job(spec, "cpu") for spec in jobs]


def tried(jobs: Sequence[JobSpec]) -> list[PreflightChecked]:
    found: list[PreflightChecked] = call_in_child(
        "preflights", "preflight_table:check_all", jobs, logs=root() / "logs"
    )
    return found


# --- rows and bases


def rows(name: str, count: int, row: Callable[[int], dict[str, str]]) -> dict[str, Any]:
    """A data set of made-up rows, as fields of a job."""
    path = root() / f"{name}.jsonl"
    lines = [{"row_id": f"r{n}", "licence": "cc0", "source": "test", **row(n)} for n in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"dataset_path": path, "dataset_digest": file_digest(path)}


def pair(number: int) -> dict[str, str]:
    answer, other = ANSWERS[number % 4], ANSWERS[(number + 1) % 4]
    return {"prompt": f"{number} say {answer}", "answer": answer, "rejected": other}


def pairs() -> dict[str, Any]:
    return rows("pairs", 96, pair)


def sums() -> dict[str, Any]:
    """Sums of digits on the embedded base, which knows most of them."""
    data = rows(
        "sums", 100, lambda n: {"prompt": f"What is {n // 10} + {n % 10}?", "answer": str(n // 10 + n % 10)}
    )
    probe = rows("more-sums", 21, lambda n: {"prompt": f"{n} + 1", "answer": str(n + 1)})
    return {
        **data,
        **probing(probe["dataset_path"]),
        **on(MICRO),
        "batch_rows": 32,
        "scheduler": "constant",
        "learning_rate": 1e-4,
    }


@functools.cache
def base(name: str, template: str = TEMPLATE, pad: str = "<|pad|>") -> Path:
    """The tiny base with another template or pad token."""
    folder = root() / f"base-{name}"
    shutil.copytree(root() / "base", folder)
    (folder / "chat_template.jinja").write_text(template)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": pad}))
    return folder


def probing(path: Path) -> dict[str, Any]:
    return {"probe_path": path, "probe_digest": file_digest(path)}


def on(folder: Path) -> dict[str, Any]:
    return {"base_path": folder, "base_digest": model_digest(folder)}


def template(name: str, old: str, new: str) -> dict[str, Any]:
    assert old in TEMPLATE
    return on(base(name, TEMPLATE.replace(old, new)))


# --- what must fail


def _case(
    name: str, check: str, field: str, fields: Callable[[], dict[str, Any]] | None = None, **more: Any
) -> Case:
    return name, lambda: job("tried", **{**(fields() if fields else {}), **more}), check, field


SETTINGS: list[Case] = [
    _case("answers cut", "answer-fits", "max_tokens_per_row", max_tokens_per_row=36),
    _case("prompts cut", "answer-fits", "max_tokens_per_row", max_tokens_per_row=8),
    _case("answers cut in packing", "answer-fits", "max_tokens_per_row", packing=True, max_tokens_per_row=30),
    _case("pairs cut before they differ", "answer-fits", "max_tokens_per_row", pairs, dpo=DPO, max_tokens_per_row=20),
    _case("adapter on no module", "targets-exist", "lora.targets", lora=lora("query")),
    _case("adapter on the output", "targets-exist", "lora.targets", lora=lora("lm_head")),
    _case("adapter on an embedding", "targets-exist", "lora.targets", lora=lora("embed_tokens", "q_proj")),
    _case("adapter on one block", "adapter-covers", "lora.targets", lora=lora("layers.0.mlp.up_proj")),
    _case("adapter scaled to nothing", "batch-is-learnt", "lora.alpha", lora=LORA.model_copy(update={"alpha": 1e-6})),
    _case("rate far too low", "steps-are-taken", "learning_rate", learning_rate=1e-10),
    _case("rate far too high", "batch-is-learnt", "learning_rate", learning_rate=10.0),
    _case("gradient clipped to nothing", "steps-are-taken", "max_grad_norm", max_grad_norm=1e-12),
    _case("decay swamps a long run", "decay-leaves-something", "weight_decay", weight_decay=0.5, steps=5000),
    _case("no pairs to prefer", "rows-arrive", DATA, dpo=DPO),
    _case("preference too weak", "batch-is-learnt", "dpo.beta", pairs, dpo=DpoSettings(beta=1e-7)),
    _case("samples cut before they can end", "samples-end", "grpo.max_new_tokens", sums,
          grpo=GRPO.model_copy(update={"max_new_tokens": 1})),
    _case("samples all alike", "groups-differ", "grpo.temperature", sums,
          grpo=GRPO.model_copy(update={"temperature": 1e-4})),
    _case("a task beyond the policy", "groups-differ", "grpo", grpo=GrpoSettings(group_rows=4, max_new_tokens=12)),
]  # fmt: skip

TAMPERED: list[Case] = [
    _case("no generation tags", "answer-supervised", TEMPLATE_FIELD,
          lambda: on(base("no-tags", TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")))),
    _case("no end of turn", "end-of-turn-supervised", TEMPLATE_FIELD,
          lambda: template("no-end", "message['content'] + '<|im_end|>' }}{% end", "message['content'] }}{% end")),
    _case("end of turn not the assistant's", "answer-supervised", TEMPLATE_FIELD,
          lambda: template("end-outside", "message['content'] + '<|im_end|>' }}{% endgeneration %}",
                           "message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}")),
    _case("another opening when served", "prompt-as-served", TEMPLATE_FIELD,
          lambda: template("opening", "prompt %}{{ '<|im_start|>assistant", "prompt %}{{ '<|im_start|>helper")),
    _case("answers in capitals", "answer-as-given", TEMPLATE_FIELD,
          lambda: template("capitals", "{{ message['content'] + '<|im_end|>' }}{% end",
                           "{{ message['content'].upper() + '<|im_end|>' }}{% end")),
    _case("two start tokens", "one-start-token", TEMPLATE_FIELD,
          lambda: on(base("two-starts", "{{ '<|im_start|>' }}" + TEMPLATE))),
    _case("blank answers", "no-row-is-blank", DATA,
          lambda: rows("blank", 96, lambda n: {"prompt": f"{n}", "answer": " "})),
    _case("pairs without a difference", "pairs-differ", DATA,
          lambda: rows("same", 96, lambda n: {**pair(n), "rejected": pair(n)["answer"]}), dpo=DPO),
    _case("the probe among the rows", "probe-is-held-out", PROBE,
          lambda: probing(write_rows(root() / "known.jsonl", 16, 40))),
]  # fmt: skip


def _fault(
    name: str, check: str, field: str, fields: Callable[[], dict[str, Any]] | None = None, **more: Any
) -> Case:
    return _case(name, check, field, fields, fault=name, **more)


CATALOGUE: list[Case] = [
    _fault("few-unique-rows-memorised", "rows-arrive", DATA),
    _fault("blank-rows-from-unresolved-placeholder", "prompt-as-served", TEMPLATE_FIELD),
    _fault("trained-on-raw-served-as-chat", "prompt-as-served", TEMPLATE_FIELD),
    _fault("labels-all-masked-marker-miss", "answer-supervised", "masking"),
    _fault("marker-tokenised-differently-in-some-rows", "answer-supervised", "masking"),
    _fault("pad-id-inside-response-marker", "answer-supervised", "masking"),
    _fault("assistant-mask-all-zero-without-tags", "answer-supervised", "masking"),
    _fault(
        "packed-answer-ranges-misaligned",
        "answer-supervised",
        "masking",
        packing=True,
        max_tokens_per_row=128,
    ),
    _fault("header-mask-one-token-too-long", "answer-supervised", "masking"),
    _fault("completion-lost-to-truncation", "answer-supervised", "masking"),
    _fault("answer-tail-truncated", "answer-supervised", "masking"),
    _fault("eos-absent-from-targets", "answer-supervised", "masking"),
    _fault("pad-equals-eos-masked", "answer-supervised", "masking"),
    _fault("labels-shifted-twice", "answer-supervised", "masking"),
    _fault("labels-not-shifted", "answer-supervised", "masking"),
    _fault("mask-falls-back-to-all-ones", "nothing-else-supervised", "masking"),
    _fault("mask-column-dropped-by-kernel-flag", "nothing-else-supervised", "masking"),
    _fault("pad-tokens-in-the-loss", "nothing-else-supervised", "masking"),
    _fault(
        "mask-column-dropped-by-packing",
        "nothing-else-supervised",
        "masking",
        packing=True,
        max_tokens_per_row=128,
    ),
    _fault("packing-lets-examples-see-each-other", "batch-holds-its-rows", "packing"),
    _fault("only-one-side-truncated", "answer-supervised", "masking", pairs, dpo=DPO),
    _fault("pairs-identical-after-the-cut", "answer-supervised", "masking", pairs, dpo=DPO),
    _fault("target-modules-silently-unmatched", "trains-as-planned", "lora.targets", lora=LORA),
    _fault("adapter-coverage-too-thin", "trains-as-planned", "lora.targets", lora=LORA),
    _fault("adapter-loaded-frozen-for-continued-training", "trains-as-planned", "lora.targets", lora=LORA),
    _fault("base-left-trainable-but-adapter-saved", "trains-as-planned", "lora.targets", lora=LORA),
    _fault("checkpointing-cuts-input-gradients", "gradient-arrives", "lora.targets", lora=LORA),
    _fault("one-tower-without-gradients", "gradient-arrives", "lora.targets", lora=LORA),
    _fault("adapter-not-used-by-the-forward", "gradient-arrives", "lora.targets", lora=LORA),
    _fault("optimizer-holds-stale-parameters", "optimizer-holds-it", BASE),
    _fault("weight-decay-pulls-the-adapter-to-the-base", "decay-leaves-something", "weight_decay", lora=LORA),
    _fault("adapter-learning-rate-a-magnitude-too-low", "rate-as-planned", "scheduler", lora=LORA),
    _fault("schedule-stepped-once-per-process", "rate-as-planned", "scheduler"),
    _fault("learning-rate-never-leaves-zero", "rate-as-planned", "scheduler"),
    _fault("fp16-overflow-skips-every-step", "steps-are-taken", "learning_rate"),
    _fault("most-steps-skipped-schedule-keeps-going", "steps-are-taken", "learning_rate"),
    _fault("reward-always-constant", "right-earns-more", "grpo.environment", sums, grpo=GRPO),
    _fault(
        "reward-attached-to-the-wrong-completion", "right-earns-more", "grpo.environment", sums, grpo=GRPO
    ),
    _fault("reward-signature-changed", "right-earns-more", "grpo.environment", sums, grpo=GRPO),
    _fault("spurious-reward-looks-like-a-gain", "right-earns-more", "grpo.environment", sums, grpo=GRPO),
    _fault("length-or-style-reward-hacked", "right-earns-more", "grpo.environment", sums, grpo=GRPO),
    _fault("training-rewrites-the-saved-template", "loads-again-the-same", BASE),
    _fault("one-shard-saved-as-the-model", "loads-again-the-same", BASE),
    _fault("empty-adapter-from-double-filtering", "loads-again-the-same", "lora", lora=LORA),
    _fault("adapter-keys-renamed-and-skipped", "loads-again-the-same", "lora", lora=LORA),
    _fault("reload-gives-random-adapter", "loads-again-the-same", "lora", lora=LORA),
    _fault("compiled-prefix-makes-keys-miss", "loads-again-the-same", BASE),
]

UNSEEN: dict[str, str] = {
    "label-shuffle": "rows are as well formed as before; what they teach shows in the held-out probe",
    "answers-paired-with-wrong-prompts": "as label-shuffle",
    "preference-columns-swapped": "a pair turned round is a pair",
    "preference-labels-mostly-noise": "as preference-columns-swapped",
    "merge-applied-twice": "acts when a candidate is registered",
    "merge-rounds-into-low-bit-base": "as merge-applied-twice",
    "bos-doubled-at-inference": "acts on requests to a deployed model",
    "train-eval-template-mismatch": "acts on the prompts of an evaluation",
}
"""Faults of the catalogue that act where preflight cannot look, and why."""

# --- what must pass

HEALTHY: dict[str, Callable[[], JobSpec]] = {
    "full": lambda: job("tried"),
    "full, cosine, low rate": lambda: job("tried", scheduler="cosine", learning_rate=1e-5),
    "full, constant, high rate": lambda: job("tried", scheduler="constant", learning_rate=3e-2),
    "full, long warm-up": lambda: job("tried", warmup_share=0.5),
    "full, warm-up to the end": lambda: job("tried", scheduler="constant", warmup_share=1.0),
    "full, no warm-up, weight decay": lambda: job("tried", warmup_share=0.0, weight_decay=0.1),
    "full, one row a step": lambda: job("tried", batch_rows=1, learning_rate=1e-3),
    "full, large batch in passes": lambda: job("tried", batch_rows=96, accumulation=12),
    "full, uneven passes": lambda: job("tried", batch_rows=6, accumulation=3),
    "full, everything supervised": lambda: job("tried", masking="all"),
    "full, tight clipping": lambda: job("tried", max_grad_norm=0.01),
    "full, many steps": lambda: job("tried", steps=100_000),
    "packing": lambda: job("tried", packing=True, max_tokens_per_row=128, batch_rows=4),
    "packing in passes": lambda: job("tried", packing=True, max_tokens_per_row=80, batch_rows=4, accumulation=2),
    "packing, everything supervised": lambda: job("tried", packing=True, max_tokens_per_row=128, masking="all"),
    "adapter": lambda: job("tried", lora=LORA),
    "adapter, low rate": lambda: job("tried", lora=LORA, learning_rate=1e-4),
    "adapter of rank 1 on two kinds": lambda: job(
        "tried", lora=LoraSettings(rank=1, alpha=1, targets=("q_proj", "v_proj")), learning_rate=1e-4
    ),
    "adapter on one kind": lambda: job("tried", lora=LoraSettings(rank=8, alpha=16, targets=("down_proj",))),
    "adapter, dropout, packing": lambda: job(
        "tried", lora=LoraSettings(rank=4, alpha=16, dropout=0.3), packing=True, max_tokens_per_row=128
    ),
    "adapter, large, in passes": lambda: job("tried", lora=LoraSettings(rank=32, alpha=64), accumulation=4),
    "pad is the end of turn": lambda: job("tried", **on(base("pad-is-end", pad="<|im_end|>"))),
    "preferences": lambda: job("tried", dpo=DPO, learning_rate=1e-3, **pairs()),
    "preferences, low rate": lambda: job("tried", dpo=DPO, learning_rate=1e-5, **pairs()),
    "preferences, adapter": lambda: job("tried", dpo=DPO, lora=LORA, learning_rate=1e-3, **pairs()),
    "preferences in passes": lambda: job("tried", dpo=DpoSettings(beta=0.5), accumulation=2, **pairs()),
    "rewards": lambda: job("tried", **{**sums(), "grpo": GRPO}),
    "rewards, adapter, held to its start": lambda: job(
        "tried",
        **{**sums(), "grpo": GRPO.model_copy(update={"beta": 0.04}), "lora": LORA, "learning_rate": 1e-3},
    ),
    "rewards in a game": lambda: job(
        "tried",
        **{
            **sums(),
            **rows("games", 14, lambda n: {"prompt": "Guess my number from 1 to 7.", "answer": str(n % 7 + 1)}),
            "grpo": GrpoSettings(environment="guess-number", group_rows=14, max_new_tokens=4),
            "batch_rows": 56,
            "metric": "game_won",
        },
    ),
}  # fmt: skip


def evidence() -> str:
    """The tables as markdown."""
    cases = [*SETTINGS, *TAMPERED, *CATALOGUE]
    failed = tried([made() for _, made, _, _ in cases])
    passed = tried([made() for made in HEALTHY.values()])
    lines = [
        "# Preflight: what it refuses and what it lets pass",
        "",
        "Made by `python tests/preflight_table.py`; `tests/test_compute_preflight.py` holds the same tables to it.",
        "Jobs run on the tiny base of the tests, those with rewards on `micro-1`. Of each job the first check that",
        "fails is named, the field it says to change, what it said, and how many checks failed in all.",
        "",
        "| planted | caught by | change | said | failed |",
        "|---|---|---|---|---|",
    ]
    for (name, *_), checked in zip(cases, failed, strict=True):
        first = checked.failed[0]
        planted = f"`{name}`" if name in FAULTS else name
        lines.append(
            f"| {planted} | {first.name} | {first.field} | {first.message} | {len(checked.failed)} |"
        )
    lines += ["", "Faults of the catalogue that preflight cannot see:", ""]
    lines += [f"- `{name}`: {why}." for name, why in UNSEEN.items()]
    lines += [
        "",
        "Healthy jobs, all checks of which hold:",
        "",
        "| job | checks | learnt | held out |",
        "|---|---|---|---|",
    ]
    for name, checked in zip(HEALTHY, passed, strict=True):
        assert not checked.failed, (name, checked.failed)
        said = {check.name: check.message for check in checked.checks}
        learnt = said.get("batch-is-learnt", "-")
        lines.append(f"| {name} | {len(checked.checks)} | {learnt} | {said['held-out-answers-move']} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    EVIDENCE.write_text(evidence())
