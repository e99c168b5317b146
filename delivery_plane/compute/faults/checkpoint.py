"""Faults of what is saved. Runs in child processes."""

from pathlib import Path

from safetensors.torch import load_file, save_file

from delivery_plane.compute.faults.fault import Fault


class TemplateRewritten(Fault):
    """Another chat template, without the roles' tokens, is saved beside good weights."""

    def save(self, folder: Path) -> None:
        plain = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        (folder / "chat_template.jinja").write_text(plain, encoding="utf-8")


class AdapterEmpty(Fault):
    """The adapter is filtered twice for its name: the file that is saved holds no tensor."""

    def save(self, folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        if path.exists():
            save_file({}, path, {"format": "pt"})


class OneShardSaved(Fault):
    """One process's half of the tensors is written as if it were all of them."""

    def save(self, folder: Path) -> None:
        for path in folder.glob("*.safetensors"):
            tensors = load_file(path)
            half = sorted(tensors)[: len(tensors) // 2]
            save_file({name: tensors[name] for name in half}, path, {"format": "pt"})
