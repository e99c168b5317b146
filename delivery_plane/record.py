"""A read-only, typed view of a delivery's entries. It looks things up and judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from delivery_plane.claims import Claim, FlagAnswer
from delivery_plane.delivery import StageName
from delivery_plane.entry import Entry
from delivery_plane.facts import FactBase
from delivery_plane.verdicts import Acceptance, StageVerdict

T = TypeVar("T")
F = TypeVar("F", bound=FactBase)
C = TypeVar("C")


@dataclass(frozen=True)
class Cited(Generic[T]):
    """A value and the number of the entry it comes from."""

    entry: int
    value: T
    stage: StageName | None
    attempt: int


class Record:
    """Entries of one delivery, in order. `for_oracle=True` hides what judges must not know."""

    def __init__(self, entries: Sequence[Entry], *, for_oracle: bool = False) -> None:
        self.entries = tuple(entries)
        self._for_oracle = for_oracle

    @cached_property
    def _facts(self) -> tuple[Cited[FactBase], ...]:
        found = (
            Cited[FactBase](entry.number, entry.fact(), entry.stage, entry.attempt)
            for entry in self.entries
            if entry.type == "fact"
        )
        return tuple(cited for cited in found if cited.value.for_oracle or not self._for_oracle)

    @cached_property
    def _claims(self) -> tuple[Cited[Claim], ...]:
        return tuple(
            Cited[Claim](entry.number, entry.claim(), entry.stage, entry.attempt)
            for entry in self.entries
            if entry.type == "claim"
        )

    def facts(
        self, kind: type[F], stage: StageName | None = None, attempt: int | None = None
    ) -> list[Cited[F]]:
        """Facts of one kind in order, optionally of one stage or visit only."""
        return [
            Cited(cited.entry, cited.value, cited.stage, cited.attempt)
            for cited in self._facts
            if isinstance(cited.value, kind)
            and (stage is None or cited.stage == stage)
            and (attempt is None or cited.attempt == attempt)
        ]

    def last(
        self, kind: type[F], stage: StageName | None = None, attempt: int | None = None
    ) -> Cited[F] | None:
        """The latest fact of one kind, or None."""
        found = self.facts(kind, stage, attempt)
        return found[-1] if found else None

    def claim(self, kind: type[C], attempt: int | None = None) -> Cited[C] | None:
        """The latest claim of one kind (of one attempt), or None."""
        for cited in reversed(self._claims):
            value: object = cited.value
            if isinstance(value, kind) and attempt in (None, cited.attempt):
                return Cited(cited.entry, value, cited.stage, cited.attempt)
        return None

    def flag_answer(self, flag_id: str) -> Cited[FlagAnswer] | None:
        """The seat's answer to one flag, or None."""
        for cited in self._claims:
            if isinstance(cited.value, FlagAnswer) and cited.value.flag_id == flag_id:
                return Cited(cited.entry, cited.value, cited.stage, cited.attempt)
        return None

    def verdicts(self) -> list[Cited[StageVerdict]]:
        """Stage verdicts in order."""
        return [
            Cited(entry.number, StageVerdict.model_validate(entry.payload), entry.stage, entry.attempt)
            for entry in self.entries
            if entry.type == "verdict" and entry.kind == "stage"
        ]

    def acceptance(self) -> Cited[Acceptance] | None:
        """The sealed test's verdict, or None before it."""
        for entry in self.entries:
            if entry.type == "verdict" and entry.kind == "acceptance":
                return Cited(entry.number, Acceptance.model_validate(entry.payload), None, entry.attempt)
        return None
