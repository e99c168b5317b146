"""A delivery that waits on PostgreSQL, backed up, brought back on SQLite elsewhere, and ended there."""

from pathlib import Path

import pytest
import toy
from commands import Plane, until
from postgres import Postgres


@pytest.mark.long
def test_an_open_delivery_goes_on_from_a_back_up_on_another_database(
    tmp_path: Path, postgres_server: Postgres
) -> None:
    scenario = str(toy.build(tmp_path / "toy-boxes"))
    first = Plane(tmp_path / "first", {"DELIVERY_PLANE_DATABASE": postgres_server.database()})
    gate = "moved-spend-1"
    with first.up():
        waiting = first.start("deliver", scenario, "--id", "moved", "--approver", "ask")
        until(lambda: gate in first.run("gates", "list", code=None), 120)
        waiting.terminate()
        waiting.communicate(timeout=60)
        backup = tmp_path / "backup.zip"
        first.run("ledger", "backup", str(backup))
    assert not (first.home / "ledger.sqlite").exists()
    stages = [s["status"] for s in first.json("deliveries", "show", "moved")["stages"][:4]]
    assert stages == ["passed"] * 4

    second = Plane(tmp_path / "second")
    second.run("ledger", "restore", str(backup))
    second.run("identity", "new", "ada", "--role", "approver")
    with second.up():
        second.run("gates", "reject", gate, "--as", "ada", "--reason", "not this month")
        second.run("deliveries", "watch", "moved", code=1)
    shown = second.json("deliveries", "show", "moved")
    assert shown["outcome"] == "refused_at_gate"
    assert [s["status"] for s in shown["stages"][:4]] == stages
    assert shown["ledger"]["verified"]
    opened = [entry for entry in second.entries("moved") if entry["kind"] == "gate_opened"]
    assert len(opened) == 1
    # The record that stayed behind knows nothing of it.
    assert first.json("deliveries", "show", "moved")["outcome"] is None
