"""Settings from `delivery-plane.toml`, then `DELIVERY_PLANE_*`, then flags; and where state lives.

Later sources win. Nothing here is read from a delivery or a seat.
"""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from delivery_plane.claims import problems
from delivery_plane.delivery import Deadlines
from delivery_plane.entry import read_text
from delivery_plane.errors import BadInput, MachineUnfit, one_line

_ADDRESS = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")


def check_address(address: str) -> str:
    """An address as it is. Raises BadInput for what is no HOST:PORT."""
    found = _ADDRESS.fullmatch(address)
    if not found or not 0 < int(found["port"]) < 2**16:
        raise BadInput(f"address {one_line(address, 80)!r}: not HOST:PORT, such as 127.0.0.1:7233")
    return address


class Settings(BaseSettings):
    """What an operator may set. `home` holds all state; `data` names a folder with external data sets."""

    model_config = SettingsConfigDict(
        env_prefix="DELIVERY_PLANE_",
        env_nested_delimiter="__",
        toml_file="delivery-plane.toml",
        extra="forbid",
    )

    home: Path = Path(".delivery-plane")
    data: Path | None = None
    database: str | None = None
    """postgresql:// URL of the ledger's database; None: a SQLite file under the home folder."""
    deadlines: Deadlines = Deadlines()
    address: Annotated[str, AfterValidator(check_address)] | None = None
    """host:port of a Temporal server; None: the embedded one."""
    namespace: str = "default"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class names it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base class names it
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over environment over file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def load_settings() -> Settings:
    """The settings in force. Raises BadInput naming the field."""
    file = Path("delivery-plane.toml")
    try:
        if os.path.lexists(file):
            read_text(file, "a TOML file, or remove it")
        return Settings()
    except ValidationError as error:
        raise BadInput(f"settings: {problems(error)}; mend delivery-plane.toml or DELIVERY_PLANE_*") from None
    except SettingsError as error:  # a variable that should hold JSON
        raise BadInput(f"settings: {one_line(error, 300)}; mend DELIVERY_PLANE_*") from None
    except (ValueError, RecursionError) as error:  # a file that is not TOML
        raise BadInput(f"delivery-plane.toml: {one_line(error, 300)}") from None


class Home:
    """The state folder's layout. Creating it makes the folders, private to this user."""

    def __init__(self, root: Path, database: str | None = None) -> None:
        self.root = root.absolute()
        self.ledger: Path | str = database or self.root / "ledger.sqlite"
        """The ledger's database: a SQLite file here, or a `postgresql://` URL."""
        self.identities = self.root / "identities"
        self.heads = self.root / "heads"
        self.deliveries = self.root / "deliveries"
        self.splits = self.root / "splits"
        self.sealed = self.root / "sealed"
        self.cache = self.root / "cache"
        self.logs = self.root / "logs"
        self.temporal_database = self.root / "temporal.sqlite"
        self.runtime = self.root / "runtime.json"
        """Address of the server that runs on this home, while one does."""
        self.lock = self.root / "lock"

    def create(self) -> "Home":
        """Make the folders. Raises MachineUnfit when the place cannot be written."""
        folders = (
            self.identities,
            self.heads,
            self.deliveries,
            self.splits,
            self.sealed,
            self.cache,
            self.logs,
        )
        try:
            for folder in (self.root, *folders):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise MachineUnfit(
                f"{self.root}: cannot be written ({error.strerror}); set DELIVERY_PLANE_HOME to a writable folder"
            ) from None
        return self

    def delivery(self, delivery_id: str) -> Path:
        """One delivery's own folder."""
        return self.deliveries / delivery_id
