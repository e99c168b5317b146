"""A fault from outside the package, as anybody may write one: `--fault tests/faults_outside.py:Example`."""

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.scenario import Row


class Example(Fault):
    """Every answer is learnt without its last character."""

    def rows(self, rows: list[Row]) -> list[Row]:
        return [{**row, "answer": row["answer"][:-1]} for row in rows]
