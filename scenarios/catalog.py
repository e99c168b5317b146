"""Scenarios by name or folder: load, check, and lay out their data with the sealed split apart.

A folder holds `scenario.toml`, a brief, `expected.toml`, and either `generator.py` or the rows
themselves: `public/rows.jsonl`, `probe/rows.jsonl`, `dev/rows.jsonl`, `private/sealed.jsonl`, `private/planted.toml`.
A generator may draw from data that does not ship, found through the setting `data`.
"""

import contextlib
import hashlib
import hmac
import importlib
import importlib.util
import secrets
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from delivery_plane.claims import problems
from delivery_plane.compute.graders import unfit
from delivery_plane.entry import read_text, sha256
from delivery_plane.errors import BadInput, one_line
from delivery_plane.files import write_once, write_whole
from delivery_plane.rows import read_rows, write_rows
from delivery_plane.scenario import (
    BaseRef,
    Expected,
    PlantedIssues,
    Row,
    Scenario,
    SplitPaths,
)
from delivery_plane.settings import Home
from scenarios.data import data_digest, data_folder, where_from

_HERE = Path(__file__).parent
_ROWS: TypeAdapter[list[Row]] = TypeAdapter(list[Row])
_SPLITS = ("public", "probe", "dev", "sealed")


def names() -> tuple[str, ...]:
    """Names of the scenarios that ship with the package."""
    return tuple(
        sorted(
            folder.name.replace("_", "-") for folder in _HERE.iterdir() if (folder / "scenario.toml").exists()
        )
    )


def find(name_or_path: str) -> Path:
    """The folder of a scenario. Raises BadInput saying what there is."""
    if name_or_path in names():
        return _HERE / name_or_path.replace("-", "_")
    folder = Path(name_or_path)
    with contextlib.suppress(OSError, ValueError):  # a name that can be no path at all
        if (folder / "scenario.toml").is_file():
            return folder.absolute()
    raise BadInput(
        f"no scenario {name_or_path[:80]!r}: neither a name ({', '.join(names())}) nor a folder with a scenario.toml"
    )


def load_scenario(name_or_path: str) -> Scenario:
    """A scenario from its folder. Raises BadInput naming file and field.

    Data that the scenario needs may be missing: its brief and contract can be read all the same.
    """
    folder = find(name_or_path)
    scenario = _load(folder, _folder_digest(folder))
    if scenario.data is None:
        return scenario
    # Another digest for other data: splits laid out from it are others, and an open delivery sees the change.
    return scenario.model_copy(update={"digest": _with_data(scenario.digest, data_digest(scenario.data))})


def _with_data(folder_digest: str, found: str | None) -> str:
    return sha256(f"{folder_digest}\n{found or 'no data'}".encode())


@lru_cache(maxsize=32)
def _load(folder: Path, digest: str) -> Scenario:
    fields = _toml(folder / "scenario.toml")
    try:
        brief = (folder / fields.pop("brief", "brief.md")).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, TypeError):
        raise BadInput(f"{folder / 'scenario.toml'}: brief: no such text file beside it") from None
    offered = fields.pop("bases", ())
    if not isinstance(offered, list) or not all(isinstance(base, dict) for base in offered):
        raise BadInput(f"{folder / 'scenario.toml'}: bases: write each base as a [[bases]] table")
    if taken := sorted({"folder", "digest"} & set(fields)):
        raise BadInput(f"{folder / 'scenario.toml'}: {taken[0]}: not yours to set; remove it")
    try:
        bases = [_base(folder, base) for base in offered]
        return Scenario(**fields, folder=folder, digest=digest, brief=brief, bases=tuple(bases))
    except ValidationError as error:
        raise BadInput(f"{folder / 'scenario.toml'}: {problems(error)}") from None


def _base(folder: Path, fields: dict[str, Any]) -> BaseRef:
    try:
        base = BaseRef.model_validate(fields)
    except ValidationError as error:
        raise BadInput(f"{folder / 'scenario.toml'}: bases: {problems(error)}") from None
    return base.model_copy(update={"path": str(_base_path(folder, base))})


def _base_path(folder: Path, base: BaseRef) -> Path:
    for root in (folder, _HERE):
        if (root / base.path / "config.json").is_file():
            return (root / base.path).absolute()
    raise BadInput(f"{folder / 'scenario.toml'}: bases: {base.name}: no model at {base.path}")


def _toml(path: Path) -> dict[str, Any]:
    text = read_text(path, "a TOML file")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: {one_line(error, 200)}; mend the file") from None


