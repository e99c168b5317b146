"""The command tree and how errors leave it. No command is implemented here."""

import contextlib
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path

from cyclopts import App, CycloptsError

from delivery_plane import __version__
from delivery_plane.errors import DeliveryPlaneError, LedgerFault, one_line

app = App(
    name="delivery-plane",
    version=__version__,
    help="Governed post-training deliveries: the seat claims, the platform records, the oracle judges.",
)

_COMMANDS = {
    "demo": "A good delivery and one that trains but does not learn, start to end.",
    "deliver": "Run one delivery of a scenario.",
    "up": "Run server and workers until Ctrl-C; open deliveries go on.",
    "worker": "Run one worker against any Temporal server.",
    "rejudge": "Judge an exported delivery again, offline.",
    "doctor": "Say whether this machine is fit, and the mend for what is not.",
}
_GROUPS = {
    "deliveries": "List, show, report, watch, fetch and cancel deliveries.",
    "identity": "Make and list identities.",
    "gates": "The approver's inbox.",
    "ledger": "Verify, export, show, back up and restore the record.",
    "scenarios": "The catalogue of scenarios.",
}
_MODULES = {
    "demo": "deliver",
    "deliver": "deliver",
    "up": "serve",
    "worker": "serve",
    "rejudge": "records",
    "doctor": "doctor",
    "deliveries": "deliveries",
    "identity": "decisions",
    "gates": "decisions",
    "ledger": "records",
    "scenarios": "catalogue",
}

for _name, _help in (_COMMANDS | _GROUPS).items():
    app.command(f"delivery_plane.cli.{_MODULES[_name]}:{_name}", name=_name, help=_help)


def main() -> None:
    """Run the command line. Expected errors are one line on stderr and an exit code, never a traceback."""
    for place, word in enumerate(sys.argv):
        if any("\ud800" <= c <= "\udfff" for c in word):
            _fail(f"argument {place} is not text in this system's encoding; type it again", 2)
    try:
        result = app(exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        _fail(" ".join(str(error).split()) + " (see --help)", 2)
    except DeliveryPlaneError as error:
        where = ""
        if error.exit_code == 4 and not isinstance(error, LedgerFault):
            where = " (logs are under the home folder, in logs/)"
        _fail(f"{error}{where}", error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        _fail(f"{what}{error.strerror or type(error).__name__}; free what is full, or use another place", 3)
    except MemoryError:
        _fail("out of memory; end other programs, or use a larger machine", 3)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        _fail(f"a defect in delivery-plane: {type(error).__name__}: {error}; what led to it: {_traced()}", 4)
    sys.exit(result if isinstance(result, int) else 0)


def entry() -> None:
    """The program's entry: `main`, then an end without the interpreter's own clean-up.

    The Temporal client's threads may still call into Python while it is torn down, which aborts the process
    after all work is done. Everything of ours is on disk by then.
    """
    code: object = 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to end
    try:
        main()
    except SystemExit as end:
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _traced() -> Path:
    """The exception in hand with its traceback, in a file for whoever mends it."""
    with tempfile.NamedTemporaryFile("w", prefix="delivery-plane-", suffix=".txt", delete=False) as file:
        file.write(traceback.format_exc())
    return Path(file.name)


def _fail(message: str, code: int) -> None:
    print(f"delivery-plane: {one_line(message, 2000)}", file=sys.stderr)
    sys.exit(code)
