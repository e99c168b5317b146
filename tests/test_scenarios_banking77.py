"""banking77: real data that does not ship. Splits as promised where it lies; one line where it lacks or is damaged."""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from banking77 import DATA, INTENTS, made_up, needs_data
from test_scenarios_catalog import refused

from delivery_plane.claims import Selector
from delivery_plane.cli.deliver import order
from delivery_plane.compute.sealed import SealedOverlap
from delivery_plane.delivery import DeliverySpec, StageName, StageRequest
from delivery_plane.errors import BadInput, LedgerFault
from delivery_plane.rows import OVERLAP_NGRAM_WORDS, file_digest, issues, normalised, read_rows, select
from delivery_plane.scenario import Row
from delivery_plane.settings import Home
from scenarios.banking77.data import read
from scenarios.banking77.generator import PLANTED_ROWS, Drop, generate
from scenarios.catalog import find, load_scenario, materialise
from workflows.opening import open_delivery
from workflows.platform import open_platform
from workflows.visit import visiting

SEED, KEY = 77, b"k" * 32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home folder not yet made, in force."""
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home(tmp_path / "home")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up data of the published form, in force."""
    monkeypatch.setenv("DELIVERY_PLANE_DATA", str(tmp_path / "data"))
    return made_up(tmp_path / "data")


def words(rows: list[Row]) -> set[str]:
    return {normalised(row["prompt"]) for row in rows}


# --- the published data


@pytest.fixture(scope="module")
def drop() -> Drop:
    assert DATA
    return generate(SEED, KEY, DATA / "banking77")


@needs_data
def test_splits_have_the_declared_sizes_and_share_no_message(drop: Drop) -> None:
    sizes = load_scenario("banking77").splits
    assert (len(drop.probe), len(drop.dev), len(drop.sealed)) == (sizes.probe, sizes.dev, sizes.sealed)
    held = [words(drop.probe), words(drop.dev), words(drop.sealed)]
    assert len(set().union(*held)) == sizes.probe + sizes.dev + sizes.sealed
    assert not words(drop.public) & (held[0] | held[1])
    copied = {row["row_id"] for row in drop.public if normalised(row["prompt"]) in held[2]}
    assert copied == set(drop.planted["sealed_overlap"])
    for split in (drop.public, drop.probe, drop.dev, drop.sealed):
        assert len({row["row_id"] for row in split}) == len(split)


@needs_data
def test_sealed_items_come_from_the_test_file_and_all_others_from_the_train_file(drop: Drop) -> None:
    assert DATA
    data = read(DATA / "banking77")
    train, test = ({(message.text, message.intent) for message in part} for part in (data.train, data.test))
    assert {(row["prompt"], row["answer"]) for row in drop.sealed} <= test
    assert {(row["prompt"], row["answer"]) for row in drop.probe + drop.dev} <= train
    planted = {row_id for row_ids in drop.planted.values() for row_id in row_ids}
    assert {(row["prompt"], row["answer"]) for row in drop.public if row["row_id"] not in planted} <= train
    assert max(Counter(row["answer"] for row in drop.sealed).values()) == 8
    assert (
        {row["answer"] for row in drop.public} == {row["answer"] for row in drop.sealed} == set(data.intents)
    )
    assert {(row["licence"], row["source"]) for row in drop.public} == {
        ("cc-by-4.0", "banking77"),
        ("vendor-evaluation-only", "vendor-sample"),
    }


@needs_data
def test_the_profile_finds_every_planted_row_and_what_the_data_holds_by_nature(
    drop: Drop, tmp_path: Path
) -> None:
    from delivery_plane.rows import write_rows

    write_rows(tmp_path / "public.jsonl", drop.public)
    write_rows(tmp_path / "sealed.jsonl", drop.sealed)
    overlap = SealedOverlap(tmp_path / "sealed.jsonl")(tmp_path / "public.jsonl", OVERLAP_NGRAM_WORDS)
    found = issues(drop.public, ["cc-by-4.0"], overlap)
    assert {kind: len(ids) for kind, ids in drop.planted.items()} == PLANTED_ROWS
    assert sum(PLANTED_ROWS.values()) == len({i for ids in drop.planted.values() for i in ids})
    for kind, planted in drop.planted.items():
        assert set(planted) <= set(found[kind].row_ids)  # type: ignore[index]
    natural = {kind: rows.count - PLANTED_ROWS[kind] for kind, rows in found.items()}
    # Counted in the published train file: 30 repeats and one message under two intents beyond those that the
    # test file has too. No identifier of a person occurs. How much lies close to the sealed rows depends on the key.
    assert natural.pop("sealed_overlap") < 30
    assert natural == {"duplicates": 30, "conflicting_labels": 2, "unlicensed_rows": 0, "pii": 0}
    names = ("drop_unlicensed", "drop_overlap", "drop_pii", "drop_conflicting", "dedupe")
    left, _ = select(drop.public, [Selector(name=name) for name in names], ["cc-by-4.0"], overlap)
    assert len(left) > 9000
    # What the reference takes the length of its rows from; the longest of them has 223 tokens on micro-1.
    lengths = sorted(len(row["prompt"]) for row in drop.public)
    assert 128 < lengths[int(0.95 * (len(lengths) - 1))] <= 256


