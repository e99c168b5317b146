"""The way to Temporal for commands and workers: connect, start, wake, cancel, wait. Deadlines everywhere."""

import asyncio
import json
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from delivery_plane.delivery import DeliverySpec
from delivery_plane.entry import read_input
from delivery_plane.errors import BadInput, ServerAway, ServerFault, one_line
from workflows.delivery import DeliveryWorkflow
from workflows.messages import ENTRIES_NAMED, GOVERNANCE_QUEUE, DeliveryReceipt

T = TypeVar("T")

CONNECT_SECONDS = 20.0
CALL_SECONDS = 15.0
DESCRIBE_SECONDS = 3.0
_WILL_NOT_MEND = (
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.INVALID_ARGUMENT,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
)
LOST_SECONDS = 120.0
"""How long a server may be away before waiting for a delivery's end is given up."""


@dataclass(frozen=True)
class Tls:
    """How to speak TLS with a server; the fields are PEM texts."""

    config: TLSConfig

    @classmethod
    def from_files(cls, wanted: bool, ca: Path | None, cert: Path | None, key: Path | None) -> "Tls | None":
        """From PEM files; None when TLS is not wanted. Raises BadInput for a file that cannot be read."""
        if not (wanted or ca or cert or key):
            return None
        if bool(cert) != bool(key):
            raise BadInput("--tls-client-cert and --tls-client-key go together")
        pem = [_pem(path) if path else None for path in (ca, cert, key)]
        return cls(TLSConfig(server_root_ca_cert=pem[0], client_cert=pem[1], client_private_key=pem[2]))


def _pem(path: Path) -> bytes:
    content = read_input(path, "a PEM file")
    if b"-----BEGIN " not in content:
        raise BadInput(f"{path}: no PEM text in it (-----BEGIN ...); give a PEM file")
    return content


@cache
def _runtime() -> Runtime:
    """The library's runtime, made to keep off standard output: there, results are printed that scripts read."""
    forwarding = LogForwardingConfig(logging.getLogger("temporalio.core"))
    levels = TelemetryFilter(core_level="ERROR", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(levels, forwarding)))


async def connect(address: str, namespace: str = "default", tls: Tls | None = None) -> Client:
    """A client with the pydantic converter. Raises ServerAway when nobody answers in time."""
    deadline = asyncio.get_running_loop().time() + CONNECT_SECONDS
    while True:
        try:
            # A listener that never says anything would be waited for longer than for none at all.
            async with asyncio.timeout_at(deadline):
                client = await Client.connect(
                    address,
                    namespace=namespace,
                    data_converter=pydantic_data_converter,
                    tls=tls.config if tls else False,
                    runtime=_runtime(),
                )
            await client.service_client.check_health(timeout=timedelta(seconds=5))
        except (RuntimeError, RPCError, TimeoutError) as error:
            if asyncio.get_running_loop().time() > deadline:
                raise ServerAway(
                    f"no Temporal server answers at {address} ({one_line(error, 160) or 'silence'});"
                    " name another address, or start one with `delivery-plane up`"
                ) from None
        except (
            ValueError
        ) as error:  # refused before anything is tried: a TLS file whose PEM holds no certificate
            raise BadInput(f"{address}: {one_line(error, 160)}") from None
        else:
            return client
        await asyncio.sleep(0.2)


async def _within(call: Coroutine[Any, Any, T], doing: str) -> T:
    try:
        return await asyncio.wait_for(call, CALL_SECONDS)
    except TimeoutError:
        raise ServerFault(
            f"{doing}: no answer in {CALL_SECONDS:.0f} s: no worker polls queue {GOVERNANCE_QUEUE};"
            f" start one with `delivery-plane worker --queue {GOVERNANCE_QUEUE}`"
        ) from None
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise BadInput(f"{doing}: no such open delivery on this server") from None
        raise ServerFault(f"{doing}: {error.message}") from None


async def start_delivery(client: Client, spec: DeliverySpec, *, again: bool = False) -> None:
    """Start a delivery's workflow; its id is the delivery's. Raises BadInput when the id was used before.

    `again`: take up an open delivery whose workflow has ended; what is recorded is not done twice.
    """
    try:
        await client.start_workflow(
            DeliveryWorkflow.run,
            spec,
            id=spec.delivery_id,
            task_queue=GOVERNANCE_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE
            if again
            else WorkflowIDReusePolicy.REJECT_DUPLICATE,
            rpc_timeout=timedelta(seconds=CALL_SECONDS),
        )
    except WorkflowAlreadyStartedError:
        raise BadInput(f"delivery {spec.delivery_id} exists; leave out --id to get a new one") from None
    except RPCError as error:
        raise ServerFault(f"start {spec.delivery_id}: {error.message}") from None


