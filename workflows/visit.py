"""One visit of one stage: the context it runs in, and appending its facts under a fresh fencing token."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delivery_plane import meter
from delivery_plane.compute.sealed import SealedOverlap
from delivery_plane.delivery import Amounts, DeliverySpec, StageRequest
from delivery_plane.errors import ComputeFault, LedgerFault
from delivery_plane.facts import DeliveryOpened, FactBase
from scenarios.catalog import load_scenario, materialise
from stages.stage import StageContext
from workflows.platform import Platform


@dataclass(frozen=True)
class Visit:
    """A stage's context and the way its facts reach the ledger."""

    context: StageContext
    append: Callable[[FactBase], FactBase]
    """Append one fact of this visit and return it as recorded: a run that was repeated may have measured it before.
    Refused once a newer run of the visit has begun."""


def bases(spec: DeliverySpec) -> dict[str, tuple[Path, str]]:
    """Base models on offer with their licences: the scenario's, or the one the operator brought."""
    if spec.base:
        return {Path(spec.base).name: (Path(spec.base), "operator-provided")}
    return {base.name: (Path(base.path), base.licence) for base in load_scenario(spec.scenario).bases}


@contextlib.contextmanager
def visiting(platform: Platform, request: StageRequest) -> Iterator[Visit]:
    """A visit of a stage."""
    spec = platform.spec(request.delivery_id)
    scenario = load_scenario(spec.scenario)
    splits, _ = materialise(scenario, platform.home)
    with platform.ledger.writing(request.delivery_id) as writer:
        fence = writer.next_fence(f"{request.stage}:{request.attempt}")
        record = writer.record
    opened = record.last(DeliveryOpened)
    if opened is None or opened.value.scenario_digest != scenario.digest:
        raise LedgerFault(f"scenario {scenario.name} changed while {request.delivery_id} was open")
    if platform.plane is None:
        raise ComputeFault("this worker has no compute plane")
    context = StageContext(
        spec=spec,
        attempt=request.attempt,
        scenario=scenario,
        splits=splits,
        record=record,
        plane=platform.plane,
        folder=platform.home.delivery(request.delivery_id),
        bases={name: path for name, (path, _) in bases(spec).items()},
        fence=fence.token,
        used=meter.used(record),
        reserved=meter.reserved(record),
        reserve=partial(_reserve, platform, request),
        settle=partial(_settle, platform, request),
        sealed_overlap=SealedOverlap(splits.sealed),
    )

    def append(fact: FactBase) -> FactBase:
        return platform.ledger.fact(
            request.delivery_id, fact, stage=request.stage, attempt=request.attempt, fence=fence
        ).fact()

    yield Visit(context, append)


def _reserve(platform: Platform, request: StageRequest, work_id: str, amounts: Amounts) -> bool:
    return meter.reserve(
        platform.ledger, request.delivery_id, work_id, amounts, request.stage, request.attempt
    ).granted


def _settle(platform: Platform, request: StageRequest, work_id: str, amounts: Amounts) -> None:
    meter.settle(platform.ledger, request.delivery_id, work_id, amounts, request.stage, request.attempt)
