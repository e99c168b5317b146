"""Trains the tokenizer and the model of micro-1: `python -m scenarios.bases.micro_1.make --out DIR`.

Not the platform's trainer: a plain single-thread loop that needs no network and no outside data.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from scenarios.bases.micro_1.corpus import FINISH, LONG, MIXTURE, documents
from scenarios.bases.micro_1.score import write_scores
from scenarios.bases.micro_1.skills import Chat
from scenarios.bases.micro_1.tokenizer import render, train_tokenizer

VOCABULARY = 1000
TOKENIZER_DOCUMENTS = 20_000
PHASES = [(MIXTURE, 6_000, 4e-3), (FINISH, 2_000, 2e-3), (LONG, 700, 1.5e-3)]  # mixture, steps, peak rate
TOKENS_PER_BATCH = 1_536
WARMUP_STEPS, FLOOR = 150, 0.02
PROMPT_WEIGHT = 0.3  # prompts are mostly random fillers: they teach words, answers teach skills
POOL = 4_000  # documents sorted by length together, so that batches carry little padding
CONTEXT = 1024
Example = tuple[list[int], list[float]]  # token ids, loss weight of each as a target


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def encode(document: str | Chat, tokenizer: PreTrainedTokenizerFast) -> Example:
    ids: list[int] = []
    weights: list[float] = []
    for text, is_answer in render(document):
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        weights += [1.0 if is_answer else PROMPT_WEIGHT] * len(piece)
    return ids[:CONTEXT], weights[:CONTEXT]


def batches(
    seed: int, mixture: dict[str, float], tokenizer: PreTrainedTokenizerFast
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded (ids, weights) of documents of like length, about `TOKENS_PER_BATCH` tokens a batch."""
    rng = random.Random(seed)
    stream = documents(seed, mixture)
    pad = tokenizer.pad_token_id
    while True:
        pool = [encode(document, tokenizer) for document in itertools.islice(stream, POOL)]
        pool.sort(key=lambda example: len(example[0]))
        groups: list[list[Example]] = [[]]
        for example in pool:
            if (len(groups[-1]) + 1) * len(example[0]) > TOKENS_PER_BATCH:
                groups.append([])
            groups[-1].append(example)
        rng.shuffle(groups)
        for group in filter(None, groups):
            width = len(group[-1][0])
            ids = torch.tensor([x + [pad] * (width - len(x)) for x, _ in group])
            weights = torch.tensor([w + [0.0] * (width - len(w)) for _, w in group])
            yield ids, weights


def learning_rate(step: int, steps: int, peak: float) -> float:
    if step < WARMUP_STEPS:
        return peak * (step + 1) / WARMUP_STEPS
    done = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * done)))


def train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    mixture: dict[str, float],
    steps: int,
    peak: float,
) -> None:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=True,
    )
    model.train()
    started, tokens, smooth = time.monotonic(), 0, 0.0
    for step, (ids, weights) in enumerate(itertools.islice(batches(seed, mixture, tokenizer), steps)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak)
        # No attention mask: padding is on the right, where no earlier position can see it.
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        targets = weights[:, 1:].flatten()
        loss = (losses * targets).sum() / targets.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += ids.numel()
        smooth = loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % 100 == 0 or step == steps - 1:
            wall_seconds = time.monotonic() - started
            print(
                f"step {step} loss {smooth:.3f} tokens {tokens} wall_seconds {wall_seconds:.0f}", flush=True
            )
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the steps, for a quick try")
    parser.add_argument("--scores", type=Path, help="where to write the scores, if wanted")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    sample = itertools.islice(documents(options.seed), TOKENIZER_DOCUMENTS)
    tokenizer = train_tokenizer(("".join(text for text, _ in render(d)) for d in sample), VOCABULARY)
    model = Qwen3ForCausalLM(model_config(tokenizer))
    print(f"vocabulary {len(tokenizer)} parameters {sum(p.numel() for p in model.parameters())}", flush=True)
    for phase, (mixture, steps, peak) in enumerate(PHASES):
        train(model, tokenizer, options.seed + phase, mixture, round(steps * options.scale), peak)
    model.generation_config = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=64,
    )
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    if options.scores:
        write_scores(options.out, options.scores)


if __name__ == "__main__":
    main()
