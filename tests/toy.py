"""A toy scenario folder with a tiny untrained base, for end-to-end tests that need no real learning to show.

The answer follows from one word of the prompt, so a run of a few seconds learns it and shuffled labels do not.
"""

import fcntl
import json
import random
from pathlib import Path

from delivery_plane.compute.local.children import call_in_child

WORDS = [
    "apple",
    "brick",
    "cloud",
    "drum",
    "eagle",
    "flute",
    "grape",
    "horse",
    "igloo",
    "jelly",
    "kite",
    "lemon",
    "mango",
    "north",
    "olive",
    "pearl",
    "quilt",
    "river",
    "stone",
    "tulip",
    "under",
    "violet",
    "water",
    "yacht",
]

BRIEF = """# Name the box

Every note names a thing; we want the number of the box it belongs in.

## Terms

- Metric: exact match
- Target: at least 60 percentage points above the base model, on notes you have not seen
- Data licensed to you: customer-owned
"""

SCENARIO = """
name = "toy-boxes"
version = 1
title = "Which box does a note belong in"

[contract]
metric = "exact_match"
metric_synonyms = ["exact match"]
margin = 0.60
permitted_licences = ["customer-owned"]

[[bases]]
name = "tiny"
path = "base"
licence = "Apache-2.0"

[budget]
usd = 0.10
gpu_seconds = 600
wall_seconds = 900
tokens = 2000000
dev_evaluations = 4
bytes = 50000000

[splits]
probe = 64
dev = 100
sealed = 200
"""


def rows(count: int, seed: int, letter: str) -> list[dict[str, str]]:
    """Notes with a word and its box, in random order."""
    draw = random.Random(seed)
    words = [WORDS[i % len(WORDS)] for i in range(count)]
    draw.shuffle(words)
    return [
        {
            "row_id": f"{letter}{i}",
            "prompt": f"{word} {seed}{i}",
            "answer": chr(ord("a") + WORDS.index(word)),
            "licence": "customer-owned",
            "source": "notes",
        }
        for i, word in enumerate(words)
    ]


def warm_up(folder: str) -> None:
    """Teach the tiny base to tell the words apart, with every answer off by one: it knows the words and gets
    no box right. Runs in a child."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = random.Random(0)
    for _ in range(160):
        texts = []
        for i in draw.sample(range(len(WORDS)), 24):
            wrong = chr(ord("a") + (i + 1) % len(WORDS))
            chat = [
                {"role": "user", "content": f"{WORDS[i]} {draw.randrange(1000)}"},
                {"role": "assistant", "content": wrong},
            ]
            texts.append(tokenizer.apply_chat_template(chat, tokenize=False))
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def write(path: Path, lines: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def shared(session: Path) -> Path:
    """The scenario, built once in the folder of a test session, whichever of its processes comes first."""
    folder = session / "toy-boxes"
    with (session / "toy-boxes.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "private" / "planted.toml").exists():
            build(folder)
    return folder


def build(folder: Path) -> Path:
    """The scenario's folder, base included."""
    (folder / "base").mkdir(parents=True)
    call_in_child(
        "making a base", "test_compute_tiny:build", str(folder / "base"), logs=folder.parent / "logs"
    )
    call_in_child("warming the base up", "toy:warm_up", str(folder / "base"), logs=folder.parent / "logs")
    (folder / "brief.md").write_text(BRIEF)
    (folder / "scenario.toml").write_text(SCENARIO)
    (folder / "expected.toml").write_text('[reference]\noutcome = "accepted"\ncaught_by = "nothing"\n')
    public = rows(960, 1, "r")
    unlicensed = [{**row, "row_id": f"u{i}", "licence": "vendor"} for i, row in enumerate(rows(24, 5, "u"))]
    write(folder / "public" / "rows.jsonl", public + unlicensed)
    write(folder / "probe" / "rows.jsonl", rows(64, 2, "p"))
    write(folder / "dev" / "rows.jsonl", rows(100, 3, "d"))
    write(folder / "private" / "sealed.jsonl", rows(200, 4, "s"))
    (folder / "private" / "planted.toml").write_text("unlicensed_rows = 24\n")
    return folder
