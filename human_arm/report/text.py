"""Text and numbers as people may safely read them. No layout."""

import unicodedata
from datetime import UTC, datetime

_INVISIBLE = {
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
}
"""Letters and marks that show nothing: fillers, joiners, variation selectors."""

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Control, bidirectional, zero-width, surrogate, private, unassigned; line and paragraph separators."""

REPLACED = "\N{REPLACEMENT CHARACTER}"


def shown(text: str) -> str:
    """Text from whoever wrote it: what could steer a reader's eye or hide from it is visibly replaced."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _hides(c) else REPLACED for c in text)


def _hides(character: str) -> bool:
    return ord(character) in _INVISIBLE or unicodedata.category(character) in _UNSEEN


def words(name: str) -> str:
    """A recorded name as words: `not_reached` is `not reached`."""
    return name.replace("_", " ")


def when(moment: str) -> str:
    """An ISO time in UTC to the second; as recorded when it is none."""
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return parsed.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def duration(seconds: float) -> str:
    """Seconds in at most two units: `0.06 s`, `57.4 s`, `3 min 20 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def number(value: float) -> str:
    """Whole numbers in full, others to four significant digits, without an exponent where that reads well."""
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def share(value: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{value:.1%}"


def tone(status: str) -> str:
    """How a status is coloured: `good`, `bad`, `warn`, `active` or `muted`. Its word always stands beside it."""
    if status in ("passed", "approved", "accept", "accepted", "completed", "verified"):
        return "good"
    if status in ("unscored", "waiting", "no verdict"):
        return "warn"
    if status == "running":
        return "active"
    return "muted" if status == "not reached" else "bad"
