"""The approver's use-case: show exact bytes and their digest, decide once, sign. Decided in the ledger.

A message to a workflow carries no authority: it only makes the workflow read the ledger again.
Refused attempts to decide are facts too.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Literal

from delivery_plane.delivery import Frozen, GateDecision, GateRequest
from delivery_plane.entry import Entry, canonical, sha256
from delivery_plane.errors import BadInput, DeliveryPlaneError
from delivery_plane.facts import DeliveryOpened, GateDecided, GateDecisionRefused, GateOpened
from delivery_plane.identity import Identities, Identity, signed_by
from delivery_plane.ledger import Ledger, utc_now
from delivery_plane.record import Record


class DecisionRefused(DeliveryPlaneError):
    """A person's decision on a gate was not taken. The refusal is recorded as a fact."""

    exit_code = 1

    def __init__(self, refusal: GateDecisionRefused) -> None:
        self.refusal = refusal
        super().__init__(f"{refusal.gate_id}: decision refused ({refusal.why}): {refusal.detail}")


class OpenGate(Frozen):
    """A gate that waits, and in which delivery."""

    delivery_id: str
    gate: GateOpened


def decision_bytes(delivery_id: str, gate_id: str, decision: GateDecision, digest: str, reason: str) -> bytes:
    """What an approver signs."""
    return canonical(
        {
            "delivery_id": delivery_id,
            "gate_id": gate_id,
            "decision": decision.value,
            "digest": digest,
            "reason": reason,
        }
    )


def decided(record: Record, gate_id: str) -> GateDecided | None:
    """The decision of a gate, or None while it waits."""
    return next((fact.value for fact in record.facts(GateDecided) if fact.value.gate_id == gate_id), None)


