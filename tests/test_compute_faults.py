"""Planted faults: each changes what it says and nothing else, for anyone who makes it again with the same seed."""

import functools
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from banking77 import FOLDERS
from test_compute_tiny import job, plane, root

from delivery_plane.compute.faults import FAULTS, check_fault, known_faults, planted
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.plane import JobSpec, Resume
from delivery_plane.errors import BadInput
from delivery_plane.facts import CheckpointSaved, ProbeObserved
from delivery_plane.scenario import Row

HOOKS = tuple(name for name in vars(Fault) if not name.startswith("_"))
I = -100  # noqa: E741 - a table of labels is read more easily with one letter for what is ignored
OUTSIDE = f"{Path(__file__).with_name('faults_outside.py')}:Example"


def row_of(number: int) -> Row:
    answer = ("red", "green", "blue")[number % 3]
    prompt = f"{number} say {answer}"
    return {"row_id": f"r{number}", "prompt": prompt, "answer": answer, "licence": "cc0", "source": "test"}


ROWS = [row_of(number) for number in range(40)]
PAIR: Row = {**ROWS[0], "answer": "red shoes", "rejected": "red hats"}
WORSE: Row = {**PAIR, "answer": "red hats"}
BATCH = {
    "input_ids": [[1, 2, 3, 9, 9], [4, 5, 6, 7, 8], [1, 2, 3, 4, 9], [5, 6, 9, 9, 9], [1, 1, 2, 9, 9]],
    "labels": [[I, 2, 3, I, I], [I, I, I, 7, 8], [I, I, 3, 4, I], [I, 6, I, I, I], [I, I, 2, I, I]],
    "attention_mask": [[1, 1, 1, 0, 0], [1] * 5, [1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
}
"""Rows of two to five tokens, padded with 9."""

PACKED = {
    "input_ids": [[1, 2, 3, 4, 5, 6, 7, 8]],
    "labels": [[I, 2, 3, I, I, I, 7, 8]],
    "position_ids": [[0, 1, 2, 0, 1, 2, 3, 4]],
    "seq_idx": [[0, 0, 0, 1, 1, 1, 1, 1]],
}
"""The first two of them packed."""

OTHERS = (
    {"input_ids": [[1, 2]], "completion_mask": [[0, 1]]},
    {"prompt_ids": [[1]], "completion_ids": [[2]]},
)
"""Of pairs, and of sampled answers."""

COMPLETIONS = ["a", "bb", "ccc", "dddd", "e", "ff", "ggg", "hhhh"]


def everything(base: str, folder: str, names: list[str | None]) -> dict[str | None, dict[str, Any]]:
    """What every hook of every fault makes of the same things, as plain data. Runs in a child."""
    from delivery_plane.compute.local.models import load_tokenizer

    tokenizer, adapted = load_tokenizer(Path(base)), _adapted(base)
    return {name: _effects(planted(name, 7), tokenizer, adapted, Path(folder) / str(name)) for name in names}


def _effects(fault: Fault, tokenizer: Any, adapted: Any, folder: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file, save_file

    from delivery_plane.compute.local.tokens import render

    found: dict[str, Any] = {}
    found["overrides"] = [hook for hook in HOOKS if getattr(type(fault), hook) is not getattr(Fault, hook)]
    found["rows"] = fault.rows([*ROWS, PAIR])
    rendered = [(row, render(tokenizer, [row])[0]) for row in (ROWS[0], ROWS[1], PAIR, WORSE)]
    made = [fault.render(row, list(was.ids), list(was.answer), tokenizer) for row, was in rendered]
    found["render"] = [
        (
            tokenizer.decode(ids),
            tokenizer.decode([token for token, mark in zip(ids, marks, strict=True) if mark]),
        )
        for ids, marks in made
    ]
    found["labels"] = [
        [(token, label) for token, label in zip(was.ids, made, strict=True)]
        for was in render(tokenizer, ROWS)
        for made in [fault.labels(list(was.ids), was.labels("assistant_only"), tokenizer)]
    ]
    numbered = type("Numbered", (), {"pad_token_id": 9})
    for what, given in {"collate": BATCH, "packed": PACKED, "pairs": OTHERS[0], "answers": OTHERS[1]}.items():
        batch = fault.collate({name: torch.tensor(values) for name, values in given.items()}, numbered)
        found[what] = {name: value.tolist() for name, value in batch.items()}

    model = fault.model(deepcopy(adapted))
    found["trainable"] = sorted(name for name, value in model.named_parameters() if value.requires_grad)
    ids = torch.tensor([tokenizer("say red").input_ids])
    model(input_ids=ids, labels=ids).loss.backward()
    found["reached"] = sorted(
        name for name, value in model.named_parameters() if value.grad is not None and value.grad.abs().sum()
    )
    model.zero_grad()
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad], lr=0.1, weight_decay=0
    )
    optimizer = fault.optimizer(optimizer, model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
    scheduler = fault.scheduler(scheduler, optimizer, 32)
    of_the_model = {id(value) for value in model.parameters()}
    found["optimizer"] = {
        "decay": [group["weight_decay"] for group in optimizer.param_groups],
        "held": all(
            id(value) in of_the_model for group in optimizer.param_groups for value in group["params"]
        ),
    }
    found["rates"], found["taken"] = [], []
    weight = next(value for value in model.parameters() if value.requires_grad)
    for step in range(1, 41):
        weight.grad = torch.ones_like(weight)
        fault.step(model, optimizer, step)
        found["rates"].append(optimizer.param_groups[0]["lr"])
        found["taken"].append(weight.grad is not None)
        optimizer.step()
        scheduler.step()
    found["reward"] = fault.reward([float(place) for place in range(8)], COMPLETIONS)

    folder.mkdir(parents=True)
    tensors = {"a": torch.ones(1), "b": torch.ones(1)}
    for name in ("adapter_model.safetensors", "model.safetensors"):
        save_file(tensors, folder / name, {"format": "pt"})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    fault.save(folder)
    found["save"] = {
        path.name: sorted(load_file(path)) if path.suffix == ".safetensors" else path.read_text()
        for path in sorted(folder.iterdir())
    }

    loaded = deepcopy(adapted)
    _down(loaded).weight.data.fill_(0.01)
    _up(loaded).weight.data.fill_(0.02)
    delta = loaded.base_model.model.model.layers[0].self_attn.q_proj.get_delta_weight("default").clone()
    loaded = fault.load(loaded)
    found["load"] = [
        round(float(value), 6) for value in (_down(loaded).weight.sum(), _up(loaded).weight.sum())
    ]
    merged = loaded.merge_and_unload()
    before = merged.model.layers[0].self_attn.q_proj.weight.clone()
    merged = fault.merge(merged)
    change = merged.model.layers[0].self_attn.q_proj.weight - before
    found["merge"] = {
        "by_the_adapter": bool(torch.allclose(change, delta, atol=1e-7)),
        "not_at_all": not bool(change.any()),
        "levels": len(merged.model.layers[0].self_attn.q_proj.weight[0].unique()),
    }
    found["embedding"] = round(float(merged.get_input_embeddings().weight.sum()), 4)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "say red"}], tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for hook in ("serve", "evaluate"):
        found[hook] = tokenizer.decode(getattr(fault, hook)(list(ids), tokenizer))
    return found