async def wake(client: Client, delivery_id: str) -> None:
    """Tell a delivery that the ledger has news for it."""
    handle = client.get_workflow_handle(delivery_id)
    await _within(handle.execute_update(DeliveryWorkflow.wake), f"wake {delivery_id}")


async def cancel(client: Client, delivery_id: str) -> None:
    """Ask a delivery to end; it records that an operator cancelled."""
    await _within(client.get_workflow_handle(delivery_id).cancel(), f"cancel {delivery_id}")


async def outcome(
    client: Client, delivery_id: str, lost_seconds: float | None = LOST_SECONDS
) -> DeliveryReceipt:
    """Wait for a delivery's end, over restarts of the server. Raises ServerFault when its workflow failed.

    `lost_seconds`: how long the server may be away at a time; None: as long as it takes.
    """
    handle = client.get_workflow_handle_for(DeliveryWorkflow.run, delivery_id)
    while True:
        try:
            return await handle.result()
        except WorkflowFailureError as error:
            raise ServerFault(f"workflow of {delivery_id} failed: {error.cause}") from None
        except RPCError as error:
            if error.status in _WILL_NOT_MEND:
                raise ServerFault(f"the server no longer tells of {delivery_id}: {error.message}") from None
            lost = f"lost the server while {delivery_id} ran: {error.message}"
        # How long it is away is counted anew each time: the wait before this one may have lasted for hours.
        lost_since = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
        while not await _serves(client):
            if lost_seconds and asyncio.get_running_loop().time() - lost_since > lost_seconds:
                raise ServerFault(lost)
            await asyncio.sleep(1)


async def _serves(client: Client) -> bool:
    try:
        return await client.service_client.check_health(timeout=timedelta(seconds=5))
    except RPCError:
        return False


@dataclass(frozen=True)
class Waiting:
    """A step that failed, or whose worker died, and is tried again; `tries` counts from 1."""

    step: str
    tries: int
    why: str


async def waiting(client: Client, delivery_id: str) -> Waiting | None:
    """What a delivery waits for besides people: the step that does not succeed. None: nothing, or it cannot be told."""
    try:
        found = await client.get_workflow_handle(delivery_id).describe(
            rpc_timeout=timedelta(seconds=DESCRIBE_SECONDS)
        )
    except RPCError:
        return None
    for pending in found.raw_description.pending_activities:
        if (
            pending.HasField("last_failure")
            and pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        ):
            why = one_line(pending.last_failure.message, 300)
            return Waiting(pending.activity_type.name, pending.attempt, why)
    return None


async def is_open(client: Client, delivery_id: str) -> bool:
    """Whether a delivery's workflow exists and runs."""
    try:
        found = await client.get_workflow_handle(delivery_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise ServerFault(f"describe {delivery_id}: {error.message}") from None
    return found.status is WorkflowExecutionStatus.RUNNING


async def running_deliveries(client: Client) -> list[str]:
    """Ids of all deliveries whose workflow runs on this server."""
    query = "WorkflowType = 'delivery' AND ExecutionStatus = 'Running'"
    try:
        return [found.id async for found in client.list_workflows(query)]
    except RPCError as error:
        raise ServerFault(f"list workflows: {error.message}") from None


async def known_entries(client: Client, delivery_id: str) -> int:
    """How many entries of the ledger a delivery's workflow has been told of: 0 before it has opened."""
    history = await client.get_workflow_handle(delivery_id).fetch_history()
    return max((told for event in history.events for told in _entries_told(event)), default=0)


async def terminate(client: Client, delivery_id: str, reason: str) -> None:
    """End a delivery's workflow at once; its ledger is left as it is."""
    await _within(
        client.get_workflow_handle(delivery_id).terminate(reason=reason), f"terminate {delivery_id}"
    )


def _entries_told(event: HistoryEvent) -> Iterator[int]:
    """Numbers of entries that a step's receipt names; 1 for a receipt that names none: the delivery is open by then."""
    payloads = [*event.activity_task_completed_event_attributes.result.payloads]
    payloads += event.marker_recorded_event_attributes.details["result"].payloads
    for payload in payloads:
        yield 1
        try:
            receipt = json.loads(payload.data)
        except ValueError:
            continue
        if isinstance(receipt, dict):
            yield from (receipt[name] for name in ENTRIES_NAMED if isinstance(receipt.get(name), int))
