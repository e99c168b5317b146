"""Who people, seats and the platform are: a name, a role and an Ed25519 key under the home folder."""

import json
import os
import re
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from delivery_plane.claims import problems
from delivery_plane.delivery import Frozen
from delivery_plane.errors import BadInput, MachineUnfit
from delivery_plane.ledger import utc_now

Role = Literal["seat", "approver", "operator", "platform"]

PLATFORM = "platform"
"""The identity that signs ledger heads."""

SCRIPTED_APPROVER = "scripted-approver"
"""The identity of `--approver auto`."""

_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")


class Identity(Frozen):
    """A name, what it may do, and its keys (hex)."""

    name: str
    role: Role
    public_key: str
    private_key: str
    created_at: str

    @property
    def key(self) -> Ed25519PrivateKey:
        """The private key, ready to sign."""
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.private_key))

    def sign(self, message: bytes) -> str:
        """Hex signature."""
        return self.key.sign(message).hex()


def signed_by(public_key: str, signature: str, message: bytes) -> bool:
    """Whether the hex `signature` over `message` is by `public_key`."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(
            bytes.fromhex(signature), message
        )
    except (InvalidSignature, ValueError):
        return False
    return True


class Identities:
    """The identities of one home folder; each file is readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise BadInput(f"identity name {name!r}: use lower-case letters, digits and hyphens (at most 63)")
        return self._folder / f"{name}.json"

    def new(self, name: str, role: Role) -> Identity:
        """Make an identity. Raises BadInput when the name is taken."""
        path = self._path(name)
        key = Ed25519PrivateKey.generate()
        identity = Identity(
            name=name,
            role=role,
            public_key=key.public_key().public_bytes_raw().hex(),
            private_key=key.private_bytes_raw().hex(),
            created_at=utc_now().isoformat(timespec="seconds"),
        )
        # Written aside and linked: a crash leaves no half-written key, and the name is taken at most once.
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(identity.model_dump_json())
                file.flush()
                os.fsync(file.fileno())
            os.link(aside, path)
        except FileExistsError:
            raise BadInput(f"identity {name} exists; choose another name or use it as it is") from None
        except OSError as error:
            raise MachineUnfit(f"{path}: cannot be written ({error.strerror})") from None
        finally:
            aside.unlink(missing_ok=True)
        return identity

    def get(self, name: str) -> Identity:
        """An identity by name. Raises BadInput."""
        path = self._path(name)
        try:
            return Identity.model_validate(json.loads(path.read_text()))
        except FileNotFoundError:
            raise BadInput(
                f"no identity {name}; make it with `identity new {name} --role approver`"
            ) from None
        except (ValidationError, ValueError) as error:
            why = problems(error) if isinstance(error, ValidationError) else "not JSON"
            raise BadInput(f"{path}: not an identity file ({why}); restore it from a back-up") from None

    def get_or_new(self, name: str, role: Role) -> Identity:
        """The identity, made on first use (safe when two processes race)."""
        if not self._path(name).exists():
            try:
                return self.new(name, role)
            except BadInput:
                pass
        return self.get(name)

    def all(self) -> list[Identity]:
        """Every identity, by name."""
        return [self.get(path.stem) for path in sorted(self._folder.glob("*.json"))]