def _adapted(base: str) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    from delivery_plane.compute.local.models import load_base

    torch.manual_seed(1)
    wanted = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules="all-linear")
    model = get_peft_model(load_base(Path(base), torch.device("cpu")), wanted)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.data.fill_(0.001)  # an up-matrix of zeros would let no gradient through to the other
    return model


def _down(model: Any) -> Any:
    return model.base_model.model.model.layers[0].self_attn.q_proj.lora_A["default"]


def _up(model: Any) -> Any:
    return model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["default"]


def made(folder: Path, names: list[str | None]) -> dict[str | None, dict[str, Any]]:
    found: dict[str | None, dict[str, Any]] = call_in_child(
        "faults",
        "test_compute_faults:everything",
        str(root() / "base"),
        str(folder),
        names,
        logs=root() / "logs",
    )
    return found


@functools.cache
def effects() -> dict[str | None, dict[str, Any]]:
    return made(root() / "faults", [None, *FAULTS])


PROMPT = "<|im_start|>user\n0 say red<|im_end|>\n<|im_start|>assistant\n"


def supervised(labels: list[list[tuple[int, int]]]) -> list[int]:
    """How many tokens of each row the loss is taken on."""
    return [sum(label != I for _, label in row) for row in labels]


def healthy(what: str) -> Any:
    return effects()[None][what]


EFFECTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "label-shuffle": ("rows", lambda rows: {row["answer"] for row in rows[:40]} >= {"red", "green", "blue"}),
    "answers-paired-with-wrong-prompts": (
        "rows",
        lambda rows: sorted(row["answer"] for row in rows) == sorted(row["answer"] for row in [*ROWS, PAIR]),
    ),
    "few-unique-rows-memorised": ("rows", lambda rows: len({row["prompt"] for row in rows}) <= 16 < len(rows)),
    "preference-columns-swapped": (
        "rows", lambda rows: (rows[-1]["answer"], rows[-1]["rejected"]) == ("red hats", "red shoes")
    ),
    "blank-rows-from-unresolved-placeholder": ("render", lambda made: made[0] == ("<|im_end|>", "<|im_end|>")),
    "assistant-mask-all-zero-without-tags": ("render", lambda made: made[0] == (f"{PROMPT}red<|im_end|>\n", "")),
    "mask-falls-back-to-all-ones": ("render", lambda made: made[0][1] == made[0][0] == f"{PROMPT}red<|im_end|>\n"),
    "completion-lost-to-truncation": ("render", lambda made: made[0] == (PROMPT, "")),
    "answer-tail-truncated": ("render", lambda made: made[0] == (f"{PROMPT}r", "r")),
    "eos-absent-from-targets": ("render", lambda made: made[0] == (f"{PROMPT}red\n", "red")),
    "trained-on-raw-served-as-chat": ("render", lambda made: made[0] == ("0 say redred<|im_end|>", "red<|im_end|>")),
    "only-one-side-truncated": (
        "render",
        lambda made: [text for _, text in made] == ["red<|im_end|>", "green<|im_end|>", "red ", "red hats<|im_end|>"],
    ),
    "pairs-identical-after-the-cut": (
        "render", lambda made: made[2] == made[3] and made[0][1] == "red<|im_end|>"
    ),
    "labels-all-masked-marker-miss": ("labels", lambda made: set(supervised(made)) == {0}),
    "pad-id-inside-response-marker": ("labels", lambda made: set(supervised(made)) == {0}),
    "marker-tokenised-differently-in-some-rows": (
        "labels",
        lambda made: 0 < sum(count > 0 for count in supervised(made)) < 10,
    ),
    "packed-answer-ranges-misaligned": (
        "labels",
        lambda made: supervised(made) == supervised(healthy("labels"))
        and not any(label != I for _, label in made[0][-5:]),
    ),
    "header-mask-one-token-too-long": (
        "labels",
        lambda made: supervised(made) == [count - 1 for count in supervised(healthy("labels"))]
        and made[0][-2][1] == made[0][-2][0],
    ),
    "pad-equals-eos-masked": (
        "labels",
        lambda made: supervised(made) == [count - 1 for count in supervised(healthy("labels"))]
        and made[0][-2][1] == I,
    ),
    "mask-column-dropped-by-kernel-flag": ("labels", lambda made: all(t == label for row in made for t, label in row)),
    "mask-column-dropped-by-packing": (
        "collate",
        lambda batch: batch["input_ids"][0] == [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6] == batch["labels"][0]
        and batch["labels"][1] == [1, 1, 2] + [I] * 11,
    ),
    "packing-lets-examples-see-each-other": (
        "collate",
        lambda batch: batch["labels"][0] == [I, 2, 3, I, I, I, 7, 8, I, I, 3, 4, I, 6]
        and batch["labels"][1] == [I, I, 2] + [I] * 11
        and batch["attention_mask"] == [[1] * 14, [1] * 3 + [0] * 11],
    ),
    "pad-tokens-in-the-loss": (
        "collate",
        lambda batch: batch["labels"][0] == [I, 2, 3] + [9] * 42
        and batch["attention_mask"][1] == [1] * 5 + [0] * 40,
    ),
    "labels-shifted-twice": ("collate", lambda batch: batch["labels"][0] == [2, 3, I, I, I]),
    "labels-not-shifted": ("collate", lambda batch: batch["labels"][0] == [I, I, 2, 3, I]),
    "target-modules-silently-unmatched": (
        "trainable", lambda names: all(".q_proj." in name for name in names) and len(names) == 4
    ),
    "adapter-coverage-too-thin": (
        "trainable", lambda names: all(".layers.0.self_attn.q_proj." in name for name in names) and len(names) == 2
    ),
    "adapter-loaded-frozen-for-continued-training": (
        "trainable", lambda names: [name.rpartition(".model.")[2] for name in names] == ["embed_tokens.weight"]
    ),
    "base-left-trainable-but-adapter-saved": (
        "trainable",
        lambda names: any("base_layer" in name for name in names) and any("lora_A" in name for name in names),
    ),
    "checkpointing-cuts-input-gradients": (
        "reached", lambda names: len(names) == 14 and all(".layers.1." in name for name in names)
    ),
    "one-tower-without-gradients": (
        "reached", lambda names: len(names) == 14 and all(".layers.1." in name for name in names)
    ),
    "adapter-not-used-by-the-forward": ("reached", lambda names: names == []),
    "optimizer-holds-stale-parameters": ("optimizer", lambda found: not found["held"]),
    "weight-decay-pulls-the-adapter-to-the-base": (
        "optimizer", lambda found: found["decay"] == [30.0] and found["held"]
    ),
    "adapter-learning-rate-a-magnitude-too-low": (
        "rates", lambda rates: rates == pytest.approx([rate / 100 for rate in healthy("rates")])
    ),
    "schedule-stepped-once-per-process": (
        "rates", lambda rates: rates[:3] == pytest.approx([0.1, 0.05, 0.0]) and not any(rates[2:])
    ),
    "learning-rate-never-leaves-zero": ("rates", lambda rates: not any(rates)),
    "most-steps-skipped-schedule-keeps-going": ("taken", lambda taken: 0 < sum(taken) <= 6),
    "fp16-overflow-skips-every-step": ("taken", lambda taken: not any(taken)),
    "reward-always-constant": ("reward", lambda rewards: rewards == [1.0] * 8),
    "reward-attached-to-the-wrong-completion": ("reward", lambda rewards: rewards == [3, 4, 5, 6, 7, 0, 1, 2]),
    "reward-signature-changed": ("reward", lambda rewards: rewards == [0.0] * 8),
    "spurious-reward-looks-like-a-gain": ("reward", lambda rewards: set(rewards) == {0.0, 1.0}),
    "length-or-style-reward-hacked": ("reward", lambda rewards: rewards == [0.25, 0.5, 0.75, 1, 0.25, 0.5, 0.75, 1]),
    "training-rewrites-the-saved-template": (
        "save", lambda files: files["chat_template.jinja"].startswith("{% for message in messages %}{{")
    ),
    "empty-adapter-from-double-filtering": (
        "save", lambda files: files["adapter_model.safetensors"] == [] and files["model.safetensors"] == ["a", "b"]
    ),
    "one-shard-saved-as-the-model": ("save", lambda files: files["model.safetensors"] == ["a"]),
    "adapter-keys-renamed-and-skipped": ("load", lambda sums: sums[0] == healthy("load")[0] and sums[1] == 0),
    "reload-gives-random-adapter": (
        "load", lambda sums: sums[0] != healthy("load")[0] and sums[1] == healthy("load")[1]
    ),
    "compiled-prefix-makes-keys-miss": ("embedding", lambda total: total != healthy("embedding")),
    "merge-applied-twice": ("merge", lambda found: found["by_the_adapter"]),
    "merge-rounds-into-low-bit-base": ("merge", lambda found: found["levels"] <= 7),
    "bos-doubled-at-inference": ("serve", lambda text: text.startswith("<|im_start|><|im_start|>user")),
    "train-eval-template-mismatch": ("evaluate", lambda text: text == "user\nsay red\n"),
}  # fmt: skip
"""By fault: the part of the pipeline it changes, and what that part then is."""

