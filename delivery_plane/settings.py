"""Settings from `delivery-plane.toml`, then `DELIVERY_PLANE_*`, then flags; and where state lives.

Later sources win. Nothing here is read from a delivery or a seat.
"""

from pathlib import Path

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from delivery_plane.claims import problems
from delivery_plane.delivery import Deadlines
from delivery_plane.errors import BadInput, MachineUnfit, one_line


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
    deadlines: Deadlines = Deadlines()
    address: str | None = None
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
    try:
        return Settings()
    except ValidationError as error:
        raise BadInput(f"settings: {problems(error)}; mend delivery-plane.toml or DELIVERY_PLANE_*") from None
    except SettingsError as error:  # a variable that should hold JSON
        raise BadInput(f"settings: {one_line(error, 300)}; mend DELIVERY_PLANE_*") from None
    except ValueError as error:  # a file that is not TOML
        raise BadInput(f"delivery-plane.toml: {one_line(error, 300)}") from None


class Home:
    """The state folder's layout. Creating it makes the folders, private to this user."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.identities = self.root / "identities"
        self.heads = self.root / "heads"
        self.deliveries = self.root / "deliveries"
        self.splits = self.root / "splits"
        self.sealed = self.root / "sealed"
        self.cache = self.root / "cache"
        self.logs = self.root / "logs"
        self.database = self.root / "ledger.sqlite"
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