@needs_data
def test_a_seed_fixes_the_drop_and_a_key_only_what_is_sealed(drop: Drop) -> None:
    assert DATA
    folder = DATA / "banking77"
    assert generate(SEED, KEY, folder) == drop
    other = generate(SEED, b"o" * 32, folder)
    assert (other.probe, other.dev) == (drop.probe, drop.dev)
    assert len(words(other.sealed) & words(drop.sealed)) < 0.4 * len(drop.sealed)
    differing = {mine["row_id"] for mine, its in zip(drop.public, other.public, strict=True) if mine != its}
    assert differing == set(drop.planted["sealed_overlap"])
    assert generate(SEED + 1, KEY, folder).dev != drop.dev
    assert generate(SEED + 1, KEY, folder).sealed == drop.sealed


# --- data that is missing or damaged


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


FIRST = "train message 0 of intent_00?,intent_00"
HEADER = b"text,category\r\n"
DAMAGED: list[tuple[str, Callable[[Path], object], str, str]] = [
    ("missing", lambda folder: (folder / "test.csv").unlink(), "test.csv", "No such file"),
    ("a folder", lambda f: ((f / "test.csv").unlink(), (f / "test.csv").mkdir()), "test.csv", "cannot be read"),
    ("empty", write("train.csv", b""), "train.csv", "empty"),
    ("blank", write("train.csv", b" \n\n"), "train.csv", "empty"),
    ("no rows", write("train.csv", HEADER), "train.csv", "0 different messages of category 'intent_00'"),
    ("latin-1", write("train.csv", HEADER + "café,intent_00".encode("latin-1")), "train.csv", "UTF-8"),
    ("utf-16", write("test.csv", "text,category\n".encode("utf-16")), "test.csv", "UTF-8"),
    ("other columns", replace("train.csv", "text,category", "query,intent"), "train.csv", "columns are"),
    ("no header", replace("train.csv", "text,category\n", ""), "train.csv", "columns are"),
    ("columns swapped", replace("test.csv", "text,category", "category,text"), "test.csv", "columns are"),
    ("a third field", replace("train.csv", FIRST, FIRST + ",x"), "train.csv:2", "3 fields"),
    ("one field", replace("train.csv", FIRST, "train message"), "train.csv:2", "1 fields"),
    ("unknown category", replace("test.csv", "?,intent_00", "?,intent_99"), "test.csv:2", "'intent_99'"),
    ("another case", replace("test.csv", "?,intent_00", "?,Intent_00"), "test.csv:2", "'Intent_00'"),
    ("no text", replace("train.csv", FIRST, ",intent_00"), "train.csv:2", "without text"),
    ("NUL", replace("train.csv", "message 0", "mess\0age 0"), "train.csv", "NUL"),
    ("huge field", replace("train.csv", "message 0", "m" * 200_000), "train.csv:2", "field larger than"),
    ("open quote", replace("train.csv", "train message 0", '"train message 0'), "train.csv", "field larger|end of"),
    ("too few to train on", lambda folder: made_up(folder.parent, train_each=12), "train.csv", "too few"),
    ("no JSON", write("categories.json", b"[,"), "categories.json", "not JSON"),
    ("no list", write("categories.json", b'{"a": 1}'), "categories.json", "no list of 77"),
    ("a name twice", replace("categories.json", "intent_01", "intent_00"), "categories.json", "no list of 77"),
    ("a number", replace("categories.json", '"intent_00"', "5"), "categories.json", "no list of 77"),
    ("deep JSON", write("categories.json", b"[" * 100_000), "categories.json", "not JSON"),
    (
        "too few of one intent",
        lambda folder: [replace("test.csv", "of intent_03?,intent_03", f"{n}?,intent_04")(folder) for n in range(5)],
        "test.csv", "5 different messages of category 'intent_03', 8 are needed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "name", "problem"), [case[1:] for case in DAMAGED], ids=[c[0] for c in DAMAGED]
)
def test_damaged_data_refuses_the_order_in_one_line_and_writes_nothing(
    folder: Path, home: Home, damage: Callable[[Path], object], name: str, problem: str
) -> None:
    damage(folder)
    said = refused(lambda: order("banking77", "reference"))
    assert f"{folder}/{name}" in said
    assert any(part in said for part in problem.split("|"))
    assert "PolyAI" in said
    assert "train.csv, test.csv, categories.json into FOLDER/banking77" in said
    assert "DELIVERY_PLANE_DATA=FOLDER" in said
    assert not home.root.exists()


@pytest.mark.parametrize("where", [None, "nowhere", "", "a\0b"])
def test_without_data_the_order_is_refused_and_the_catalogue_still_reads(
    home: Home, monkeypatch: pytest.MonkeyPatch, where: str | None
) -> None:
    if where == "a\0b":  # a variable cannot hold it, the settings file can
        Path("delivery-plane.toml").write_text('data = "a\\u0000b"\n')
    elif where is not None:
        monkeypatch.setenv("DELIVERY_PLANE_DATA", where)
    if where in (None, "a\0b"):
        monkeypatch.delenv("DELIVERY_PLANE_DATA", raising=False)
    said = refused(lambda: order("banking77", "do-nothing"))
    assert "PolyAI" in said
    assert "DELIVERY_PLANE_DATA=FOLDER" in said
    assert not home.root.exists()
    assert load_scenario("banking77").contract.margin == 0.40


def command(*words: str) -> "subprocess.CompletedProcess[str]":
    """The command line in this test's folder and environment."""
    return subprocess.run(
        [sys.executable, "-m", "delivery_plane.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_command_line_lists_and_shows_it_without_data_and_refuses_to_deliver(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELIVERY_PLANE_DATA", raising=False)
    listed, shown = command("scenarios", "list"), command("scenarios", "show", "banking77")
    assert (listed.returncode, shown.returncode) == (0, 0)
    line = next(line for line in listed.stdout.splitlines() if line.startswith("banking77"))
    assert "needs data" in line
    assert "CC-BY-4.0" in shown.stdout
    assert "needs data: give BANKING77 by PolyAI" in shown.stdout
    refusal = command("deliver", "banking77")
    assert refusal.returncode == 2
    assert len(refusal.stderr.strip().splitlines()) == 1
    assert not home.root.exists()


@pytest.mark.usefixtures("home")
def test_the_settings_file_names_the_data_too_and_relative_to_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DELIVERY_PLANE_DATA", raising=False)
    made_up(Path("data"))
    Path("delivery-plane.toml").write_text('data = "data"\n')
    assert order("banking77", "reference").scenario == "banking77"
    line = next(
        line for line in command("scenarios", "list").stdout.splitlines() if line.startswith("banking77")
    )
    assert "found" in line


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('folder = "banking77"', 'folder = "../banking77"', "data.folder"),
        ('"categories.json"]', '"../categories.json"]', "data.files"),
        ('files = ["train.csv", "test.csv", "categories.json"]', "files = []", "data.files"),
        ('origin = "BANKING77 by PolyAI (CC-BY-4.0)"\n', "", "data.origin"),
        ("[data]", "[date]", "date"),
    ],
)
def test_a_scenario_names_its_data_within_the_data_folder(
    tmp_path: Path, old: str, new: str, field: str
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(find("banking77"), copied, ignore=shutil.ignore_patterns("__pycache__"))
    assert load_scenario(str(copied)).data == load_scenario("banking77").data
    replace("scenario.toml", old, new)(copied)
    said = refused(lambda: load_scenario(str(copied)))
    assert f"{copied / 'scenario.toml'}: {field}" in said


# --- data that changes


def test_changed_data_has_another_digest_and_is_laid_out_anew(folder: Path, home: Home) -> None:
    home.create()
    before = load_scenario("banking77")
    first, _ = materialise(before, home)
    replace("test.csv", "message 0 of intent_05", "question 0 of intent_05")(folder)
    after = load_scenario("banking77")
    assert after.digest != before.digest
    second, _ = materialise(after, home)
    assert second.sealed.parent != first.sealed.parent
    data = read(folder)
    assert words(read_rows(second.sealed)) <= {normalised(message.text) for message in data.test}
    # What the scenario does not name is not its data.
    (folder / "README.md").write_text("x")
    assert load_scenario("banking77").digest == after.digest
    assert file_digest(materialise(after, home)[0].sealed) == file_digest(second.sealed)


def test_rows_are_not_laid_out_from_data_that_is_no_longer_the_scenario_s(folder: Path, home: Home) -> None:
    home.create()
    stale = load_scenario("banking77")
    replace("train.csv", "message 0 of intent_05", "question 0 of intent_05")(folder)
    assert "changed" in refused(lambda: materialise(stale, home))
    assert list(home.root.rglob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (replace("train.csv", "message 0 of intent_05", "question 0 of intent_05"), LedgerFault),
        (lambda folder: (folder / "test.csv").unlink(), BadInput),
    ],
)
def test_data_that_changes_under_an_open_delivery_is_a_fault_of_the_platform(
    folder: Path, home: Home, change: Callable[[Path], object], fault: type[Exception]
) -> None:
    platform = open_platform(home)
    spec = DeliverySpec(delivery_id="open", scenario="banking77", seat="reference")
    open_delivery(platform, spec)
    request = StageRequest(delivery_id="open", stage=StageName.INTAKE, attempt=1)
    before = platform.ledger.entries("open")
    change(folder)
    with pytest.raises(fault), visiting(platform, request):
        pass
    assert len(platform.ledger.entries("open")) == len(before)


def test_made_up_data_of_the_form_serves(folder: Path) -> None:
    drop = generate(SEED, KEY, folder)
    assert {row["answer"] for row in drop.sealed} == set(INTENTS)