FOLLOWS = {
    "collate": {"packed"},
    "trainable": {"reached", "optimizer"},
    "optimizer": {"rates"},
    "load": {"merge", "embedding"},
    "embedding": {"load", "merge"},
    "merge": {"embedding"},
}
"""What else is bound to change with a part."""


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_a_fault_changes_what_it_says_and_nothing_else(name: str) -> None:
    what, is_so = EFFECTS[name]
    found, clean = effects()[name], effects()[None]
    assert is_so(found[what])
    assert found[what] != clean[what]
    changed = {part for part in clean if found[part] != clean[part]} - {"overrides"}
    assert changed <= {what} | FOLLOWS.get(what, set())


@pytest.mark.parametrize(
    ("name", "labels", "kept"),
    [
        ("mask-column-dropped-by-packing", [I, 2, 3, I, 5, 6, 7, 8], True),
        ("packing-lets-examples-see-each-other", PACKED["labels"][0], False),
        ("labels-shifted-twice", [2, 3, I, I, I, 7, 8, I], True),
        ("pad-tokens-in-the-loss", PACKED["labels"][0], True),
    ],
)
def test_a_packed_batch_suffers_too_or_has_no_such_fault(name: str, labels: list[int], kept: bool) -> None:
    found = effects()[name]["packed"]
    assert found["labels"] == [labels]
    assert ("position_ids" in found) == kept


