"""Measures how learnable the drop is for a base: SFT on clean public rows, scored on probe and sealed.

Not part of a delivery: it opens the sealed rows of a throw-away key to tune the generator and write its card.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
import time
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from scenarios.support_intents.generator import LABELS, Drop, Row, generate

MASKED = -100


def clean_rows(drop: Drop) -> list[Row]:
    planted = {row_id for row_ids in drop.planted.values() for row_id in row_ids}
    return [row for row in drop.public if row["row_id"] not in planted]


def encode(row: Row, tokenizer: Any) -> dict[str, list[int]]:
    """Token ids and labels of one row in the chat template; labels cover the answer and its end of turn."""
    talk = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["answer"]}]
    encoded = tokenizer.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    kept = zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)
    return {"input_ids": encoded["input_ids"], "labels": [t if keep else MASKED for t, keep in kept]}


def teacher_forced_matches(model: Any, encoded: list[dict[str, list[int]]], pad: int) -> float:
    """Share of rows whose every supervised token is the model's first choice."""
    width = max(len(row["input_ids"]) for row in encoded)
    ids = torch.tensor([row["input_ids"] + [pad] * (width - len(row["input_ids"])) for row in encoded])
    labels = torch.tensor([row["labels"] + [MASKED] * (width - len(row["labels"])) for row in encoded])
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        chosen = model(input_ids=ids, use_cache=False).logits[:, :-1].argmax(-1)
    model.train(was_training)
    right = (chosen == labels[:, 1:]) | (labels[:, 1:] == MASKED)
    return float(right.all(dim=1).float().mean())


def greedy_matches(model: Any, tokenizer: Any, rows: list[Row], batch: int = 50) -> float:
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        for row in rows
    ]
    order = sorted(range(len(rows)), key=lambda i: len(texts[i]))
    model.eval()
    hits = 0
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        encoded = {"input_ids": [tokenizer.encode(texts[i], add_special_tokens=False) for i in chosen]}
        inputs = tokenizer.pad(encoded, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=24,
                do_sample=False,
            )
        for i, tokens in zip(chosen, output[:, inputs["input_ids"].shape[1] :], strict=True):
            hits += tokenizer.decode(tokens, skip_special_tokens=True).strip() == rows[i]["answer"]
    return hits / len(rows)


class ProbeCallback(TrainerCallback):  # type: ignore[misc]
    def __init__(self, encoded: list[dict[str, list[int]]], pad: int, every: int) -> None:
        self.encoded, self.pad, self.every = encoded, pad, every
        self.scores: dict[int, float] = {}
        self.wall_seconds = 0.0

    def on_step_end(self, _args: Any, state: Any, _control: Any, **handed: Any) -> None:
        if state.global_step % self.every == 0:
            started = time.monotonic()
            self.scores[state.global_step] = teacher_forced_matches(handed["model"], self.encoded, self.pad)
            self.wall_seconds += time.monotonic() - started


def measure(base: str, mechanism: str, labels: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    drop = generate(public_seed=seed, sealed_key=f"learnability {seed}".encode())
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    rows = clean_rows(drop)
    if labels == "random":
        rng = random.Random(f"random labels {seed}")
        rows = [{**row, "answer": rng.choice(LABELS)} for row in rows]
    probe = ProbeCallback([encode(row, tokenizer) for row in drop.probe], tokenizer.pad_token_id, steps // 16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                max_steps=steps,
                learning_rate=lr,
                lr_scheduler_type="cosine",
                warmup_steps=steps // 20,
                weight_decay=0.0,
                per_device_train_batch_size=16,
                seed=seed,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
                optim="adamw_torch_fused",
                max_length=256,
                logging_steps=1,
                save_strategy="no",
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=Dataset.from_list([encode(row, tokenizer) for row in rows]),
            processing_class=tokenizer,
            callbacks=[probe],
            peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
            if mechanism == "lora"
            else None,
        )
        started = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):  # the trainer prints every logged step
            trainer.train()
        wall_seconds = time.monotonic() - started - probe.wall_seconds
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    sixteenth = steps // 16
    early, late = losses[sixteenth - 3 : sixteenth + 2], losses[-sixteenth:]
    return {
        "mechanism": mechanism,
        "labels": labels,
        "lr": lr,
        "seed": seed,
        "steps": steps,
        "clean_rows": len(rows),
        "seconds_per_step": round(wall_seconds / steps, 4),
        "early_loss": round(sum(early) / len(early), 4),
        "late_loss": round(sum(late) / len(late), 4),
        "probe_at_quarter": probe.scores.get(sixteenth * 4),
        "probe": {step: round(score, 3) for step, score in probe.scores.items()},
        "sealed": greedy_matches(trainer.model, tokenizer, drop.sealed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default="scenarios/bases/micro_1/model")
    parser.add_argument("--mechanism", choices=["full", "lora"], default="full")
    parser.add_argument("--labels", choices=["true", "random"], default="true")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=240)
    asked = parser.parse_args()
    for seed in asked.seeds:
        result = measure(asked.base, asked.mechanism, asked.labels, asked.lr, seed, asked.steps)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
