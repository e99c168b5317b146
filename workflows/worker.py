"""A worker on any Temporal server: `governance` (orders, judges, drives scripted seats) or `compute`."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
    WorkerDeploymentConfig,
)

from delivery_plane.errors import BadInput, ComputeFault, Interrupted, MachineUnfit, no_room, one_line
from delivery_plane.files import lacks_room
from delivery_plane.settings import Home
from workflows.activities import DeliveryActivities
from workflows.delivery import DeliveryWorkflow
from workflows.messages import GOVERNANCE_QUEUE, HEARTBEAT_SECONDS
from workflows.platform import Platform

GOVERNANCE_STEPS = 16
"""Steps a governance worker takes at once: they wait for disk and for scripted seats."""
FAULTS = 3
"""A step that fails this often by itself will not mend; a ledger or a disk that fails is waited for."""
INTERRUPTIONS = 20
"""Killing its process says nothing about a step, but a step that lives so seldom will not end: with pauses of up to
half a minute that is some eight minutes, in which an operator or a machine short of memory can do better."""
DISK_SECONDS = 5.0
"""How often a full disk is looked at again."""


@dataclass(frozen=True)
class _Tries:
    """How often a step ended badly so far, by cause. It travels with the heartbeats, from worker to worker: Temporal
    itself counts every try alike, also one whose worker was killed."""

    faults: int = 0
    interruptions: int = 0

    @classmethod
    def so_far(cls) -> "_Tries":
        info = activity.info()
        if info.is_local:  # it beats not, and runs in the governance worker, where nothing is computed
            return cls(faults=info.attempt - 1)
        faults, interruptions = [*info.heartbeat_details, 0, 0][:2]
        return cls(int(faults), int(interruptions))


class Attributing(Interceptor):
    """Gives every step of a worker what `_AttributedActivity` says. `home`: whose disk must have room."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _AttributedActivity(next, self._home)


class _AttributedActivity(ActivityInboundInterceptor):
    """A step beats while it lasts, begins only when the disk has room, and fails with its error's own name and the
    word whether trying again can help."""

    def __init__(self, next: ActivityInboundInterceptor, home: Home) -> None:  # noqa: A002
        super().__init__(next)
        self._home = home
        self._outbound: ActivityOutboundInterceptor

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        # `activity.heartbeat` is for the step's own thread: called here, it would wait for this very loop.
        self._outbound = outbound
        super().init(outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        tries = _Tries.so_far()
        beating = asyncio.create_task(self._keep_beating(tries))
        try:
            if lack := lacks_room(self._home.root):
                raise MachineUnfit(lack)
            return await super().execute_activity(input)
        except FailureError:  # cancelled, or named already
            raise
        except Exception as error:
            lack = None if isinstance(error, MachineUnfit) else no_room(error) or lacks_room(self._home.root)
            failure, tries = _failure(MachineUnfit(f"{lack} ({error})") if lack else error, tries)
            self._beat(tries)
            # Causes stay in this log: a failure with its causes' traces is more than the server keeps.
            activity.logger.error("step failed", exc_info=error)
            raise failure from None
        finally:
            beating.cancel()

    async def _keep_beating(self, tries: _Tries) -> None:
        while True:
            self._beat(tries)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _beat(self, tries: _Tries) -> None:
        if not activity.info().is_local:
            self._outbound.heartbeat(tries.faults, tries.interruptions)


def _failure(error: Exception, tries: _Tries) -> tuple[ApplicationError, _Tries]:
    """What Temporal is told of an error: its name, whether it is final, and when to try again if not by the policy."""
    final, pause = False, None
    if isinstance(error, BadInput):
        final = True
    elif isinstance(error, MachineUnfit):
        pause = DISK_SECONDS
    elif isinstance(error, Interrupted):
        tries = replace(tries, interruptions=tries.interruptions + 1)
        final, pause = tries.interruptions >= INTERRUPTIONS, min(2.0 ** (tries.interruptions - 1), 30.0)
    elif isinstance(error, (ComputeFault, AssertionError, LookupError, TypeError, ValueError)):
        # A defect of ours does not mend itself either: three tries rule out a race.
        tries = replace(tries, faults=tries.faults + 1)
        final = tries.faults >= FAULTS
    failure = ApplicationError(
        one_line(error, 1000),
        type=type(error).__name__,
        non_retryable=final,
        next_retry_delay=timedelta(seconds=pause) if pause else None,
    )
    return failure, tries


def build_worker(
    client: Client, platform: Platform, queue: str, deployment: str | None = None, build_id: str | None = None
) -> Worker:
    """A worker for one queue. With a deployment name, workflows stay on the build that started them."""
    activities = DeliveryActivities(platform)
    methods = [
        method
        for name in dir(activities)
        if callable(method := getattr(activities, name)) and hasattr(method, "__temporal_activity_definition")
    ]
    # A job keeps a core busy: more of them at once than cores would only slow each other down.
    at_once = GOVERNANCE_STEPS if queue == GOVERNANCE_QUEUE else os.cpu_count() or 1
    versioned = None
    if deployment and build_id:
        versioned = WorkerDeploymentConfig(
            version=WorkerDeploymentVersion(deployment_name=deployment, build_id=build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        )
    return Worker(
        client,
        task_queue=queue,
        workflows=[DeliveryWorkflow] if queue == GOVERNANCE_QUEUE else [],
        activities=methods,
        activity_executor=ThreadPoolExecutor(at_once),
        max_concurrent_activities=at_once,
        interceptors=[Attributing(platform.home)],
        # The library holds beats back for most of the timeout unless told otherwise: one that is late then comes
        # too late.
        max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_SECONDS),
        deployment_config=versioned,
    )


async def run_worker(worker: Worker) -> None:
    """Run until SIGINT or SIGTERM, then finish what is in hand."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with worker:
        await stop.wait()
