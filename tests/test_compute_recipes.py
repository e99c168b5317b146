"""Every recipe on the tiny base: it trains as TRL does, learns what it should, and its facts are the run's own."""

import functools
import hashlib
import itertools
import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from test_compute_tiny import ANSWERS, job, plane, root
from test_compute_train import trained

from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.digests import file_digest, reference_digest, weights_digest
from delivery_plane.compute.plane import JobSpec, ModelRef
from delivery_plane.errors import ComputeFault
from delivery_plane.facts import ProbeObserved
from delivery_plane.hyperparameters import DpoSettings, GrpoSettings, Hyperparameters, LoraSettings

LORA = LoraSettings(rank=4, alpha=16)
WEIGHTS = pytest.mark.parametrize(
    "lora", [pytest.param(None, id="full"), pytest.param(LORA, id="lora", marks=pytest.mark.long)]
)


def rows_file(name: str, rows: list[dict[str, str]]) -> Path:
    """Rows in the folder of this test process, written once."""
    path = root() / f"{name}.jsonl"
    if not path.exists():
        common = {"licence": "cc0", "source": "test"}
        path.write_text("".join(json.dumps({**row, **common}) + "\n" for row in rows))
    return path


def on(path: Path) -> dict[str, object]:
    """The fields of a job that trains on these rows."""
    return {"dataset_path": path, "dataset_digest": file_digest(path)}


def probed_on(path: Path) -> dict[str, object]:
    return {"probe_path": path, "probe_digest": file_digest(path)}


def colours(count: int = 24) -> Path:
    rows = [{"row_id": f"c{i}", "prompt": f"{i}?", "answer": ANSWERS[i % 4]} for i in range(count)]
    return rows_file(f"colours-{count}", rows)


def always(answer: str, rejected: str | None = None) -> Path:
    """Rows whose right answer is always the same letter."""
    rows = [{"row_id": f"a{i}", "prompt": f"{i}?", "answer": answer} for i in range(24)]
    if rejected:
        rows = [{**row, "rejected": rejected} for row in rows]
    return rows_file(f"always-{answer}{rejected or ''}", rows)


