"""Making the deliverable: merge, save, and load again elsewhere to see that it is the same. No judgement."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from delivery_plane.compute.faults import planted
from delivery_plane.compute.local.digests import (
    TEMPLATE_FILE,
    TOKENIZER_FILES,
    combined,
    file_digests,
    refuse_unsafe,
    tensor_digests,
    weights_digest,
)
from delivery_plane.compute.local.models import load_model, load_tokenizer, merged, use_device
from delivery_plane.compute.local.tokens import left_padded, serving_prompts
from delivery_plane.compute.plane import ModelRef, Registration
from delivery_plane.delivery import LARGEST_NUMBER
from delivery_plane.errors import ComputeFault
from delivery_plane.rows import read_rows

ITEMS_COMPARED = 16
MAX_LOGITS = 16_000_000
"""Logits compared, at most: 64 MB in float32."""

LEFT_BEHIND = ("generation_config.json", "README.md")
"""A base's decoding settings are not delivered: decoding belongs to whoever serves or evaluates."""


def write(
    model: ModelRef, out: Path, items: Path, logits: Path, fault_name: str | None, device_name: str
) -> tuple[str | None, bool]:
    """Write the deliverable to `out`, whole or not at all, and the logits it was saved with to `logits`.

    Returns the checkpoint's digest as it is now, and whether all weights are finite.
    """
    device = use_device(device_name)
    fault = planted(fault_name, 0)
    loaded = load_model(model, device)
    if model.checkpoints:
        loaded = fault.load(loaded)
    batch = _batch(model.base_path, items, loaded)
    as_trained = _logits(loaded, batch)
    loaded = fault.merge(merged(loaded))
    finite = all(bool(torch.isfinite(value).all()) for value in loaded.parameters())
    save_file({"as_trained": as_trained, "merged": _logits(loaded, batch)}, logits)
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}.*"):  # by a process that was killed: nobody else writes here
        shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        _fill(partial, model, loaded)
        _publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    checkpoint = model.checkpoint_path
    return weights_digest(checkpoint) if checkpoint else None, finite


def read_back(
    model: ModelRef,
    out: Path,
    items: Path,
    logits: Path,
    written: tuple[str | None, bool],
    device_name: str,
) -> Registration:
    """Load `out` as anyone would, in a process that has never seen it, and compare."""
    device = use_device(device_name)
    refuse_unsafe(out)
    # float32 on both sides: a copied base may be stored in a shorter format.
    loaded = (
        AutoModelForCausalLM.from_pretrained(out, local_files_only=True, dtype=torch.float32)
        .to(device)
        .eval()
    )
    batch = _batch(model.base_path, items, loaded)
    now = _logits(loaded, batch)
    before = load_file(logits)
    checkpoint_digest_now, weights_finite = written
    ours, base = tensor_digests(out), tensor_digests(model.base_path)
    files = file_digests(out)
    return Registration(
        model_digest=combined(ours),
        base_digest=combined(base),
        tensors=len(ours),
        tensors_equal_to_base=sum(base.get(name) == digest for name, digest in ours.items()),
        files=files,
        bytes=sum((out / name).stat().st_size for name in files),
        checkpoint_digest_now=checkpoint_digest_now,
        template_equal_to_base=_template(out) == _template(model.base_path),
        tokenizer_equal_to_base=_present(out, TOKENIZER_FILES) == _present(model.base_path, TOKENIZER_FILES),
        reload_max_logit_difference=_difference(now, before["merged"]),
        checkpoint_max_logit_difference=_difference(now, before["as_trained"]),
        logit_positions=now.shape[0],
        finite=weights_finite and bool(torch.isfinite(now).all()),
    )


def _fill(folder: Path, model: ModelRef, loaded: Any) -> None:
    base = model.base_path
    if not model.checkpoints:
        for path in [
            *base.glob("*.safetensors"),
            *base.glob("*.safetensors.index.json"),
            base / "config.json",
        ]:
            shutil.copyfile(path, folder / path.name)
    else:
        # Tied weights are one tensor here and stay one in the file.
        loaded.save_pretrained(folder)
    for name in LEFT_BEHIND:
        (folder / name).unlink(missing_ok=True)
    # Copied, not saved again: saving a tokenizer may rewrite it, and the base's is the one that was used.
    for name in TOKENIZER_FILES:
        if (base / name).exists():
            shutil.copyfile(base / name, folder / name)


def _publish(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
    elif file_digests(out) != file_digests(partial):
        raise ComputeFault(f"{out}: holds another model already; register under another name")


def _batch(base: Path, items: Path, loaded: Any) -> dict[str, torch.Tensor]:
    """The first items' prompts as served, padded on the left; (items, tokens)."""
    tokenizer = load_tokenizer(base)
    prompts = serving_prompts(tokenizer, [row["prompt"] for row in read_rows(items)[:ITEMS_COMPARED]])
    vocabulary = loaded.get_output_embeddings().weight.shape[0]
    fits = max(1, MAX_LOGITS // (vocabulary * max(map(len, prompts))))
    prompts = prompts[:fits]
    mask = torch.tensor(left_padded([[1] * len(ids) for ids in prompts], 0))
    return {
        "input_ids": torch.tensor(left_padded(prompts, tokenizer.pad_token_id)).to(loaded.device),
        "attention_mask": mask.to(loaded.device),
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0).to(loaded.device),
    }


def _logits(loaded: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Logits of the real tokens; (positions, vocabulary), float32, on the CPU."""
    with torch.no_grad():
        found = loaded(**batch, use_cache=False).logits
    return found[batch["attention_mask"].bool()].float().cpu().contiguous()


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest absolute difference; where either is not finite, the largest number that a record holds."""
    largest = float((one - other).abs().max())
    return largest if largest <= LARGEST_NUMBER else float(LARGEST_NUMBER)


def _template(folder: Path) -> str:
    if (folder / TEMPLATE_FILE).exists():
        return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    if not settings.exists():
        return ""
    return json.dumps(json.loads(settings.read_text(encoding="utf-8")).get("chat_template", ""))


def _present(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    found = file_digests(folder)
    return {name: found[name] for name in names if name in found and name != TEMPLATE_FILE}
