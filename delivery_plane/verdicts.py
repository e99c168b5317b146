"""What the oracle says: findings, stage verdicts, flags, acceptance. Data only."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from delivery_plane.delivery import Frozen, StageClass, StageName, VerdictStatus


class Finding(Frozen):
    """One rule's reading of the facts, citing the entries it rests on."""

    rule: str
    blocking: bool
    status: Literal["passed", "failed", "unscored"]
    message: str
    entries: tuple[int, ...]


class StageVerdict(Frozen):
    """A stage visit's result: every rule's finding, and their summary."""

    stage: StageName
    attempt: int
    stage_class: StageClass
    status: VerdictStatus
    findings: tuple[Finding, ...]

    @property
    def blocked(self) -> bool:
        """Whether a blocking rule failed: the delivery then ends as a violation."""
        return any(finding.blocking and finding.status == "failed" for finding in self.findings)


class Flag(Frozen):
    """What the detector saw at one look, raised or not."""

    raised: bool
    score: float = Field(description="upper confidence bound of the paired probe uplift, as a share")
    threshold: float
    items: int
    message: str


class AcceptanceDecision(StrEnum):
    """The sealed test's answer."""

    ACCEPT = "accept"
    REJECT_NOT_BETTER = "reject_not_better"
    REJECT_WORSE = "reject_worse"
    REJECT_REGRESSION = "reject_regression"


class Acceptance(Frozen):
    """The sealed paired test of the delivered model against its base."""

    decision: AcceptanceDecision
    wins: int = Field(ge=0, description="items the delivered model alone got right")
    losses: int = Field(ge=0, description="items the base alone got right")
    ties: int = Field(ge=0)
    items: int = Field(gt=0)
    p_value: float = Field(description="one-sided exact McNemar")
    uplift: float
    uplift_interval: tuple[float, float]
    alpha: float
    margin: float
    e_value: float | None = None
    threshold: float | None = None
    futility: float | None = None
