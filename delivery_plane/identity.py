"""Who people, seats and the platform are: a name, a role and an Ed25519 key under the home folder."""

import re
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError, model_validator

from delivery_plane.claims import problems
from delivery_plane.delivery import Frozen
from delivery_plane.entry import read_input
from delivery_plane.errors import BadInput, MachineUnfit
from delivery_plane.files import write_once
from delivery_plane.ledger import utc_now

Role = Literal["seat", "approver", "operator", "platform"]

PLATFORM = "platform"
"""The identity that signs ledger heads."""

SCRIPTED_APPROVER = "scripted-approver"
"""The identity of `--approver auto`."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class Identity(Frozen):
    """A name, what it may do, and its keys (hex)."""

    name: str
    role: Role
    public_key: str
    private_key: str
    created_at: str

    @model_validator(mode="after")
    def _is_a_pair(self) -> "Identity":
        try:
            matches = self.key.public_key().public_bytes_raw().hex() == self.public_key
        except ValueError:
            matches = False
        if not matches:
            raise ValueError("private_key and public_key are no pair of keys")
        return self

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


def check_name(name: str) -> None:
    """Raise BadInput for what can be no identity's name."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"identity name {name!r}: use lower-case letters, digits and hyphens (at most 63)")


class Identities:
    """The identities of one home folder; each file is readable by its owner only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        check_name(name)
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
        try:
            made = write_once(path, identity.model_dump_json().encode())
        except OSError as error:
            raise MachineUnfit(f"{path}: cannot be written ({error.strerror})") from None
        if not made:
            raise BadInput(f"identity {name} exists; choose another name or use it as it is")
        return identity

    def get(self, name: str) -> Identity:
        """An identity by name. Raises BadInput."""
        path = self._path(name)
        if not path.is_symlink() and not path.exists():
            raise BadInput(f"no identity {name}; make it with `identity new {name} --role approver`")
        data = read_input(path, "back what was there, from a back-up")
        try:
            identity = Identity.model_validate_json(data)
        except ValidationError as error:
            raise BadInput(
                f"{path}: not an identity file ({problems(error)}); restore it from a back-up"
            ) from None
        if identity.name != name:
            raise BadInput(f"{path}: not an identity file of {name} but of {identity.name}; rename it back")
        return identity

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
