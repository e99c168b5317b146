"""Which checkpoints are complete. A marker with every file's digest is written last; without it, none counts."""

import json
import os
import shutil
from pathlib import Path

from delivery_plane.compute.local.digests import file_digests
from delivery_plane.compute.plane import JobSpec
from delivery_plane.errors import ComputeFault

MARKER = "complete.json"
KEPT = 2
"""The ledger may be one checkpoint behind the disk, never more: the trainer waits at each probe."""

USED = "used.json"
"""What the job was trained on by then; the rest of a checkpoint is the training library's."""

NEEDED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", USED)
"""A trainer that finds one of these missing starts it afresh without a word, and the run is another run."""

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")


def mark_complete(job: JobSpec, step: int) -> None:
    """Declare the checkpoint of `step` complete, durably."""
    folder = job.checkpoint_path(step)
    missing = _missing(folder)
    if missing:
        raise ComputeFault(f"{folder}: saved without {', '.join(missing)}")
    text = json.dumps({"job": job.digest, "step": step, "files": file_digests(folder)}, indent=1)
    partial = folder / f"{MARKER}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / MARKER)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def require_complete(job: JobSpec, step: int) -> Path:
    """The folder of a complete checkpoint of this very job. Raises ComputeFault when anything is off."""
    folder = job.checkpoint_path(step)
    marker = folder / MARKER
    if not marker.exists():
        raise ComputeFault(f"{folder}: no complete checkpoint to resume from")
    marked = json.loads(marker.read_text(encoding="utf-8"))
    if marked["job"] != job.digest or marked["step"] != step:
        # A changed learning rate, say, is ignored by the trainer on resume without a word.
        raise ComputeFault(f"{folder}: checkpoint of another job; resume with the settings it was made with")
    found = file_digests(folder)
    changed = [name for name, digest in marked["files"].items() if found.get(name) != digest]
    if changed or _missing(folder):
        raise ComputeFault(f"{folder}: checkpoint damaged: {', '.join(changed or _missing(folder))}")
    return folder


def drop_after(job: JobSpec, step: int) -> None:
    """Remove checkpoints later than `step`: the run goes on from there and will write them again."""
    for folder, found in _checkpoints(job.job_folder).items():
        if found > step:
            shutil.rmtree(folder)


def keep_last(job: JobSpec) -> None:
    """Remove all but the last `KEPT` checkpoints."""
    by_step = sorted(_checkpoints(job.job_folder).items(), key=lambda item: item[1])
    for folder, _ in by_step[:-KEPT]:
        shutil.rmtree(folder)


def _checkpoints(job_folder: Path) -> dict[Path, int]:
    found = {}
    for folder in job_folder.glob("checkpoint-*"):
        number = folder.name.removeprefix("checkpoint-")
        if number.isdecimal():
            found[folder] = int(number)
    return found


def _missing(folder: Path) -> list[str]:
    missing = [name for name in NEEDED if not (folder / name).exists()]
    return missing if any((folder / name).exists() for name in WEIGHTS) else [*missing, "weights"]
