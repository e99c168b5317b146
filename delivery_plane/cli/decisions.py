"""`identity` and `gates`: who may decide, and deciding."""

import asyncio
import time
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from delivery_plane.cli.deliveries import server_of
from delivery_plane.cli.shared import (
    existing_platform,
    moment,
    open_home,
    out,
    platform,
    print_json,
    progress,
    say,
)
from delivery_plane.delivery import GateDecision
from delivery_plane.errors import DeliveryPlaneError
from delivery_plane.gates import decided
from delivery_plane.identity import check_name
from workflows.client import connect, wake

identity = App(name="identity", help="Make and list identities.")
gates = App(name="gates", help="The approver's inbox: list, show, approve, reject.")

As = Annotated[str, Parameter(name="--as", help="Name of the identity that decides.")]


@identity.command
def new(name: str, /, *, role: Literal["seat", "approver", "operator"]) -> int:
    """Make an identity: a name, a role and a key under the home folder.

    Parameters
    ----------
    role
        What it may do: hold a seat, decide gates, or operate the platform.
    """
    check_name(name)  # before a home folder is made for it
    made = platform().identities.new(name, role)
    say(f"{made.name}: {made.role}, public key {made.public_key}")
    return 0


@identity.command(name="list")
def list_identities(*, json: bool = False) -> int:
    """Every identity with its role and public key.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    found = [known.model_dump(exclude={"private_key"}) for known in platform().identities.all()]
    if json:
        print_json(found)
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("name", "role", "public key"):
        table.add_column(column, no_wrap=True)
    for known in found:
        table.add_row(known["name"], known["role"], known["public_key"])
    out.print(table)
    return 0


@gates.command(name="list")
def list_gates(*, wait: bool = False, json: bool = False) -> int:
    """Gates that wait for a decision.

    Parameters
    ----------
    wait
        Wait until there is one.
    json
        Print a JSON list.
    """
    parts = existing_platform()
    found = list(parts.gates.waiting())
    if wait and not found:
        say("waiting for a gate; Ctrl-C stops", progress)
    while wait and not found:
        time.sleep(0.5)
        found = list(parts.gates.waiting())
    if json:
        print_json([{"delivery_id": g.delivery_id, **g.gate.model_dump(mode="json")} for g in found])
        return 0
    for waiting in found:
        say(f"{waiting.gate.gate_id}  {waiting.gate.gate}  until {moment(waiting.gate.deadline_at)}")
    if not found:
        say("no gate waits")
    return 0


@gates.command(name="show")
def show_gate(gate_id: str, /, *, json: bool = False) -> int:
    """Exactly the bytes a gate's decision is about, and their digest.

    Parameters
    ----------
    json
        Print gate and decision as one JSON object.
    """
    parts = existing_platform()
    found = parts.gates.find(gate_id)
    decision = decided(parts.ledger.record(found.delivery_id), gate_id)
    if json:
        print_json(
            {
                "delivery_id": found.delivery_id,
                **found.gate.model_dump(mode="json"),
                "decided": decision.model_dump(mode="json") if decision else None,
            }
        )
        return 0
    say(found.gate.shown)
    say(f"digest {found.gate.digest}")
    if decision:
        say(f"{decision.decision} by {decision.by}: {decision.reason}")
    else:
        say(
            f"decide until {moment(found.gate.deadline_at)}: delivery-plane gates approve {gate_id} --as NAME"
            f" --reason ... --digest {found.gate.digest}"
        )
    return 0


@gates.command
def approve(gate_id: str, /, *, as_: As, reason: str = "", digest: str | None = None) -> int:
    """Approve a gate, signing the digest of what it shows.

    Parameters
    ----------
    reason
        Why; a decision without a reason is refused.
    digest
        Digest of what you were shown; the gate refuses when it shows something else.
    """
    return _decide(gate_id, as_, GateDecision.APPROVED, reason, digest)


@gates.command
def reject(gate_id: str, /, *, as_: As, reason: str = "", digest: str | None = None) -> int:
    """Reject a gate, signing the digest of what it shows.

    Parameters
    ----------
    reason
        Why; a decision without a reason is refused.
    digest
        Digest of what you were shown; the gate refuses when it shows something else.
    """
    return _decide(gate_id, as_, GateDecision.REJECTED, reason, digest)


def _decide(
    gate_id: str,
    name: str,
    decision: Literal[GateDecision.APPROVED, GateDecision.REJECTED],
    reason: str,
    digest: str | None,
) -> int:
    settings, home = open_home()
    parts = existing_platform()
    approver = parts.identities.get(name)
    found = parts.gates.find(gate_id)
    parts.gates.decide(found.delivery_id, gate_id, approver, decision, reason, digest or found.gate.digest)
    say(f"{gate_id}: {decision} by {name}, recorded and signed")

    async def send() -> None:
        run = server_of(home, settings)
        await wake(await connect(run.address, run.namespace), found.delivery_id)

    try:
        asyncio.run(send())
    except DeliveryPlaneError as error:
        # The decision stands in the ledger; only the nudge was lost.
        say(f"the delivery will read it when it runs again ({error})", progress)
    return 0
