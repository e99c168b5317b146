"""Scenarios: found, loaded or refused by file and field; their data laid out once, the sealed split apart."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledgers import at_once

from delivery_plane.compute.faults import known_faults
from delivery_plane.errors import BadInput
from delivery_plane.rows import file_digest, read_rows
from delivery_plane.scenario import Scenario, SplitPaths
from delivery_plane.settings import Home
from scenarios.catalog import expected, find, load_scenario, materialise, names
from scenarios.seats.catalog import SEATS
from scenarios.support_intents.generator import CLEAN_ROWS, PLANTED_ROWS

BASES = """[[bases]]
name = "micro-1"
path = "bases/micro_1/model"
licence = "Apache-2.0"
"""
TOML = f"""name = "name-the-box"
version = 1
title = "Name the box"
brief = "brief.md"
public_seed = 7

[contract]
metric = "exact_match"
margin = 0.40
alpha = 0.01
permitted_licences = ["customer-owned"]

{BASES}
[budget]
usd = 0.10
tokens = 2000000
bytes = 50000000

[splits]
probe = 64
dev = 60
sealed = 70
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def rows(count: int, letter: str) -> str:
    return "".join(
        json.dumps(
            {
                "row_id": f"{letter}{n}",
                "prompt": f"{letter} note {n}",
                "answer": "a",
                "licence": "customer-owned",
                "source": "notes",
            }
        )
        + "\n"
        for n in range(count)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scenario folder that brings its own rows."""
    made = tmp_path / "scenario"
    files = {
        "scenario.toml": TOML,
        "brief.md": "# Name the box\n",
        "expected.toml": '[reference]\noutcome = "accepted"\ncaught_by = "nothing"\n',
        "public/rows.jsonl": rows(80, "r"),
        "probe/rows.jsonl": rows(64, "p"),
        "dev/rows.jsonl": rows(60, "d"),
        "private/sealed.jsonl": rows(70, "s"),
        "private/planted.toml": "pii = 3\nduplicates = 2\n",
    }
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def refused(attempt: Callable[[], object]) -> str:
    """The one line that says what is wrong."""
    with pytest.raises(BadInput) as caught:
        attempt()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# --- finding


def test_what_ships_is_listed_loads_and_is_complete() -> None:
    assert "support-intents" in names()
    for name in names():
        scenario = load_scenario(name)
        assert scenario.name == name
        assert scenario.brief.strip()
        assert all((Path(base.path) / "config.json").is_file() for base in scenario.bases)
        assert "reference" in expected(scenario)


def test_what_is_expected_names_seats_and_faults_that_exist() -> None:
    for name in names():
        for declared in expected(load_scenario(name)):
            seat, _, fault = declared.partition(":")
            assert seat in (*SEATS, "fault")
            assert bool(fault) == (seat == "fault")
            if fault:
                assert fault.partition(":")[0] in known_faults()


@pytest.mark.parametrize(
    "name", ["nope", "", "support_intents", "Support-Intents", "bases", "../scenarios", "a\0b", "/"]
)
def test_an_unknown_scenario_is_refused_saying_what_there_is(name: str) -> None:
    said = refused(lambda: load_scenario(name))
    assert "support-intents" in said
    assert "scenario.toml" in said


def test_a_very_long_name_is_refused_like_any_other() -> None:
    refused(lambda: load_scenario("x" * 300))


def test_a_folder_is_found_by_relative_and_absolute_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    assert find("scenario") == find(str(folder)) == folder
    assert load_scenario("scenario") == load_scenario(str(folder))
    assert load_scenario("scenario").brief == "# Name the box\n"


def test_a_changed_file_is_read_anew_and_changes_the_digest(folder: Path) -> None:
    digests = {load_scenario(str(folder)).digest}
    for name in ("brief.md", "dev/rows.jsonl", "private/planted.toml", "expected.toml"):
        with (folder / name).open("a") as file:
            file.write("\n")
        digests.add(load_scenario(str(folder)).digest)
    (folder / "new file").touch()
    digests.add(load_scenario(str(folder)).digest)
    assert len(digests) == 6
    (folder / "brief.md").write_text("another brief")
    assert load_scenario(str(folder)).brief == "another brief"
    kept = load_scenario(str(folder)).digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "generator.pyc").write_bytes(b"x")
    assert load_scenario(str(folder)).digest == kept


# --- a field broken


BROKEN: list[tuple[str, str, str]] = [
    ('name = "name-the-box"', 'name = "Bad Name"', "name:"),
    ('name = "name-the-box"\n', "", "name: Field required"),
    ("version = 1", "version = 0", "version:"),
    ("version = 1", 'version = "one"', "version:"),
    ("title =", "titel =", "titel: Extra"),
    ('brief = "brief.md"', 'brief = "nope.md"', "brief:"),
    ('brief = "brief.md"', "brief = 5", "brief:"),
    ('brief = "brief.md"', 'brief = "."', "brief:"),
    ("public_seed = 7", 'public_seed = "x"', "public_seed:"),
    ('metric = "exact_match"', 'metric = "bleu"', "contract.metric:"),
    ("margin = 0.40", "margin = 0", "contract.margin:"),
    ("margin = 0.40", "margin = 30", "contract.margin:"),
    ("margin = 0.40\n", "", "contract.margin: Field required"),
    ("alpha = 0.01", "alpha = 0.5", "contract.alpha:"),
    ('permitted_licences = ["customer-owned"]', 'permitted_licences = "x"', "permitted_licences:"),
    ("[contract]", "[contrakt]", "contract: Field required"),
    (BASES, "", "bases:"),
    ('path = "bases/micro_1/model"', 'path = "nowhere"', "bases: micro-1: no model at nowhere"),
    ('licence = "Apache-2.0"\n', "", "licence: Field required"),
    ("usd = 0.10", "usd = -1", "budget.usd:"),
    ("usd = 0.10", "usd = nan", "budget.usd:"),
    ("tokens = 2000000", "tokens = 1.5", "budget.tokens:"),
    ("bytes =", "bites =", "budget.bites:"),
    ("probe = 64", "probe = 1", "splits.probe:"),
    ("dev = 60", "dev = 10", "splits.dev:"),
    ("sealed = 70", "sealed = 49", "splits.sealed:"),
    ("[splits]", "[splits", "line"),
    ('name = "name-the-box"', 'folder = "x"\nname = "name-the-box"', "folder"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        *BROKEN,
        ("[[bases]]", "[bases]", "bases"),
        ('path = "bases/micro_1/model"', "path = 5", "bases"),
        ("version = 1", 'version = 1\nbases = "x"', "bases"),
        ("version = 1", "version = 1\nbases = 5", "bases"),
        ("usd = 0.10", "usd = inf", "budget.usd:"),
    ],
)
def test_a_broken_field_is_named_with_its_file(folder: Path, old: str, new: str, field: str) -> None:
    assert load_scenario(str(folder)).name == "name-the-box"
    assert old in TOML
    path = folder / "scenario.toml"
    path.write_text(TOML.replace(BASES, "" if "bases = " in new else BASES).replace(old, new))
    said = refused(lambda: load_scenario(str(folder)))
    assert str(path) in said
    assert field in said.partition(path.name)[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[reference]\noutcome = "won"\ncaught_by = "x"\n', "outcome:"),
        ('[reference]\noutcome = "accepted"\n', "caught_by: Field required"),
        ('[reference]\noutcome = "accepted"\ncaught_by = "x"\nwhy = 1\n', "why: Extra"),
        ("reference", "expected.toml"),
        ("reference = 5\n", "expected.toml"),
        (None, "expected.toml"),
    ],
)
def test_a_broken_expectation_is_named_with_its_file(folder: Path, text: str | None, problem: str) -> None:
    path = folder / "expected.toml"
    path.unlink() if text is None else path.write_text(text)
    said = refused(lambda: expected(load_scenario(str(folder))))
    assert str(path) in said
    assert problem in said


# --- laying out the data


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def prompts(path: Path) -> set[str]:
    return {row["prompt"] for row in read_rows(path)}


def ids_of(path: Path, *, but: set[str]) -> list[dict[str, Any]]:
    return [dict(row) for row in read_rows(path) if row["row_id"] not in but]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Home, SplitPaths]:
    """The shipped scenario laid out under a home of its own."""
    home = Home(tmp_path_factory.mktemp("drawn") / "home").create()
    scenario = load_scenario("support-intents")
    return scenario, home, materialise(scenario, home)[0]


def test_the_sealed_split_and_its_secret_lie_apart_and_are_private(
    drawn: tuple[Scenario, Home, SplitPaths],
) -> None:
    _, home, paths = drawn
    assert home.sealed in paths.sealed.parents
    for public in (paths.public, paths.probe, paths.dev):
        assert home.sealed not in public.parents
        assert public.parent not in (paths.sealed.parent, *paths.sealed.parents)
    assert mode(home.sealed) == mode(paths.sealed.parent) == mode(home.root) == 0o700
    assert mode(home.sealed / "secret") == 0o600
    assert len((home.sealed / "secret").read_bytes()) == 32
    outside = [path for path in home.root.rglob("*") if path.is_file() and home.sealed not in path.parents]
    assert {path.name for path in outside} == {"public.jsonl", "probe.jsonl", "dev.jsonl"}


def test_no_sealed_item_is_outside_but_for_the_planted_overlap(
    drawn: tuple[Scenario, Home, SplitPaths],
) -> None:
    scenario, _, paths = drawn
    sealed = prompts(paths.sealed)
    assert len(sealed) == scenario.splits.sealed
    for path in (paths.probe, paths.dev):
        assert not sealed & prompts(path)
    assert 0 < len(sealed & prompts(paths.public)) <= PLANTED_ROWS["sealed_overlap"]
    held = [path.read_text() for path in (paths.probe, paths.dev)]
    assert all("planted" not in text for text in held)


def test_laying_out_twice_changes_nothing(drawn: tuple[Scenario, Home, SplitPaths]) -> None:
    scenario, home, paths = drawn
    files = [path for path in home.root.rglob("*") if path.is_file()]
    before = {path: (path.stat().st_mtime_ns, file_digest(path)) for path in files}
    again, planted = materialise(scenario, home)
    assert again == paths
    assert planted.rows == PLANTED_ROWS
    assert {path: (path.stat().st_mtime_ns, file_digest(path)) for path in files} == before
    assert set(files) == {path for path in home.root.rglob("*") if path.is_file()}


def test_two_homes_share_the_public_rows_but_not_the_sealed_ones(
    drawn: tuple[Scenario, Home, SplitPaths], home: Home
) -> None:
    scenario, one_home, one = drawn
    other, _ = materialise(scenario, home)
    assert (home.sealed / "secret").read_bytes() != (one_home.sealed / "secret").read_bytes()
    assert file_digest(one.sealed) != file_digest(other.sealed)
    assert len(prompts(one.sealed) & prompts(other.sealed)) < 0.2 * scenario.splits.sealed
    assert file_digest(one.probe) == file_digest(other.probe)
    assert file_digest(one.dev) == file_digest(other.dev)
    differing = [
        left["row_id"]
        for left, right in zip(read_rows(one.public), read_rows(other.public), strict=True)
        if left != right
    ]
    assert 0 < len(differing) <= PLANTED_ROWS["sealed_overlap"]


def test_another_version_draws_another_sealed_set_from_the_same_secret(
    drawn: tuple[Scenario, Home, SplitPaths],
) -> None:
    scenario, home, paths = drawn
    secret = (home.sealed / "secret").read_bytes()
    newer = scenario.model_copy(update={"version": 2, "digest": "2" * 64})
    other, _ = materialise(newer, home)
    assert (home.sealed / "secret").read_bytes() == secret
    assert file_digest(other.sealed) != file_digest(paths.sealed)
    assert file_digest(other.dev) == file_digest(paths.dev)
    same, _ = materialise(scenario.model_copy(update={"digest": "3" * 64}), home)
    assert file_digest(same.sealed) == file_digest(paths.sealed)


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 33])
def test_a_damaged_secret_is_refused_rather_than_replaced(home: Home, secret: bytes) -> None:
    (home.sealed / "secret").write_bytes(secret)
    assert "damaged" in refused(lambda: materialise(load_scenario("support-intents"), home))
    assert (home.sealed / "secret").read_bytes() == secret


def test_a_folder_s_own_rows_are_laid_out(folder: Path, home: Home) -> None:
    paths, planted = materialise(load_scenario(str(folder)), home)
    assert planted.rows == {"pii": 3, "duplicates": 2}
    assert [len(read_rows(path)) for path in (paths.public, paths.probe, paths.dev, paths.sealed)] == [
        80,
        64,
        60,
        70,
    ]
    assert paths.sealed.parent.parent == home.sealed


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        ("tests_pass", "has no tests, so tests_pass cannot judge it"),
        ("final_number", "so final_number cannot judge it"),
        ("game_won", "is not the number to guess, so game_won cannot judge it"),
    ],
)
def test_rows_that_the_contracts_metric_can_never_judge_right_are_refused(
    folder: Path, home: Home, metric: str, why: str
) -> None:
    text = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(text.replace('"exact_match"', f'"{metric}"', 1))
    said = refused(lambda: materialise(load_scenario(str(folder)), home))
    assert "probe row p0: " in said
    assert why in said
    assert [path for path in home.root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("split", "name", "least"),
    [
        ("probe", "probe/rows.jsonl", 64),
        ("dev", "dev/rows.jsonl", 60),
        ("sealed", "private/sealed.jsonl", 70),
    ],
)
def test_a_split_that_is_too_small_is_refused_and_nothing_is_left(
    folder: Path, home: Home, split: str, name: str, least: int
) -> None:
    whole = (folder / name).read_text()
    (folder / name).write_text("".join(whole.splitlines(keepends=True)[1:]))
    said = refused(lambda: materialise(load_scenario(str(folder)), home))
    assert f"{split} split has {least - 1} rows, {least} are declared" in said
    assert [path for path in home.root.rglob("*") if path.is_file()] == []
    (folder / name).write_text(whole)
    materialise(load_scenario(str(folder)), home)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("dev/rows.jsonl", "{}\n", "dev/rows.jsonl:1: not a row"),
        ("public/rows.jsonl", rows(5, "r") * 2, "row ids are not unique"),
        ("private/sealed.jsonl", None, "sealed.jsonl: cannot be read"),
        ("private/planted.toml", "pii = [", "planted.toml"),
        (
            "private/planted.toml", "typos = 3\n", "planted.toml"
        ),
        (
            "private/planted.toml", 'pii = "many"\n', "planted.toml"
        ),
        (
            "private/planted.toml", "pii = -1\n", "planted.toml"
        ),
    ],
)  # fmt: skip
def test_broken_rows_are_refused_by_file_and_nothing_is_left(
    folder: Path, home: Home, name: str, text: str | None, problem: str
) -> None:
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    assert problem in refused(lambda: materialise(load_scenario(str(folder)), home))
    assert [path for path in home.root.rglob("*") if path.is_file()] == []


GENERATOR = """
from types import SimpleNamespace


def generate(public_seed, sealed_key):
    def rows(letter):
        return [
            dict(row_id=f"{letter}{n}", prompt=f"{letter} {n}", answer="a", licence="l", source="s")
            for n in range(80)
        ]

    return SimpleNamespace(
        public=rows("r"), probe=rows("p"), dev=rows("d"), sealed=rows("s"), planted={"pii": ["r1"]}
    )
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from types", "from nowhere"),
        ("def generate(", "def ("),
        ("def generate(", "def make("),
        ("    def rows", '    raise RuntimeError("two\\nlines")\n\n    def rows'),
        ('{"pii": ["r1"]}', '{"typos": ["r1"]}'),
        ('answer="a", ', ""),
        ('probe=rows("p"), ', ""),
    ],
)
def test_a_broken_generator_is_refused_by_file(folder: Path, home: Home, old: str, new: str) -> None:
    path = folder / "generator.py"
    path.write_text(GENERATOR)
    assert materialise(load_scenario(str(folder)), home)[1].rows == {"pii": 1}
    assert old in GENERATOR
    path.write_text(GENERATOR.replace(old, new))
    assert "generator.py" in refused(lambda: materialise(load_scenario(str(folder)), home))


def test_two_deliveries_that_open_at_once_get_the_same_whole_data(tmp_path: Path) -> None:
    scenario = load_scenario("support-intents")
    for number in range(4):
        home = Home(tmp_path / f"home-{number}").create()
        found = at_once(4, lambda _, home=home: materialise(scenario, home)[0])
        assert all(isinstance(paths, SplitPaths) for paths in found), found
        assert len({file_digest(paths.sealed) for paths in found}) == 1
        assert len(read_rows(found[0].public)) == CLEAN_ROWS + sum(PLANTED_ROWS.values())


def test_the_home_s_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        home = Home(tmp_path / "home").create()
    finally:
        os.umask(old)
    assert {mode(path) for path in (home.root, *home.root.iterdir())} == {0o700}