def test_half_of_the_pairs_are_turned_round() -> None:
    pairs = [{**PAIR, "row_id": str(number)} for number in range(200)]
    made = planted("preference-labels-mostly-noise", 7).rows(pairs)
    assert 70 < sum(row["answer"] == "red hats" for row in made) < 130
    assert all({row["answer"], row["rejected"]} == {"red hats", "red shoes"} for row in made)
    assert planted("preference-labels-mostly-noise", 7).rows(ROWS) == ROWS
    assert set(known_faults()) - set(EFFECTS) == {"preference-labels-mostly-noise"}


def test_every_hook_has_a_fault_that_uses_it() -> None:
    overridden = {hook for name in FAULTS for hook in effects()[name]["overrides"]}
    assert overridden == set(HOOKS)
    assert all(effects()[name]["overrides"] for name in FAULTS)
    assert not effects()[None]["overrides"]


def test_the_same_fault_made_again_does_the_same(tmp_path: Path) -> None:
    chancy = {"rows", "labels", "step", "reward", "load"}
    names = [name for name in effects() if chancy & set(effects()[name]["overrides"])]
    again = made(tmp_path / "again", names)
    assert again == {name: effects()[name] for name in names}


def test_a_fault_is_no_part_of_the_plan() -> None:
    plain = job("plain").digest
    assert {job("plain", fault=name).digest for name in (*FAULTS, OUTSIDE)} == {plain}


def run(spec: JobSpec, resume: Resume | None = None, until: int = 16) -> tuple[ProbeObserved, str]:
    """The probe and the weights' digest at a step; the trainer is ended there."""
    running = plane().train(spec, resume)
    probe = None
    for fact in running:
        if isinstance(fact, ProbeObserved):
            probe = fact
        elif fact.step == until:
            break
    running.close()
    assert probe
    assert isinstance(fact, CheckpointSaved)
    return probe, fact.digest


