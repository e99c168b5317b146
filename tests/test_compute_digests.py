"""Content digests: what must change them, what must not, and what is refused unread."""

import json
import struct
from pathlib import Path

import pytest

from delivery_plane.compute.local.digests import model_digest, tensor_digests, tokenizer_digest
from delivery_plane.errors import ArtifactFault

Tensors = dict[str, tuple[str, list[int], bytes]]
TENSORS: Tensors = {
    "a": ("F32", [2, 1], b"\x01\x02\x03\x04\x05\x06\x07\x08"),
    "b": ("F32", [1], b"\x09\x0a\x0b\x0c"),
}


def stored(folder: Path, tensors: Tensors, name: str = "model.safetensors", **metadata: str) -> Path:
    folder.mkdir(exist_ok=True)
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for tensor, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    write(folder / name, header, data)
    return folder


def write(path: Path, header: object, data: bytes) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def test_sharding_order_metadata_and_file_names_do_not_matter(tmp_path: Path) -> None:
    one = stored(tmp_path / "one", TENSORS)
    turned = stored(tmp_path / "turned", dict(reversed(TENSORS.items())), format="pt", by="someone else")
    parts = stored(tmp_path / "parts", {"a": TENSORS["a"]}, "model-1.safetensors")
    stored(parts, {"b": TENSORS["b"]}, "model-2.safetensors")
    assert model_digest(one) == model_digest(turned) == model_digest(parts)


def test_any_changed_byte_name_shape_or_format_matters(tmp_path: Path) -> None:
    changed: list[Tensors] = [
        {**TENSORS, "b": (dtype, shape, content)}
        for dtype, shape, content in [
            *(("F32", [1], bytes([*TENSORS["b"][2][:i], 255, *TENSORS["b"][2][i + 1 :]])) for i in range(4)),
            ("I32", [1], TENSORS["b"][2]),
            ("F32", [1, 1], TENSORS["b"][2]),
        ]
    ]
    changed.append({"a": TENSORS["a"], "c": TENSORS["b"]})
    digests = {model_digest(stored(tmp_path / str(i), tensors)) for i, tensors in enumerate(changed)}
    assert len(digests) == len(changed)
    assert model_digest(stored(tmp_path / "same", TENSORS)) not in digests


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "extra/hidden.PKL"])
def test_pickle_is_refused(tmp_path: Path, name: str) -> None:
    folder = stored(tmp_path / "model", TENSORS)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ArtifactFault, match="pickled code"):
        model_digest(folder)


def test_remote_code_is_refused(tmp_path: Path) -> None:
    folder = stored(tmp_path / "model", TENSORS)
    (folder / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.Config"}}')
    with pytest.raises(ArtifactFault, match="remote code"):
        model_digest(folder)


def test_a_header_too_long_or_with_too_many_tensors_is_refused_unread(tmp_path: Path) -> None:
    many = {f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(1_500_000 // 100)}
    write(tmp_path / "model.safetensors", many, b"")
    assert len(tensor_digests(tmp_path)) == 15_000
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(ArtifactFault, match="header"):
        tensor_digests(tmp_path)
    write(tmp_path / "model.safetensors", {"__metadata__": {"x": "y" * 1_000_000}}, b"")
    with pytest.raises(ArtifactFault, match="header"):
        tensor_digests(tmp_path)
    write(tmp_path / "model.safetensors", b"{" + b",".join(b'"%x":0' % i for i in range(60_000)) + b"}", b"")
    with pytest.raises(ArtifactFault, match="60000 tensors"):
        tensor_digests(tmp_path)


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"123"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"123"),
        (
            {
                "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
            },
            b"123",
        ),
        (b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}', b""),
        (b"[1]", b""),
        (b"not json", b""),
        ({"a": {"dtype": "U8"}}, b""),
    ],
)
def test_files_that_could_be_read_two_ways_are_refused(tmp_path: Path, header: object, data: bytes) -> None:
    write(tmp_path / "model.safetensors", header, data)
    with pytest.raises(ArtifactFault):
        tensor_digests(tmp_path)


def test_a_folder_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactFault, match="no tensors"):
        model_digest(tmp_path)


def test_the_tokenizer_digest_covers_the_template(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    before = tokenizer_digest(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert tokenizer_digest(tmp_path) != before
