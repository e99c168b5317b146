"""The pictures of the documentation, drawn anew from real records with Chromium. Run by hand; it tests nothing."""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from delivery_plane.cli.live import table
from delivery_plane.cli.records import read_export
from delivery_plane.entry import Entry, parse_entries, verify
from delivery_plane.record import Record
from human_arm.report import render_report

DOCS = Path(__file__).parent
EXPORTS = DOCS.parent / "tests" / "releases" / "0.1.0" / "exports"
ACCEPTED = EXPORTS / "support-intents-reference-128556.jsonl"
FLAGGED = EXPORTS / "support-intents-label-shuffle-9cd833.jsonl"

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def entries(export: Path) -> list[Entry]:
    """What an export holds."""
    return parse_entries(read_export(export, None, None)[0], str(export))


def report(export: Path) -> str:
    """The report of an export, as `deliveries report` writes it with a key that is trusted."""
    lines, checkpoints, key = read_export(export, None, None)
    return render_report(parse_entries(lines, str(export)), checkpoints, verify(lines, checkpoints, key))


def terminal(record: Record, columns: int) -> tuple[str, int, int]:
    """The live table of a record as a page holding one SVG, and the page's size in pixels."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(table(record.entries[0].delivery_id, record))
    # Rich's own format fetches its font; the pictures are drawn offline.
    drawn = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(
        title="delivery-plane deliver", theme=MONOKAI, code_format=drawn, unique_id="terminal"
    )
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert found
    width = columns * 10
    height = round(width * float(found[2]) / float(found[1]))
    style = "body{margin:0;background:#ffffff}svg{display:block;width:100%}"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{svg}", width, height


def shoot(page: str, width: int, height: int, picture: Path) -> None:
    """A page of this many pixels as a PNG. Raises CalledProcessError."""
    chromium = shutil.which("chromium")
    assert chromium
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(page)
        command = [
            chromium,
            *_OPTIONS,
            f"--user-data-dir={folder}/profile",
            f"--screenshot={picture}",
            f"--window-size={width},{height}",
            source.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    print(f"{picture.name}: {width} x {height}, {picture.stat().st_size >> 10} KiB")


def main() -> int:
    """All pictures, into this folder."""
    if shutil.which("chromium") is None:
        print("screenshots: no chromium on the path; install it (Debian: chromium)", file=sys.stderr)
        return 3
    shoot(report(ACCEPTED), 1280, 2300, DOCS / "report-accepted.png")
    shoot(report(FLAGGED), 1280, 1790, DOCS / "report-flagged.png")
    found = entries(ACCEPTED)
    probes = [entry.number for entry in found if entry.kind == "probe_observed"]
    gates = [entry.number for entry in found if entry.kind == "gate_opened"]
    # Two thirds into the run; and at the first gate, which is about spending.
    for name, end, columns in (("training", probes[10], 64), ("gate", gates[0], 98)):
        shoot(*terminal(Record(found[:end]), columns), DOCS / f"terminal-{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