def letters() -> Path:
    """Rows that any of four letters answers: what teaches the form of an answer and no more."""
    rows = [
        {"row_id": f"l{i}", "prompt": f"{i % 24}?", "answer": "abcd"[i % 4 ^ i // 24 % 4]} for i in range(96)
    ]
    return rows_file("letters", rows)


def games() -> Path:
    rows = [{"row_id": f"g{i}", "prompt": f"{i}: from 1 to 7", "answer": str(1 + i % 7)} for i in range(24)]
    return rows_file("games", rows)


@functools.cache
def warmed_up(lora: LoraSettings | None = None) -> JobSpec:
    """A finished job that answers with one of four letters."""
    spec = job(f"warm-{lora is not None}", lora=lora, steps=60, learning_rate=0.02, **on(letters()))
    assert trained(spec)[2] == "completed"
    return spec


def from_(parent: JobSpec) -> dict[str, object]:
    """The fields of a job that starts from another's last checkpoint."""
    checkpoint = parent.checkpoint_path(parent.steps)
    return {"parents": (*parent.parents, checkpoint), "parent_digest": weights_digest(checkpoint)}


def bare_sft(base: str, rows: str, folder: str, settings: dict[str, object], lora: dict[str, object] | None):
    """A plain script, as the library's own documentation has it. Runs in a child.

    Returns the rows' ids in the order they were drawn in.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    torch.set_num_threads(1)
    drop = [json.loads(line) for line in Path(rows).read_text().splitlines()]
    talks = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
        for row in drop
    ]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        args=SFTConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            optim="adamw_torch_fused",
            report_to="none",
            save_strategy="no",
            **settings,
        ),
        train_dataset=Dataset.from_dict({"messages": talks}),
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **lora) if lora else None,
    )
    trainer.train()
    trainer.save_model(folder)
    loader, drawn = trainer.get_train_dataloader(), []
    numbers = {row["prompt"]: row["row_id"] for row in drop}
    for epoch in range(trainer.args.max_steps):
        loader.set_epoch(epoch)
        for batch in loader:
            for text in trainer.processing_class.batch_decode(batch["input_ids"]):
                for turn in text.split("<|im_start|>user\n")[1:]:
                    drawn.append(numbers[turn.split("<|im_end|>")[0]])
    return drawn


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {}),
        pytest.param(
            {"masking": "all", "weight_decay": 0.1, "max_grad_norm": 0.3},
            {"weight_decay": 0.1, "max_grad_norm": 0.3},
            marks=pytest.mark.long,
        ),
        (
            {"accumulation": 2, "packing": True, "max_tokens_per_row": 100},
            {"packing": True, "max_length": 100},
        ),
        pytest.param({"lora": LoraSettings(rank=4, alpha=16, dropout=0.1)}, {}, marks=pytest.mark.long),
    ],
    ids=["plain", "all tokens", "packed, accumulated", "lora"],
)
def test_weights_and_rows_are_those_of_a_plain_script(
    tmp_path: Path, changes: dict[str, object], settings: dict[str, object]
) -> None:
    spec = job(f"as-bare-{'-'.join(changes)}", steps=16, **changes, **on(colours()))
    probes, saved, _ = trained(spec)
    drawn = call_in_child(
        "a plain script",
        "test_compute_recipes:bare_sft",
        str(spec.base_path),
        str(spec.dataset_path),
        str(tmp_path),
        {
            "max_steps": 16,
            "per_device_train_batch_size": 8 // spec.accumulation,
            "gradient_accumulation_steps": spec.accumulation,
            "learning_rate": 0.01,
            "lr_scheduler_type": "linear",
            "warmup_steps": 1,
            "seed": 3,
            "data_seed": 3,
            "max_length": 64,
            "assistant_only_loss": spec.masking == "assistant_only",
            **settings,
        },
        {"r": 4, "lora_alpha": 16, "lora_dropout": 0.1} if spec.lora else None,
        logs=root() / "logs",
    )
    assert saved[-1].digest == weights_digest(tmp_path)
    last = probes[-1]
    assert last.consumed_rows > 16
    digest = hashlib.sha256().hexdigest()
    for row_id in drawn[: last.consumed_rows]:
        digest = hashlib.sha256((digest + row_id).encode()).hexdigest()
    assert last.consumed_digest == digest
    assert last.distinct_rows == len(set(drawn[: last.consumed_rows]))
    in_step = last.consumed_rows - probes[-2].consumed_rows
    assert list(last.consumed_sample) == drawn[: last.consumed_rows][-in_step:][:8]


@WEIGHTS
def test_sft_learns_the_answers_it_is_given(lora: LoraSettings | None) -> None:
    rows = always("b")
    spec = job(
        f"sft-{lora is not None}", lora=lora, steps=48, learning_rate=0.02, **on(rows), **probed_on(rows)
    )
    probes, _, status = trained(spec)
    assert status == "completed"
    assert [probe.step for probe in probes if probe.generated_items] == list(spec.generation_steps())
    last = probes[-1]
    assert (last.generated_items, last.generated_correct, last.end_of_turn_share) == (24, 24, 1.0)
    assert last.generated_tokens_mean == 2  # the letter and the end of turn
    assert last.probe_correct == 24
    assert last.probe_loss < last.base_probe_loss
    assert last.probe_prompt_loss > 0
    assert last.supervised_tokens == 2 * last.consumed_rows == 2 * 48 * 8
    assert last.policy is last.preference is None
    _adds_up(probes)


@WEIGHTS
def test_dpo_learns_which_answer_is_preferred_from_where_it_starts(lora: LoraSettings | None) -> None:
    pairs, parent = always("c", rejected="a"), warmed_up()
    spec = job(
        f"dpo-{lora is not None}",
        dpo=DpoSettings(),
        lora=lora,
        steps=32,
        learning_rate=0.003 if lora else 0.002,
        warmup_share=0,
        **on(pairs),
        **probed_on(pairs),
        **from_(parent),
    )
    probes, saved, status = trained(spec)
    assert status == "completed"
    first, last = probes[0].preference, probes[-1].preference
    assert first
    assert last
    assert last.accuracy == 1
    assert last.margin > 0.1 > first.margin
    assert probes[-1].consumed_rows == 32 * 8
    # Two answers of a letter and an end of turn each.
    assert probes[-1].supervised_tokens == 4 * probes[-1].consumed_rows
    _adds_up(probes)
    # The reference is the start itself: before the first step nothing tells them apart.
    still = job(
        f"dpo-still-{lora is not None}",
        dpo=DpoSettings(),
        lora=lora,
        steps=16,
        learning_rate=1e-30,
        **on(pairs),
        **from_(parent),
    )
    for probe in trained(still, stop_at=2)[0]:
        assert probe.preference
        assert (probe.preference.margin, probe.preference.chosen_shift) == (0, 0)
    # What came of it is applied on top of its parent.
    done = ModelRef(
        base_path=spec.base_path, parents=spec.parents, checkpoint_path=spec.checkpoint_path(spec.steps)
    )
    alone = ModelRef(base_path=spec.base_path, checkpoint_path=done.checkpoint_path)
    assert (reference_digest(done) == reference_digest(alone)) == (lora is None)
    out = root() / f"registered-dpo-{lora is not None}"
    found = plane().register(done, out, pairs)
    assert found.checkpoint_digest_now == saved[-1].digest
    assert found.reload_max_logit_difference == 0
    assert found.checkpoint_max_logit_difference <= (1e-4 if lora else 0)
    merged = ModelRef(base_path=spec.base_path, checkpoint_path=out)
    assert (
        plane().register(merged, root() / f"again-{lora is not None}", pairs).model_digest
        == found.model_digest
    )


@WEIGHTS
def test_grpo_learns_the_answer_that_is_rewarded(lora: LoraSettings | None) -> None:
    rows, answers = always("d"), 32 if lora else 16
    spec = job(
        f"grpo-{lora is not None}",
        grpo=GrpoSettings(max_new_tokens=4, group_rows=answers // 2, beta=0.0 if lora else 0.01),
        lora=LoraSettings(rank=16, alpha=32) if lora else None,
        steps=48,
        batch_rows=answers,
        learning_rate=0.006 if lora else 0.003,
        scheduler="constant",
        **on(rows),
        **probed_on(rows),
        **from_(warmed_up()),
    )
    probes, _, status = trained(spec)
    assert status == "completed"
    first, last = probes[0].policy, probes[-1].policy
    assert first
    assert last
    assert first.reward_mean < 0.4
    assert last.reward_mean > (first.reward_mean + 0.1 if lora else 0.9)
    assert probes[-1].generated_correct == 24
    assert last.rollouts == 48 * answers
    assert last.policy_versions == 48
    assert last.generated_tokens == probes[-1].supervised_tokens < probes[-1].tokens
    assert probes[-1].consumed_rows == 48 * 2
    assert 0 <= last.clipped_share < 0.1
    assert 0 <= first.zero_std_share <= 1
    assert first.reward_std > 0
    _adds_up(probes)


def test_an_adapter_that_was_trained_before_is_part_of_the_start_and_all_of_it_trains() -> None:
    rows = letters()
    before = job("adapter-before", lora=LORA, steps=16, learning_rate=0.02, **on(rows), **probed_on(rows))
    (*_, last), _, _ = trained(before)
    still = job("still", steps=16, learning_rate=1e-30, **on(rows), **probed_on(rows), **from_(before))
    moved = job("moved", steps=16, warmup_share=0, **on(rows), **probed_on(rows), **from_(before))
    (probe,), _, _ = trained(still, stop_at=1)
    assert probe.probe_loss == pytest.approx(last.probe_loss, abs=1e-4)
    assert probe.base_probe_loss == last.base_probe_loss > last.probe_loss
    assert probe.parameter_delta_norm < 1e-6
    (probe,), _, _ = trained(moved, stop_at=1)
    assert probe.parameter_delta_norm > 0.1
    assert moved.digest != job("moved", steps=16, warmup_share=0, **on(rows), **probed_on(rows)).digest
    with pytest.raises(ComputeFault, match="its start changed since the job was planned"):
        trained(moved.model_copy(update={"parent_digest": "0" * 64}))


def _adds_up(probes: list[ProbeObserved]) -> None:
    """What a run adds up only grows, and what it is a part of is never less."""
    for before, after in itertools.pairwise(probes):
        assert before.consumed_rows < after.consumed_rows
        assert before.tokens < after.tokens
        assert before.distinct_rows <= after.distinct_rows <= after.consumed_rows
        assert before.consumed_digest != after.consumed_digest
        assert before.probe_seconds < after.probe_seconds < after.device_seconds


def rollouts_of(spec_json: str) -> list[dict[str, object]]:
    """One batch of sampled episodes as the loss gets them, decoded; runs in a child."""
    from delivery_plane.compute.faults import planted
    from delivery_plane.compute.local.models import load_tokenizer, use_device
    from delivery_plane.compute.recipes.build import build_trainer, start_model
    from delivery_plane.rows import read_rows

    spec = JobSpec.model_validate_json(spec_json)
    tokenizer = load_tokenizer(spec.base_path)
    model = start_model(spec, use_device("cpu"))
    trainer = build_trainer(spec, model, tokenizer, read_rows(spec.dataset_path), planted(None, 0), [])
    trainer.model.train()
    inputs = next(iter(trainer.get_train_dataloader()))
    batch = trainer._prepare_inputs(inputs)
    found = []
    for i in range(len(inputs)):
        ids, mask = batch["completion_ids"][i], batch["completion_mask"][i].bool()
        own = batch["tool_mask"][i].bool() & mask
        # A run of environment tokens between two of the policy's, and so on.
        turns, said = [], None
        for token, mine in zip(ids[mask].tolist(), own[mask].tolist(), strict=True):
            if mine is not said:
                turns.append((mine, []))
                said = mine
            turns[-1][1].append(token)
        prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()]
        found.append(
            {
                "prompt": tokenizer.decode(prompt),
                "turns": [(mine, tokenizer.decode(tokens)) for mine, tokens in turns],
            }
        )
    return found


def test_what_an_environment_says_is_read_and_never_learnt() -> None:
    numbers = rows_file(
        "numbers",
        [{"row_id": f"n{i}", "prompt": f"{i}: from 1 to 7", "answer": str(1 + i % 7)} for i in range(70)],
    )
    warm = job("warm-games", steps=60, learning_rate=0.02, **on(numbers))
    trained(warm)
    spec = job(
        "played",
        grpo=GrpoSettings(environment="guess-number", max_new_tokens=4, group_rows=14),
        batch_rows=28,
        max_tokens_per_row=128,
        **on(games()),
        **from_(warm),
    )
    episodes = call_in_child(
        "playing", "test_compute_recipes:rollouts_of", spec.model_dump_json(), logs=root() / "logs"
    )
    opening = "<|im_end|>\n<|im_start|>assistant\n"
    assert all(episode["prompt"].endswith(f": from 1 to 7{opening}") for episode in episodes)
    played = [episode["turns"] for episode in episodes if len(episode["turns"]) > 1]
    assert played
    for turns in played:
        assert [mine for mine, _ in turns] == [i % 2 == 0 for i in range(len(turns))]
        for mine, text in turns:
            reply = text.removeprefix("<|im_end|>").removeprefix("\n<|im_start|>user\n").removesuffix(opening)
            assert mine or reply in ("higher", "lower")


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"accumulation": 3}, "accumulation", "cannot share"),
        ({"packing": True, "dpo": {}}, "packing", "only sft packs"),
        ({"masking": "all", "grpo": {"max_new_tokens": 4}}, "masking", "takes its loss on answers"),
        ({"dpo": {}, "grpo": {"max_new_tokens": 4}}, "grpo", "one recipe"),
        ({"grpo": {"max_new_tokens": 4, "group_rows": 3}}, "grpo.group_rows", "do not fill"),
        ({"grpo": {"max_new_tokens": 4, "temperature": 0}}, "grpo.temperature", "same answer"),
        ({"grpo": {"max_new_tokens": 64}}, "grpo.max_new_tokens", "no room for the prompt"),
        ({"dpo": {}, "lora": {"rank": 4, "alpha": 8, "dropout": 0.1}}, "lora.dropout", "without dropout"),
        ({"lora": {"rank": 4, "alpha": 8, "targets": ("q_proj", "all-linear")}}, "lora.targets", "already"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(
    changes: dict[str, object], field: str, reason: str
) -> None:
    healthy = {
        "learning_rate": 0.01,
        "scheduler": "linear",
        "batch_rows": 8,
        "steps": 16,
        "max_tokens_per_row": 64,
        "masking": "assistant_only",
    }
    assert Hyperparameters.model_validate(healthy).recipe == "sft"
    with pytest.raises(ValidationError, match=rf"{field}: .*{reason}"):
        Hyperparameters.model_validate({**healthy, **changes})


def packed_losses(base: str, rows: str, folder: str) -> tuple[float, float]:
    """Mean loss over the same rows, packed and one by one, with TRL's own loss. Runs in a child."""
    from delivery_plane.compute.faults import planted
    from delivery_plane.compute.local.models import load_tokenizer, use_device
    from delivery_plane.compute.recipes.build import build_trainer, start_model
    from delivery_plane.rows import read_rows

    found = []
    for packing in (True, False):
        spec = JobSpec.model_validate_json(Path(folder, "spec.json").read_text())
        spec = spec.model_copy(update={"packing": packing})
        model = start_model(spec, use_device("cpu"))
        read = read_rows(Path(rows))
        trainer = build_trainer(spec, model, load_tokenizer(Path(base)), read, planted(None, 0), [])
        trainer.model.eval()
        total = tokens = 0
        for batch in trainer.get_train_dataloader():
            supervised = int((batch["labels"] != -100).sum())
            total += float(trainer.compute_loss(trainer.model, batch)) * supervised
            tokens += supervised
        assert trainer.used.rows == trainer.used.distinct_rows == len(read)
        found.append(total / tokens)
    return found[0], found[1]


def test_packed_rows_do_not_see_each_other(tmp_path: Path) -> None:
    spec = job(
        "packed", packing=True, max_tokens_per_row=120, batch_rows=2, **on(colours()), **from_(warmed_up())
    )
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    packed, alone = call_in_child(
        "packing",
        "test_compute_recipes:packed_losses",
        str(spec.base_path),
        str(spec.dataset_path),
        str(tmp_path),
        logs=root() / "logs",
    )
    assert packed == pytest.approx(alone, abs=1e-5)


def test_rendering_counts_pairs_and_answers_still_to_be_sampled() -> None:
    dpo = {"dpo": DpoSettings(), "max_tokens_per_row": 32}
    pairs = plane().render(job("render-dpo", **dpo, **on(always("c", rejected="aa"))))
    assert pairs.recipe == "dpo"
    assert pairs.rendered_rows == 24
    assert pairs.supervised_tokens == 24 * (2 + 3)  # a letter or two, and the end of turn
    assert (pairs.rows_without_answer, pairs.supervised_prompt_tokens, pairs.truncated_rows) == (0, 0, 0)
    assert pairs.end_of_turn_supervised_share == 1
    assert 0 < pairs.seconds_per_step < 2
    # Rows that hold no pair are a finding; when none does, there is nothing to train on.
    unpaired = plane().render(job("render-unpaired", **dpo, **on(always("c"))))
    assert (unpaired.rows_without_answer, unpaired.supervised_tokens) == (24, 0)
    grpo = {"grpo": GrpoSettings(max_new_tokens=4, group_rows=4), "max_tokens_per_row": 32}
    sampled = plane().render(job("render-grpo", lora=LORA, **grpo, **on(always("d"))))
    assert sampled.recipe == "grpo"
    assert sampled.supervised_tokens == 24 * 4
    assert (sampled.rows_without_answer, sampled.truncated_rows) == (0, 0)
    assert sampled.adapted_modules == 14
    assert sampled.planned_tokens == pytest.approx(40 * 8 * (sampled.prompt_tokens / 24 + 4), abs=1)
    no_game = GrpoSettings(environment="guess-number", max_new_tokens=4, group_rows=4)
    found = plane().render(job("render-no-game", grpo=no_game, **on(always("d"))))
    assert (found.rows_without_answer, found.supervised_tokens) == (24, 0)
    cut = plane().render(job("render-cut", **{**grpo, "max_tokens_per_row": 16}, **on(always("d"))))
    assert cut.truncated_rows == 24


def cuda_found() -> bool:
    """Whether torch finds a GPU. Runs in a child."""
    import torch

    return bool(torch.cuda.is_available())


def test_a_job_trains_on_a_gpu() -> None:
    if not call_in_child("looking for a GPU", "test_compute_recipes:cuda_found", logs=root() / "logs"):
        pytest.skip("torch finds no CUDA device on this machine")
    rows = always("b")
    spec = job("gpu", device="cuda", steps=48, learning_rate=0.02, **on(rows), **probed_on(rows))
    probes, _, status = trained(spec)
    assert status == "completed"
    assert probes[-1].generated_correct == 24
    assert probes[-1].peak_memory_bytes > 0
