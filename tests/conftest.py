"""The environment of every test, set before anything imports torch."""

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
)

import ledgers
import pytest
from postgres import Postgres, binaries, postgres

LONG_FILES = ("test_end_to_end_", "test_survival_", "test_compute_", "test_delivery_plane_cli_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: two processes share the files, and neither should end alone with a long one."""
    items.sort(key=lambda item: not item.path.name.startswith(LONG_FILES))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """One PostgreSQL server for all tests of a process that want one."""
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql)")
    with postgres() as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Lets a module's tests run twice: ledgers on SQLite, and on PostgreSQL."""
    if request.param == "postgresql":
        ledgers.NEW_DATABASE.append(request.getfixturevalue("postgres_server").database)
    yield request.param
    ledgers.NEW_DATABASE.clear()
