"""Faults of the rows themselves: what is learnt from is not what it should be."""

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.scenario import Row


class LabelShuffle(Fault):
    """Each row's answer replaced by a uniform draw from the distinct answers: nothing is left to learn."""

    def rows(self, rows: list[Row]) -> list[Row]:
        answers = sorted({row["answer"] for row in rows})
        return [{**row, "answer": self.draw.choice(answers)} for row in rows]