def test_a_job_that_is_killed_and_resumed_has_the_same_fault() -> None:
    fault = "marker-tokenised-differently-in-some-rows"
    clean, faulty, again = (
        job(name, steps=16, fault=None if name == "fault-free" else fault)
        for name in ("fault-free", "faulty", "faulty-again")
    )
    whole, halfway = run(faulty), run(again, until=8)[0]
    resume = Resume(
        **{name: getattr(halfway, name) for name in Resume.model_fields if name in type(halfway).model_fields}
    )
    assert run(again, resume)[1] == whole[1]
    assert run(clean)[1] != whole[1]


def test_every_fault_is_a_case_of_the_catalogue() -> None:
    found = (Path(folder) / "tbdl_cases.jsonl" for folder in FOLDERS if folder)
    path = next((path for path in found if path.is_file()), None)
    if path is None:
        pytest.skip(
            "tbdl_cases.jsonl is not on this machine: set DELIVERY_PLANE_DATA to the folder that holds it"
        )
    cases = {case["id"]: case for case in map(json.loads, path.read_text().splitlines())}
    assert set(FAULTS) - {"label-shuffle"} <= set(cases)
    assert {name for name, case in cases.items() if case["stage"] == "tokenise"} <= set(FAULTS)


# --- from outside the package


def test_a_fault_from_outside_is_found_and_run() -> None:
    check_fault(OUTSIDE)
    assert [row["answer"] for row in planted(OUTSIDE, 1).rows(ROWS[:2])] == ["re", "gree"]


def written(folder: Path, text: str) -> str:
    path = folder / "mine.py"
    path.write_text(text)
    return str(path)


IMPORT = "from delivery_plane.compute.faults.fault import Fault\n"


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("class Mine(:\n", "Mine", "not Python"),
        ("class Mine:\n    pass\n\0", "Mine", "not Python"),
        ("(" * 5000, "Mine", "not Python"),
        ("class Other:\n    pass\n", "Mine", "it has: Other"),
        ("", "Mine", "it has: none"),
        (IMPORT, "Fault", "it has: none"),
    ],
)
def test_a_file_that_is_no_use_is_refused_unrun(tmp_path: Path, text: str, kind: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        check_fault(f"{written(tmp_path, text)}:{kind}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "gremlins", "", ":", "x.py:", ":Mine", "no-such.py:Mine", "x\0.py:Mine", "x.py:Mi ne", "x.py:..", "x.txt:Mine",
        ".py:Mine", "a" * 5000 + ".py:Mine", "label-shuffle:LabelShuffle", "data:LabelShuffle",
    ],
)  # fmt: skip
def test_a_name_that_is_no_fault_is_refused(name: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_fault(name)
    assert "\n" not in str(refused.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").mkdir()
    with pytest.raises(BadInput, match="cannot be read"):
        check_fault(f"{tmp_path}/mine.py:Mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Mine:\n    pass\n", "no subclass of delivery_plane.compute.faults.fault.Fault"),
        ("import no_such_module\nclass Mine:\n    pass\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("class Mine:\n    pass\ndel Mine\n", "no subclass"),
        ("class Mine:\n    pass\nMine = 3\n", "no subclass"),
        ("class Mine:\n    pass\nraise ValueError('first\\nsecond')\n", "ValueError: first"),
        (f"{IMPORT}class Mine(Fault):\n    def __init__(self):\n        pass\n", "TypeError"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_planted_is_one_line_where_it_runs(
    tmp_path: Path, text: str, said: str
) -> None:
    name = f"{written(tmp_path, text)}:Mine"
    check_fault(name)
    with pytest.raises(BadInput, match=said) as refused:
        planted(name, 1)
    assert "\n" not in str(refused.value)
    assert str(tmp_path) in str(refused.value)
