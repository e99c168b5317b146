"""Planted faults by name, or from a file outside the package: which there are, and making one. None is defined here."""

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.entry import read_text, sha256
from delivery_plane.errors import BadInput

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "label-shuffle": "data:LabelShuffle",
    }
)
"""Name to module of this package and class. Named, not imported: a fault may need libraries that only a child loads."""


def known_faults() -> tuple[str, ...]:
    """Names of the faults that ship with the package."""
    return tuple(FAULTS)


def check_fault(name: str | None) -> None:
    """Raise BadInput if `name` is neither a known fault nor a class defined in an existing FILE.py."""
    if name is None or name in FAULTS:
        return
    path, separator, kind = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise BadInput(
            f"fault {name[:80]!r}: no such fault; known: {', '.join(known_faults())}; or give FILE.py:Name"
        )
    try:
        # Read, not run: the process that takes an order is not the one the fault is for.
        defined = [node.name for node in ast.parse(read_text(Path(path), "a Python file")).body
                   if isinstance(node, ast.ClassDef)]  # fmt: skip
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{path}: not Python ({error}); mend the file") from None
    if kind not in defined:
        raise BadInput(f"{path}: defines no class {kind[:80]!r}; it has: {', '.join(defined) or 'none'}")


def fault_digest(name: str | None) -> str | None:
    """Digest of the file of a fault from outside the package; None for any other."""
    if name is None or name in FAULTS:
        return None
    return sha256(Path(name.rpartition(":")[0]).read_bytes())


def planted(name: str | None, seed: int) -> Fault:
    """The fault to call hooks on; one that changes nothing without a name. Raises BadInput."""
    if name is None:
        return Fault(seed)
    check_fault(name)
    if name in FAULTS:
        module, _, kind = FAULTS[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), kind)(seed)
    path, _, kind = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"fault_{sha256(path.encode())[:12]}", path)
    assert spec
    assert spec.loader
    module_found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module_found)
    found = getattr(module_found, kind)
    if not (isinstance(found, type) and issubclass(found, Fault)):
        raise BadInput(f"{path}: {kind} is no subclass of delivery_plane.compute.faults.fault.Fault")
    return found(seed)