class Gates:
    """Opens, shows, decides and expires gates on one ledger."""

    def __init__(self, ledger: Ledger, identities: Identities) -> None:
        self._ledger = ledger
        self._identities = identities

    def open(self, request: GateRequest, shown: str) -> GateOpened:
        """Open a gate, once, showing `shown`."""
        now = utc_now()
        fact = GateOpened(
            gate_id=request.gate_id,
            gate=request.kind,
            attempt=request.attempt,
            subject=request.subject,
            shown=shown,
            digest=sha256(shown.encode()),
            opened_at=now.isoformat(timespec="microseconds"),
            deadline_at=(now + timedelta(seconds=request.deadline_seconds)).isoformat(
                timespec="microseconds"
            ),
        )
        entry = self._ledger.fact(
            request.delivery_id, fact, key=f"gate:{request.gate_id}:opened", attempt=request.attempt
        )
        opened = entry.fact()
        assert isinstance(opened, GateOpened)
        return opened

    def seconds_left(self, gate: GateOpened) -> float:
        """Until the gate's deadline; 0 when it has passed."""
        return max(0.0, (datetime.fromisoformat(gate.deadline_at) - utc_now()).total_seconds())

    def waiting(self) -> Iterator[OpenGate]:
        """Every gate without a decision, over all deliveries."""
        for delivery_id in self._ledger.deliveries():
            record = self._ledger.record(delivery_id)
            for fact in record.facts(GateOpened):
                if decided(record, fact.value.gate_id) is None:
                    yield OpenGate(delivery_id=delivery_id, gate=fact.value)

    def find(self, gate_id: str) -> OpenGate:
        """A gate by id, waiting or not. Raises BadInput."""
        for delivery_id in self._ledger.deliveries():
            for fact in self._ledger.record(delivery_id).facts(GateOpened):
                if fact.value.gate_id == gate_id:
                    return OpenGate(delivery_id=delivery_id, gate=fact.value)
        raise BadInput(f"no gate {gate_id}; `gates list` shows those that wait")

    def decide(
        self,
        delivery_id: str,
        gate_id: str,
        identity: Identity,
        decision: Literal[GateDecision.APPROVED, GateDecision.REJECTED],
        reason: str,
        digest: str,
    ) -> GateDecided:
        """Take one person's decision on the bytes with `digest`. Raises DecisionRefused, after recording it.

        Who decides is settled by the signature against the registered identity of that name: role and public
        key come from the register, never from what is handed in.
        """
        if not reason.isascii() and any("\ud800" <= c <= "\udfff" for c in reason):
            raise BadInput("the reason is not text; type it again")
        registered = self._identities.get(identity.name)
        signature = identity.sign(decision_bytes(delivery_id, gate_id, decision, digest, reason))
        with self._ledger.writing(delivery_id) as writer:
            refusal = self._refusal(
                writer.record, delivery_id, gate_id, registered, decision, reason, digest, signature
            )
            if refusal:
                count = sum(entry.kind == "gate_decision_refused" for entry in writer.entries)
                writer.fact(
                    refusal, key=f"gate:{gate_id}:refused:{count + 1}", actor=f"approver:{identity.name}"
                )
            else:
                opened = _opened(writer.record, gate_id)
                fact = GateDecided(
                    gate_id=gate_id,
                    gate=opened.gate,
                    decision=decision,
                    by=identity.name,
                    public_key=registered.public_key,
                    reason=reason,
                    digest=digest,
                    signature=signature,
                    seconds_open=(utc_now() - datetime.fromisoformat(opened.opened_at)).total_seconds(),
                )
                writer.fact(fact, key=f"gate:{gate_id}:decided", actor=f"approver:{identity.name}")
        # A decision may come after the delivery has closed and signed its head: what is refused then is signed too.
        self._ledger.checkpoint(delivery_id)
        if refusal:
            raise DecisionRefused(refusal)
        return fact

    def _refusal(
        self,
        record: Record,
        delivery_id: str,
        gate_id: str,
        identity: Identity,
        decision: GateDecision,
        reason: str,
        digest: str,
        signature: str,
    ) -> GateDecisionRefused | None:
        def no(why: str, detail: str) -> GateDecisionRefused:
            return GateDecisionRefused.model_validate(
                {"gate_id": gate_id, "by": identity.name, "why": why, "detail": detail}
            )

        gate = _opened(record, gate_id)
        order = record.last(DeliveryOpened)
        if order and identity.public_key == order.value.seat_public_key:
            return no("seat_holder", "whoever holds the seat may not decide its gates")
        if identity.role not in ("approver", "operator"):
            return no(
                "not_an_approver", f"role {identity.role} may not decide gates; use an approver's identity"
            )
        already = decided(record, gate_id)
        if already and already.decision is not GateDecision.EXPIRED:
            return no("already_decided", f"{already.decision} by {already.by}")
        if already or utc_now() >= datetime.fromisoformat(gate.deadline_at):
            return no("late", f"the deadline was {gate.deadline_at}")
        if not reason.strip():
            return no("no_reason", "say why with --reason")
        if digest != gate.digest:
            return no("changed_bytes", f"this gate shows {gate.digest}, the decision was for {digest}")
        if not signed_by(
            identity.public_key, signature, decision_bytes(delivery_id, gate_id, decision, digest, reason)
        ):
            return no("bad_signature", f"not signed by the registered key of {identity.name}")
        return None

    def expire(self, delivery_id: str, gate_id: str) -> Entry:
        """Record that nobody decided in time. A decision that came first stands."""
        with self._ledger.writing(delivery_id) as writer:
            gate = _opened(writer.record, gate_id)
            fact = GateDecided(
                gate_id=gate_id,
                gate=gate.gate,
                decision=GateDecision.EXPIRED,
                by=None,
                public_key=None,
                reason="no decision by the deadline",
                digest=gate.digest,
                signature=None,
                seconds_open=(utc_now() - datetime.fromisoformat(gate.opened_at)).total_seconds(),
            )
            return writer.fact(fact, key=f"gate:{gate_id}:decided")


def _opened(record: Record, gate_id: str) -> GateOpened:
    for fact in record.facts(GateOpened):
        if fact.value.gate_id == gate_id:
            return fact.value
    raise BadInput(f"no gate {gate_id} in this delivery")
