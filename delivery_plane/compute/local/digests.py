"""Content digests of models and files, and refusal of model files that could run code. Loads no weights.

Tensors are hashed from the safetensors bytes themselves, before any library parses the file.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from delivery_plane.compute.plane import ModelRef
from delivery_plane.entry import canonical, sha256
from delivery_plane.errors import ArtifactFault

MAX_HEADER_BYTES = 1_000_000
MAX_TENSORS = 50_000
"""A real model's header is a few kilobytes; one with 1.5 million empty tensors took a library 14 s and 1.3 GB."""

PICKLE_SUFFIXES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5"}
)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
ADAPTER_CONFIG = "adapter_config.json"
TEMPLATE_FILE = "chat_template.jinja"

_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file directly in `folder`, by name."""
    return {path.name: file_digest(path) for path in sorted(folder.iterdir()) if path.is_file()}


def refuse_unsafe(folder: Path) -> None:
    """Raise ArtifactFault if a model folder holds files that run code when loaded, or names code to load."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in PICKLE_SUFFIXES:
            raise ArtifactFault(f"{folder}: {path.name} may hold pickled code; save the model as safetensors")
    config = folder / "config.json"
    if config.exists() and "auto_map" in json.loads(config.read_text(encoding="utf-8")):
        raise ArtifactFault(f"{folder}: config.json names remote code (auto_map); remove it")


def model_digest(folder: Path) -> str:
    """Digest over all tensors of a model folder. Neither sharding nor metadata changes it."""
    refuse_unsafe(folder)
    return weights_digest(folder)


def weights_digest(folder: Path) -> str:
    """As `model_digest`, for a folder this plane wrote, which may hold an optimizer beside the weights."""
    return combined(tensor_digests(folder))


def combined(digests: dict[str, str]) -> str:
    """One digest for tensor digests by name."""
    return sha256(canonical(digests))


def tensor_digests(folder: Path) -> dict[str, str]:
    """SHA-256 per tensor, over its name, dtype, shape and bytes. Raises ArtifactFault."""
    digests: dict[str, str] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            for tensor in _tensors(path, file):
                if tensor.name in digests:
                    raise ArtifactFault(f"{path}: tensor {tensor.name} is stored twice")
                digests[tensor.name] = _tensor_digest(file, tensor)
    if not digests:
        raise ArtifactFault(f"{folder}: no tensors in safetensors files; give a model folder")
    return digests


def reference_digest(model: ModelRef) -> str:
    """Digest of a model reference without loading it: its tensors, or what adapters stand on and they together."""
    digest = model_digest(model.base_path)
    for checkpoint in model.checkpoints:
        weights = weights_digest(checkpoint)
        config = checkpoint / ADAPTER_CONFIG
        if not config.exists():
            digest = weights
            continue
        fields = json.loads(config.read_text(encoding="utf-8"))
        # What scales the product; the rest of the file holds a local path, which must not change the digest.
        shape = {name: fields.get(name) for name in ("r", "lora_alpha", "use_rslora", "fan_in_fan_out")}
        digest = combined({"base": digest, "adapter": weights, "shape": sha256(canonical(shape))})
    return digest


def tokenizer_digest(folder: Path) -> str:
    """Digest over the files that turn messages into token ids: tokenizer, special tokens, template."""
    present = {name: file_digest(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    return sha256(canonical(present))


def _tensor_digest(file: BinaryIO, tensor: _Tensor) -> str:
    digest = hashlib.sha256(canonical([tensor.name, tensor.dtype, list(tensor.shape)]))
    file.seek(tensor.start)
    left = tensor.stop - tensor.start
    while left:
        data = file.read(min(left, _CHUNK))
        digest.update(data)
        left -= len(data)
    return digest.hexdigest()


def _tensors(path: Path, file: BinaryIO) -> Iterator[_Tensor]:
    size = path.stat().st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
        raise ArtifactFault(f"{path}: header of {length} bytes; at most {MAX_HEADER_BYTES} are read")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
        header.pop("__metadata__", None)
        if len(header) > MAX_TENSORS:
            raise ArtifactFault(f"{path}: {len(header)} tensors; at most {MAX_TENSORS} are read")
        found = sorted((_tensor(name, fields, 8 + length) for name, fields in header.items()), key=_place)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactFault(f"{path}: not a safetensors file ({error})") from None
    end = 8 + length
    for tensor in found:
        # Bytes that no tensor covers, or two cover, would escape the digest or be read two ways.
        if tensor.start != end or tensor.stop < tensor.start:
            raise ArtifactFault(f"{path}: tensor {tensor.name} does not follow the one before it")
        end = tensor.stop
    if end != size:
        raise ArtifactFault(f"{path}: {size} bytes, its tensors end at {end}")
    yield from found


def _tensor(name: str, fields: dict[str, Any], offset: int) -> _Tensor:
    start, stop = (int(value) for value in fields["data_offsets"])
    shape = tuple(int(value) for value in fields["shape"])
    return _Tensor(name, str(fields["dtype"]), shape, offset + start, offset + stop)


def _place(tensor: _Tensor) -> tuple[int, int, str]:
    return tensor.start, tensor.stop, tensor.name


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is repeated in the header")
    return found
