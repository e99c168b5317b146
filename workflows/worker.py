"""A worker on any Temporal server: `governance` (orders, judges, drives scripted seats) or `compute`."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Worker,
    WorkerDeploymentConfig,
)

from delivery_plane.errors import BadInput, ComputeFault, DeliveryPlaneError
from workflows.activities import DeliveryActivities
from workflows.delivery import DeliveryWorkflow
from workflows.messages import GOVERNANCE_QUEUE
from workflows.platform import Platform

GOVERNANCE_STEPS = 16
"""Steps a governance worker takes at once: they wait for disk and for scripted seats."""
COMPUTE_TRIES = 3
"""A plane that fails this often on one step has failed; a ledger that fails is waited for."""


class _Attributed(Interceptor):
    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _AttributedActivity(next)


class _AttributedActivity(ActivityInboundInterceptor):
    """Platform errors keep their boundary's name, and say whether trying again can help."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        try:
            return await super().execute_activity(input)
        except DeliveryPlaneError as error:
            tries = activity.info().attempt
            final = isinstance(error, BadInput) or (
                isinstance(error, ComputeFault) and tries >= COMPUTE_TRIES
            )
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=final) from error
        except (AssertionError, LookupError, TypeError, ValueError) as error:
            # A defect of ours does not mend itself: three tries rule out a race, then the delivery ends.
            if activity.info().attempt >= COMPUTE_TRIES:
                raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
            raise


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
        interceptors=[_Attributed()],
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