def _folder_digest(folder: Path) -> str:
    """SHA-256 over every file's relative path and bytes; compiled Python left out. Raises BadInput."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            try:
                digest = sha256(path.read_bytes())
            except OSError as error:
                raise BadInput(f"{path}: cannot be read ({error.strerror}); mend or remove it") from None
            total.update(f"{path.relative_to(folder)}\0{digest}\n".encode())
    return total.hexdigest()


def check_data(scenario: Scenario) -> None:
    """Raise BadInput, saying where to get it, unless the data that a scenario needs is there and serves.

    The splits are drawn once with a key that is thrown away; nothing is written.
    """
    if scenario.data is not None:
        _enough(scenario, _generated(scenario, secrets.token_bytes(32))[0])


def expected(scenario: Scenario) -> dict[str, Expected]:
    """What the scenario declares for seats and faults, by name (`fault:NAME` for a fault)."""
    path = scenario.folder / "expected.toml"
    try:
        return {name: Expected.model_validate(fields) for name, fields in _toml(path).items()}
    except ValidationError as error:
        raise BadInput(f"{path}: {problems(error)}") from None


def materialise(scenario: Scenario, home: Home) -> tuple[SplitPaths, PlantedIssues]:
    """Lay a scenario's rows out under the home folder, once; the sealed split in a folder of its own.

    The sealed split of a generated scenario is keyed with HMAC(operator's secret, scenario and version):
    reading the source does not reveal it. Raises BadInput when a split is too small or not rows.
    """
    public = home.splits / scenario.digest[:20]
    private = home.sealed / scenario.digest[:20]
    paths = SplitPaths(
        public=public / "public.jsonl",
        probe=public / "probe.jsonl",
        dev=public / "dev.jsonl",
        sealed=private / "sealed.jsonl",
    )
    planted_path = private / "planted.json"
    if not planted_path.exists():
        rows, planted = _rows(scenario, home)
        _enough(scenario, rows)
        private.mkdir(mode=0o700, parents=True, exist_ok=True)
        for split in _SPLITS:
            write_rows(getattr(paths, split), rows[split])
        # Written last: its presence says that the splits are complete.
        write_whole(planted_path, planted.model_dump_json().encode())
    return paths, PlantedIssues.model_validate_json(planted_path.read_bytes())


def _enough(scenario: Scenario, rows: dict[str, list[Row]]) -> None:
    for split in ("probe", "dev", "sealed"):
        least = getattr(scenario.splits, split)
        if len(rows[split]) < least:
            raise BadInput(
                f"{scenario.name}: {split} split has {len(rows[split])} rows, {least} are declared"
            )
        metric = scenario.contract.metric
        for row in rows[split]:
            if why := unfit(metric, row):
                raise BadInput(
                    f"{scenario.name}: {split} row {row['row_id'][:40]}: {why}, so {metric} cannot judge it"
                )


def _rows(scenario: Scenario, home: Home) -> tuple[dict[str, list[Row]], PlantedIssues]:
    if scenario.data is not None or (scenario.folder / "generator.py").is_file():
        return _generated(scenario, _sealed_key(scenario, home))
    files = {
        "public": scenario.folder / "public" / "rows.jsonl",
        "probe": scenario.folder / "probe" / "rows.jsonl",
        "dev": scenario.folder / "dev" / "rows.jsonl",
        "sealed": scenario.folder / "private" / "sealed.jsonl",
    }
    planted = scenario.folder / "private" / "planted.toml"
    try:
        issues = PlantedIssues.model_validate({"rows": _toml(planted) if planted.exists() else {}})
    except ValidationError as error:
        raise BadInput(f"{planted}: {problems(error)}") from None
    return {split: read_rows(path) for split, path in files.items()}, issues


def _generated(scenario: Scenario, sealed_key: bytes) -> tuple[dict[str, list[Row]], PlantedIssues]:
    """What a scenario's generator draws. Its author's code may do anything wrong: that is one line, too."""
    path = scenario.folder / "generator.py"
    needed = scenario.data
    folder = data_folder(needed) if needed else None
    inputs = (scenario.public_seed, sealed_key, *([folder] if folder else []))
    generate = getattr(_module(path), "generate", None)
    if not callable(generate):
        parameters = "public_seed, sealed_key" + (", data_folder" if needed else "")
        raise BadInput(f"{path}: defines no function generate({parameters})")
    try:
        drop = generate(*inputs)
        splits = {split: _ROWS.validate_python(getattr(drop, split)) for split in _SPLITS}
        counts = {kind: len(ids) for kind, ids in drop.planted.items()}
        planted = PlantedIssues.model_validate({"rows": counts})
    except BadInput as error:  # of the data: generators know nothing else that a person gave
        raise BadInput(f"{error}; what is needed is {where_from(needed)}" if needed else str(error)) from None
    except ValidationError as error:
        raise BadInput(f"{path}: {problems(error)}") from None
    except Exception as error:
        raise BadInput(f"{path}: {type(error).__name__}: {one_line(error, 200)}") from None
    if needed is not None and load_scenario(str(scenario.folder)).digest != scenario.digest:
        raise BadInput(f"{folder}: changed while it was read; order the delivery again")
    return splits, planted


def _sealed_key(scenario: Scenario, home: Home) -> bytes:
    path = home.sealed / "secret"
    if not path.exists():
        write_once(path, secrets.token_bytes(32))
    secret = path.read_bytes()
    if len(secret) != 32:
        raise BadInput(f"{path}: damaged; restore it from a back-up, or remove it to draw new sealed sets")
    return hmac.new(secret, f"{scenario.name}/v{scenario.version}".encode(), hashlib.sha256).digest()


def _module(path: Path) -> Any:
    """A scenario's generator, by path: its author's code, run with the operator's trust."""
    parent = path.parent
    if parent.parent == _HERE:
        return importlib.import_module(f"scenarios.{parent.name}.generator")
    spec = importlib.util.spec_from_file_location(f"scenario_{sha256(str(path).encode())[:12]}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadInput(f"{path}: cannot be run ({type(error).__name__}: {one_line(error, 200)})") from None
    return module
