"""Activities on a real ledger, without a server: what a scripted seat may do wrong, and doing things twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from delivery_plane.delivery import DeliverySpec, Outcome, StageName, StageRequest
from delivery_plane.errors import BadInput, StaleFence
from delivery_plane.facts import DeliveryClosed, EvaluationRequested, SeatWithdrew
from delivery_plane.seat.seat import Seat
from delivery_plane.settings import Home
from scenarios.seats.catalog import SEATS
from scenarios.seats.turn import Turn
from workflows.activities import DeliveryActivities
from workflows.messages import Fault, SeatTurn
from workflows.platform import Platform, open_platform
from workflows.visit import visiting

DELIVERY = "a-delivery"


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    # The plane's parent side alone: nothing here computes.
    from delivery_plane.compute.local.plane import LocalPlane

    home = Home(tmp_path / "home")
    return open_platform(home, LocalPlane(home.cache, home.logs, "cpu"))


def opened(platform: Platform, seat: str = "reference") -> DeliveryActivities:
    activities = DeliveryActivities(platform)
    activities.open_delivery(DeliverySpec(delivery_id=DELIVERY, scenario="support-intents", seat=seat))
    return activities


def intake(activities: DeliveryActivities) -> StageRequest:
    request = StageRequest(delivery_id=DELIVERY, stage=StageName.INTAKE, attempt=1)
    activities.open_stage(request)
    return request


class Stuck:
    """A script that fails in one way."""

    def __init__(self, fail: Callable[[], None]) -> None:
        self._fail = fail

    def play(self, seat: Seat, turn: Turn) -> None:  # noqa: ARG002 - a script's signature
        self._fail()


def _bad_input() -> None:
    raise BadInput("no candidate job-9")


def _lookup() -> None:
    raise LookupError("no JobEnded on record yet")


@pytest.mark.parametrize("fail", [_bad_input, _lookup])
def test_a_script_that_cannot_go_on_has_withdrawn_and_is_no_platform_fault(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]
) -> None:
    monkeypatch.setitem(SEATS, "stuck", Stuck(fail))
    activities = opened(platform, "stuck")
    intake(activities)
    turn = SeatTurn(delivery_id=DELIVERY, stage=StageName.INTAKE, attempt=1)
    assert activities.drive_seat(turn)
    withdrew = platform.ledger.record(DELIVERY).last(SeatWithdrew)
    assert withdrew
    assert "cannot go on" in withdrew.value.reason
    assert activities.close_delivery(DELIVERY).outcome is Outcome.WITHDRAWN_BY_SEAT


def test_every_step_done_twice_is_recorded_once(platform: Platform) -> None:
    activities = opened(platform)
    opened(platform)
    request = intake(activities)
    once = len(platform.ledger.entries(DELIVERY))
    intake(activities)
    assert len(platform.ledger.entries(DELIVERY)) == once
    turn = SeatTurn(delivery_id=DELIVERY, stage=StageName.INTAKE, attempt=1)
    assert activities.drive_seat(turn)
    assert activities.drive_seat(turn)
    first, again = activities.run_stage(request), activities.run_stage(request)
    assert first.ended == again.ended == "complete"
    assert activities.judge_stage(request) == activities.judge_stage(request)
    fault = Fault(delivery_id=DELIVERY, cancelled=True, boundary="operator", message="cancelled")
    activities.record_fault(fault)
    activities.record_fault(fault)
    assert activities.close_delivery(DELIVERY) == activities.close_delivery(DELIVERY)
    kinds = [entry.kind for entry in platform.ledger.entries(DELIVERY)]
    assert kinds == [
        "delivery_opened", "planted_truth", "data_profiled", "stage_opened", "intake", "stage",
        "delivery_cancelled", "delivery_closed",
    ]  # fmt: skip
    closed = platform.ledger.record(DELIVERY).last(DeliveryClosed)
    assert closed
    assert closed.value.outcome is Outcome.CANCELLED_BY_OPERATOR
    assert len(closed.value.not_reached) == 9


def test_a_repeated_run_goes_on_from_what_was_recorded_first(platform: Platform) -> None:
    opened(platform)
    request = StageRequest(delivery_id=DELIVERY, stage=StageName.EVAL, attempt=1)
    with visiting(platform, request) as first:
        first.append(EvaluationRequested(request_id="look-1", candidate="job-1"))
    with visiting(platform, request) as again:
        recorded = again.append(EvaluationRequested(request_id="look-1", candidate="base"))
        with pytest.raises(StaleFence):
            first.append(EvaluationRequested(request_id="look-2", candidate="base"))
    assert recorded == EvaluationRequested(request_id="look-1", candidate="job-1")
