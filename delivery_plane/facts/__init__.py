"""Every kind of fact, as one union discriminated by `kind`; old versions are brought up to date on read."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from delivery_plane.facts.base import FactBase as FactBase
from delivery_plane.facts.base import RowSet as RowSet
from delivery_plane.facts.base import Visibility as Visibility
from delivery_plane.facts.data import (
    ConfigRendered,
    DataProfiled,
    DataSelected,
    Offer,
    PlanChecked,
    PreflightCheck,
    PreflightChecked,
    ScheduleOffered,
    ScheduleQuoted,
)
from delivery_plane.facts.delivered import (
    AcceptanceTested,
    AcceptanceUnmeasured,
    ArtifactRegistered,
    CanaryStep,
    CandidateEvaluated,
    CardChecked,
    DeploymentObserved,
    MeasurementFailed,
    MetersRead,
)
from delivery_plane.facts.governance import (
    BudgetReserved,
    BudgetSettled,
    ClaimRefused,
    DeliveryCancelled,
    DeliveryClosed,
    DeliveryFaulted,
    DeliveryOpened,
    DeliveryPurged,
    EvaluationRequested,
    FaultPlanted,
    FlagRaised,
    FlagResolved,
    GateDecided,
    GateDecisionRefused,
    GateOpened,
    PlantedTruth,
    SeatSilent,
    SeatWithdrew,
    StageOpened,
)
from delivery_plane.facts.training import (
    CheckpointSaved,
    JobEnded,
    JobStarted,
    PolicyObserved,
    PreferenceObserved,
    ProbeObserved,
    Strategy,
)

Fact = Annotated[
    DeliveryOpened
    | PlantedTruth
    | FaultPlanted
    | StageOpened
    | ClaimRefused
    | GateOpened
    | GateDecided
    | GateDecisionRefused
    | FlagRaised
    | FlagResolved
    | BudgetReserved
    | BudgetSettled
    | EvaluationRequested
    | SeatWithdrew
    | SeatSilent
    | DeliveryFaulted
    | DeliveryCancelled
    | DeliveryClosed
    | DeliveryPurged
    | DataProfiled
    | DataSelected
    | PlanChecked
    | ConfigRendered
    | PreflightChecked
    | ScheduleOffered
    | ScheduleQuoted
    | JobStarted
    | ProbeObserved
    | CheckpointSaved
    | JobEnded
    | MeasurementFailed
    | CandidateEvaluated
    | ArtifactRegistered
    | DeploymentObserved
    | MetersRead
    | CardChecked
    | AcceptanceTested
    | AcceptanceUnmeasured,
    Field(discriminator="kind"),
]

_FACT: TypeAdapter[Fact] = TypeAdapter(Fact)


def _version_2(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 2 added fields that say by their defaults what version 1 did not measure."""
    return {**payload, "v": 2}


UPCASTS: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    (kind, 1): _version_2
    for kind in (
        "data_selected",
        "plan_checked",
        "config_rendered",
        "job_started",
        "probe_observed",
        "job_ended",
        "fault_planted",
    )
}
"""(kind, version) to a function that returns the same fact one version later."""


def _version(payload: dict[str, Any]) -> int:
    version = payload.get("v")
    return version if isinstance(version, int) else 0


def parse_fact(payload: dict[str, Any]) -> Fact:
    """A fact from its recorded payload, of whatever version. Raises pydantic.ValidationError."""
    while upcast := UPCASTS.get((str(payload.get("kind")), _version(payload))):
        payload = upcast(payload)
    return _FACT.validate_python(payload)


__all__ = [
    "UPCASTS",
    "AcceptanceTested",
    "AcceptanceUnmeasured",
    "ArtifactRegistered",
    "BudgetReserved",
    "BudgetSettled",
    "CanaryStep",
    "CandidateEvaluated",
    "CardChecked",
    "CheckpointSaved",
    "ClaimRefused",
    "ConfigRendered",
    "DataProfiled",
    "DataSelected",
    "DeliveryCancelled",
    "DeliveryClosed",
    "DeliveryFaulted",
    "DeliveryOpened",
    "DeliveryPurged",
    "DeploymentObserved",
    "EvaluationRequested",
    "Fact",
    "FactBase",
    "FaultPlanted",
    "FlagRaised",
    "FlagResolved",
    "GateDecided",
    "GateDecisionRefused",
    "GateOpened",
    "JobEnded",
    "JobStarted",
    "MeasurementFailed",
    "MetersRead",
    "Offer",
    "PlanChecked",
    "PlantedTruth",
    "PolicyObserved",
    "PreferenceObserved",
    "PreflightCheck",
    "PreflightChecked",
    "ProbeObserved",
    "RowSet",
    "ScheduleOffered",
    "ScheduleQuoted",
    "SeatSilent",
    "SeatWithdrew",
    "StageOpened",
    "Strategy",
    "Visibility",
    "parse_fact",
]
