"""The six top-level names are generic; none may come from anybody else's distribution."""

import importlib.util
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

FOLDERS = ("delivery_plane", "stages", "oracle", "scenarios", "workflows", "human_arm")


@pytest.mark.parametrize("name", FOLDERS)
def test_no_other_distribution_provides(name: str) -> None:
    # An editable install lists no packages of its own, so the set may be empty here.
    assert set(packages_distributions().get(name, ())) <= {"delivery-plane"}


@pytest.mark.parametrize("name", FOLDERS)
def test_is_imported_from_one_place(name: str) -> None:
    spec = importlib.util.find_spec(name)
    ours = importlib.util.find_spec("delivery_plane")
    assert spec is not None
    assert ours is not None
    assert spec.origin is not None, f"{name} has no __init__.py: a namespace package anybody could extend"
    assert ours.origin is not None
    assert Path(spec.origin).parent.parent == Path(ours.origin).parent.parent


def test_the_command_is_ours() -> None:
    commands = {entry.name: entry.value for entry in distribution("delivery-plane").entry_points}
    assert commands["delivery-plane"] == "delivery_plane.cli:entry"
