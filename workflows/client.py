"""The way to Temporal for commands and workers: connect, start, wake, cancel, wait. Deadlines everywhere."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode, TLSConfig

from delivery_plane.delivery import DeliverySpec
from delivery_plane.errors import BadInput, ServerFault
from workflows.delivery import DeliveryWorkflow
from workflows.messages import GOVERNANCE_QUEUE, DeliveryReceipt

T = TypeVar("T")

CONNECT_SECONDS = 20.0
CALL_SECONDS = 15.0
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
        try:
            pem = [path.read_bytes() if path else None for path in (ca, cert, key)]
        except OSError as error:
            raise BadInput(f"{error.filename}: cannot be read ({error.strerror}); give a PEM file") from None
        return cls(TLSConfig(server_root_ca_cert=pem[0], client_cert=pem[1], client_private_key=pem[2]))


async def connect(address: str, namespace: str = "default", tls: Tls | None = None) -> Client:
    """A client with the pydantic converter. Raises ServerFault when nobody answers in time."""
    deadline = asyncio.get_running_loop().time() + CONNECT_SECONDS
    while True:
        try:
            client = await Client.connect(
                address,
                namespace=namespace,
                data_converter=pydantic_data_converter,
                tls=tls.config if tls else False,
            )
            await client.service_client.check_health(timeout=timedelta(seconds=5))
            return client
        except (RuntimeError, RPCError) as error:
            if asyncio.get_running_loop().time() > deadline:
                raise ServerFault(
                    f"no Temporal server answers at {address} ({error}); start one with `delivery-plane up`"
                ) from None
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


async def outcome(client: Client, delivery_id: str) -> DeliveryReceipt:
    """Wait for a delivery's end, over restarts of the server. Raises ServerFault when its workflow failed."""
    handle = client.get_workflow_handle_for(DeliveryWorkflow.run, delivery_id)
    lost_since: float | None = None
    while True:
        try:
            return await handle.result()
        except WorkflowFailureError as error:
            raise ServerFault(f"workflow of {delivery_id} failed: {error.cause}") from None
        except RPCError as error:
            now = asyncio.get_running_loop().time()
            lost_since = lost_since or now
            if now - lost_since > LOST_SECONDS:
                raise ServerFault(f"lost the server while {delivery_id} ran: {error.message}") from None
            await asyncio.sleep(1)


async def is_open(client: Client, delivery_id: str) -> bool:
    """Whether a delivery's workflow exists and runs."""
    try:
        found = await client.get_workflow_handle(delivery_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise ServerFault(f"describe {delivery_id}: {error.message}") from None
    return found.status is WorkflowExecutionStatus.RUNNING
