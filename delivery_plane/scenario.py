"""The Scenario type: a reproducible engagement and where its private truth lives. The type only."""

from pathlib import Path
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from delivery_plane.claims import IssueKind
from delivery_plane.delivery import Amounts, Frozen, Outcome

Metric = Literal["exact_match", "final_number", "tests_pass", "courteous", "game_won"]
"""How an answer is judged right; each is a program in `delivery_plane/compute/graders.py`, never a model.

`exact_match`: equal to the row's answer. `final_number`: the number after the last `####` equals the answer's.
`tests_pass`: the answer is Python that passes the row's tests. `courteous`: a reply that keeps the house rules.
`game_won`: the row's game is won by greedy turns.
"""


class Row(TypedDict):
    """One row of a split, as stored in JSON lines."""

    row_id: str
    prompt: str
    answer: str
    licence: str
    source: str
    turns: NotRequired[list[str]]
    """Of a longer conversation: what came between prompt and answer, the model's turn first, the user's last."""
    rejected: NotRequired[str]
    """Of a preference: the answer that is worse."""
    tests: NotRequired[str]
    """Python statements that fail unless the answer is right: they use its names, and plain values come back."""


class Contract(Frozen):
    """What the customer pays for. The seat reads it in the brief; the oracle compares with this."""

    metric: Metric
    metric_synonyms: tuple[str, ...] = ()
    margin: Annotated[float, Field(gt=0, le=1)]
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    permitted_licences: tuple[str, ...]
    feasible: bool = Field(default=True, description="false: the right answer at intake is to decline")


class BaseRef(Frozen):
    """A base model on offer: a name, and its folder (relative paths start at the scenarios package)."""

    name: str
    path: str
    licence: str


class SplitSizes(Frozen):
    """Least number of items each held-out split must have."""

    probe: int = Field(default=64, ge=16)
    dev: int = Field(ge=50)
    sealed: int = Field(ge=50)


class DataNeeded(Frozen):
    """Data that does not ship with a scenario: `files` in `folder` of the folder that the setting `data` names."""

    folder: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")
    files: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")], ...] = Field(
        min_length=1
    )
    origin: str
    """What it is and who publishes it: said when it is missing."""


class Scenario(Frozen):
    """A scenario as loaded from its folder; `digest` covers every file the folder holds, and the data it needs."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,47}$")
    version: int = Field(ge=1)
    title: str
    folder: Path
    digest: str
    brief: str
    contract: Contract
    bases: tuple[BaseRef, ...] = Field(min_length=1)
    budget: Amounts
    splits: SplitSizes
    public_seed: int = 0
    data: DataNeeded | None = None


class SplitPaths(Frozen):
    """Where one scenario's rows lie. `sealed` is readable by the operator's processes only."""

    public: Path
    probe: Path
    dev: Path
    sealed: Path


class Expected(Frozen):
    """What `expected.toml` declares for one seat or fault."""

    outcome: Outcome
    also: tuple[Outcome, ...] = Field(default=(), description="outcomes that are as good, by chance")
    failed_stages: tuple[str, ...] = ()
    caught_by: str


class PlantedIssues(Frozen):
    """Rows planted per issue kind: the truth that intake is compared with."""

    rows: dict[IssueKind, Annotated[int, Field(ge=0)]]
