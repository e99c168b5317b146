"""Greedy scores of micro-1 on held-out prompts of each skill.

Not the platform's evaluation: it describes the base model in its card.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scenarios.bases.micro_1.corpus import conversation, held_out
from scenarios.bases.micro_1.skills import SKILLS, Chat

ITEMS = {"guessing": 60, "sums": 100, "recall": 100}  # few games and small sums exist
DEFAULT_ITEMS = 200
FAR, FAR_CHARACTERS = "sorting_after_512_tokens", 1500


def wilson_interval(hits: int, items: int) -> tuple[float, float]:
    """95% interval of a share."""
    z, share = 1.96, hits / items
    centre = (share + z * z / (2 * items)) / (1 + z * z / items)
    half = z * math.sqrt(share * (1 - share) / items + z * z / (4 * items * items)) / (1 + z * z / items)
    return max(0.0, centre - half), min(1.0, centre + half)


def answer_greedily(model: Any, tokenizer: Any, talks: list[Chat], batch: int = 20) -> list[str]:
    """The model's answers to the last open turn of each chat, batched with left padding."""
    texts = [tokenizer.apply_chat_template(t, tokenize=False, add_generation_prompt=True) for t in talks]
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    answers = [""] * len(texts)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        encoded = [tokenizer.encode(texts[i], add_special_tokens=False) for i in chosen]
        inputs = tokenizer.pad({"input_ids": encoded}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=64
            )
        for i, tokens in zip(chosen, output[:, inputs["input_ids"].shape[1] :], strict=True):
            answers[i] = tokenizer.decode(tokens, skip_special_tokens=True)
    return answers


def is_legal_guess(talk: Chat, answer: str) -> bool:
    """Whether a guess lies in the range that the answers so far leave open."""
    low, high = 1, int(talk[0]["content"].rstrip(".").split()[-1])
    for guess, reply in zip(talk[1::2], talk[2::2], strict=False):
        value = int(guess["content"])
        low, high = (value + 1, high) if reply["content"] == "higher" else (low, value - 1)
    return answer.isdigit() and low <= int(answer) <= high


def write_scores(model_path: Path, scores_path: Path) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path).eval()
    scores: dict[str, dict[str, float]] = {}
    rng = random.Random("micro-1/score/far")
    questions = {skill: held_out(skill, ITEMS.get(skill, DEFAULT_ITEMS)) for skill in SKILLS}
    # The same questions asked at the end of a long conversation, beyond 512 tokens.
    questions[FAR] = [conversation(rng, FAR_CHARACTERS, talk) for talk in questions["sorting"][:100]]
    for skill, talks in questions.items():
        answers = answer_greedily(model, tokenizer, [talk[:-1] for talk in talks])
        hits = sum(
            is_legal_guess(talk[:-1], answer) if skill == "guessing" else answer == talk[-1]["content"]
            for talk, answer in zip(talks, answers, strict=True)
        )
        low, high = wilson_interval(hits, len(talks))
        scores[skill] = {
            "n": len(talks),
            "score": hits / len(talks),
            "low": round(low, 3),
            "high": round(high, 3),
        }
        print(skill, scores[skill], flush=True)
    scores_path.write_text(json.dumps(scores, indent=2) + "\n")
    return scores
