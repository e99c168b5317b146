"""What a stage is and what it is given. No stage is implemented here."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from delivery_plane.compute.plane import ComputePlane, Suite
from delivery_plane.delivery import Amounts, DeliverySpec, StageName
from delivery_plane.facts import FactBase
from delivery_plane.record import Record
from delivery_plane.scenario import Scenario, SplitPaths

Facts = Generator[FactBase, Literal["stop"] | None, None]
"""A stage yields facts; each is in the ledger before the stage goes on. Sending "stop" ends a job early."""


@dataclass(frozen=True)
class StageContext:
    """One visit of one stage: what was ordered, what is recorded, and where work may happen."""

    spec: DeliverySpec
    attempt: int
    scenario: Scenario
    splits: SplitPaths
    record: Record
    """Everything recorded before this visit's work began."""
    plane: ComputePlane
    folder: Path
    """The delivery's own folder: datasets, jobs, artifacts."""
    bases: dict[str, Path]
    """Base models on offer, by name."""
    fence: int
    """Rises with every run of this visit; a trainer writes under it."""
    used: Amounts
    reserved: Amounts
    reserve: Callable[[str, Amounts], bool]
    """Set budget aside for a piece of work (by id, once); False: the budget does not allow it."""
    settle: Callable[[str, Amounts], None]
    """Say what the work really used."""
    sealed_overlap: "OverlapSearch"

    def suite(self, split: Path) -> Suite:
        """All rows of a split, judged as the contract says."""
        return Suite(items=split, metric=self.scenario.contract.metric)


class OverlapSearch(Protocol):
    """Finds public rows that overlap the sealed set, in the evaluator's process."""

    def __call__(self, public: Path, ngram_words: int) -> tuple[str, ...]:
        """Row ids only."""
        ...


class Stage(Protocol):
    """One of the ten stages."""

    name: StageName

    def prepare(self, context: StageContext) -> Iterable[FactBase]:
        """Facts the seat is entitled to before it claims."""
        ...

    def execute(self, context: StageContext, claim: Any) -> Facts:
        """Do what the claim asks and yield what was observed."""
        ...
