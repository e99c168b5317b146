"""What this machine has, found without loading torch."""

import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]


def resolve_device(device: Device) -> Literal["cpu", "cuda"]:
    """The device that "auto" means here: a GPU if there is one and torch was built for it."""
    if device != "auto":
        return device
    return "cuda" if Path("/dev/nvidiactl").exists() and "+cpu" not in version("torch") else "cpu"


def memory_available_bytes(device: Literal["cpu", "cuda"]) -> int:
    """Free memory of the device; 0 when there is no such device."""
    if device == "cuda":
        return _cuda_free_bytes()
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _cuda_free_bytes() -> int:
    if not (tool := shutil.which("nvidia-smi")):
        return 0
    asked = [tool, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
        return int(found.splitlines()[0]) * 1024 * 1024
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0
