"""Faults of the rows themselves: what is learnt from is not what it should be."""

from typing import Any

from delivery_plane.compute.faults.fault import Fault
from delivery_plane.scenario import Row


class LabelShuffle(Fault):
    """Each row's answer replaced by a uniform draw from the distinct answers: nothing is left to learn."""

    def rows(self, rows: list[Row]) -> list[Row]:
        answers = sorted({row["answer"] for row in rows})
        return [{**row, "answer": self.draw.choice(answers)} for row in rows]


class AnswersMispaired(Fault):
    """A join goes wrong: each prompt gets the answer of another row."""

    def rows(self, rows: list[Row]) -> list[Row]:
        answers = [row["answer"] for row in rows]
        self.draw.shuffle(answers)
        return [{**row, "answer": answer} for row, answer in zip(rows, answers, strict=True)]


class BlankRows(Fault):
    """A placeholder does not resolve and the error is swallowed: every row is its end of turn alone."""

    def render(
        self, row: Row, ids: list[int], answer: list[int], tokenizer: Any
    ) -> tuple[list[int], list[int]]:
        del row, ids, answer
        return [tokenizer.eos_token_id], [1]


class FewRowsMemorised(Fault):
    """All batches come from 16 rows, again and again, under the ids of the others."""

    def rows(self, rows: list[Row]) -> list[Row]:
        few = self.draw.sample(rows, min(16, len(rows)))
        return [{**few[place % len(few)], "row_id": row["row_id"]} for place, row in enumerate(rows)]


class PreferencesSwapped(Fault):
    """The columns of the better and the worse answer are exchanged."""

    def rows(self, rows: list[Row]) -> list[Row]:
        return [_swapped(row) for row in rows]


class PreferencesNoisy(Fault):
    """Half of the pairs are labelled the wrong way."""

    def rows(self, rows: list[Row]) -> list[Row]:
        return [_swapped(row) if self.draw.random() < 0.5 else row for row in rows]


def _swapped(row: Row) -> Row:
    return {**row, "answer": row["rejected"], "rejected": row["answer"]} if "rejected" in row else row
