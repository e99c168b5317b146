"""The platform's parts on one home folder, opened together: ledger, identities, gates, plane."""

from dataclasses import dataclass
from pathlib import Path

from delivery_plane.compute.plane import ComputePlane
from delivery_plane.database import named
from delivery_plane.delivery import DeliverySpec
from delivery_plane.errors import LedgerFault, LedgerUnfit
from delivery_plane.gates import Gates
from delivery_plane.identity import PLATFORM, Identities
from delivery_plane.ledger import Ledger
from delivery_plane.settings import Home

_HEADER_BYTES = 100
"""What every SQLite database begins with."""


@dataclass(frozen=True)
class Platform:
    """What activities and commands work on. `plane` is None where nothing is computed."""

    home: Home
    ledger: Ledger
    identities: Identities
    gates: Gates
    plane: ComputePlane | None

    def spec(self, delivery_id: str) -> DeliverySpec:
        """The order of a delivery, as stored when it opened. Raises LedgerFault."""
        path = self.home.delivery(delivery_id) / "spec.json"
        try:
            return DeliverySpec.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise LedgerFault(f"order of {delivery_id} cannot be read: {error}") from None


def open_platform(home: Home, plane: ComputePlane | None = None) -> Platform:
    """Open (or make) the platform's parts under a home folder."""
    named(home.ledger)  # before a folder is made for what can be no database
    home.create()
    identities = Identities(home.identities)
    signer = identities.get_or_new(PLATFORM, "platform")
    _not_cut_off(home)
    ledger = Ledger(home.ledger, home.heads, signer.key)
    return Platform(home, ledger, identities, Gates(ledger, identities), plane)


def _not_cut_off(home: Home) -> None:
    """Raise LedgerUnfit for a file that was a database: SQLite takes one without a header for a new one."""
    if not isinstance(home.ledger, Path) or not home.ledger.is_file():
        return
    if home.ledger.stat().st_size < _HEADER_BYTES and any(home.heads.glob("*.checkpoint")):
        raise LedgerUnfit(f"{home.ledger}: cut off, though its heads are signed; restore it from a back-up")
