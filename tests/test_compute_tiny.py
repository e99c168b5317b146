"""A tiny untrained base and rows that other tests train on; made in a child, so that pytest loads no torch."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

from delivery_plane.compute.local.children import call_in_child
from delivery_plane.compute.local.digests import file_digest, model_digest
from delivery_plane.compute.local.plane import LocalPlane
from delivery_plane.compute.plane import JobSpec

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ANSWERS = ("red", "green", "blue", "yellow")


def build(folder: str) -> None:
    """Write a random Qwen3-style model of about 40k parameters with a byte-level tokenizer. Runs in a child."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(letters) + len(specials),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def write_rows(path: Path, count: int, start: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for i in range(start, start + count):
            answer = ANSWERS[i % len(ANSWERS)]
            row = {"row_id": f"r{i}", "prompt": f"{i} say {answer}", "answer": answer}
            file.write(json.dumps({**row, "licence": "cc0", "source": "test"}) + "\n")
    return path


@functools.cache
def root() -> Path:
    """A folder of this test process, with the base and the rows in it."""
    folder = Path(tempfile.mkdtemp(prefix="compute-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "base").mkdir()
    call_in_child("making a base", "test_compute_tiny:build", str(folder / "base"), logs=folder / "logs")
    write_rows(folder / "train.jsonl", 96, 0)
    write_rows(folder / "probe.jsonl", 16, 1000)
    write_rows(folder / "items.jsonl", 60, 2000)
    return folder


@functools.cache
def plane() -> LocalPlane:
    return LocalPlane(cache=root() / "cache", logs=root() / "logs", device="cpu")


def job(name: str, **changes: object) -> JobSpec:
    """A short full-weights job in a folder of its own."""
    folder = root()
    fields = {
        "job_id": name,
        "base_path": folder / "base",
        "base_digest": model_digest(folder / "base"),
        "dataset_path": folder / "train.jsonl",
        "dataset_digest": file_digest(folder / "train.jsonl"),
        "probe_path": folder / "probe.jsonl",
        "probe_digest": file_digest(folder / "probe.jsonl"),
        "job_folder": folder / "jobs" / name,
        "mechanism": "lora" if changes.get("lora") else "full",
        "learning_rate": 0.01,
        "scheduler": "linear",
        "warmup_share": 0.05,
        "batch_rows": 8,
        "steps": 40,
        "max_tokens_per_row": 64,
        "masking": "assistant_only",
        "lora": None,
        "seed": 3,
        "device": "cpu",
    }
    return JobSpec.model_validate({**fields, **changes})


def test_jobs_start_with_every_library_loaded() -> None:
    plane().warm()
