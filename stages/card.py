"""Card: hold every number of the model card against the fact it cites."""

import re
from collections.abc import Iterable
from datetime import date
from typing import Any

from delivery_plane.claims import CardClaim, CardNumber
from delivery_plane.delivery import StageName
from delivery_plane.entry import sha256
from delivery_plane.facts import CardChecked, FactBase
from delivery_plane.record import Record
from stages.stage import Facts, StageContext

SECTIONS = ("Intended use", "Training data", "Evaluation", "Limitations")
METADATA = ("base_model", "license", "language")
"""Front-matter fields of the Hugging Face model card format."""

# A number as readers take it: with thousands set apart or an exponent, alone or as an end of a range. Digits in a
# name (micro-1, v1.2, x86_64) are none.
_PLACE = re.compile("[0-9]{1,4}")
_NUMBER = re.compile(
    r"(?<![\w.,\-])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w]|[.,]\d|-[^\W\d])"
    r"|(?<=\d-)\d+(?:\.\d+)?(?![\w]|[.,]\d)"
)


class Card:
    """Stage 10."""

    name = StageName.CARD

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """Everything a card may say is on record already."""
        return ()

    def execute(self, context: StageContext, claim: CardClaim) -> Facts:
        """Which numbers are supported, which are not cited, and what is missing."""
        metadata, body = split_card(claim.markdown)
        headings = {line.strip("# \t").casefold() for line in body.split("\n") if line.startswith("#")}
        yield CardChecked(
            card_digest=sha256(claim.markdown.encode()),
            numbers=len(claim.numbers),
            unsupported_numbers=tuple(
                number.label for number in claim.numbers if not supported(context.record, number)
            ),
            uncited_numbers=tuple(
                text
                for text in _NUMBER.findall(body)
                if not any(prints(n.value, text) for n in claim.numbers)
            ),
            metadata=metadata,
            missing_metadata=tuple(name for name in METADATA if not metadata.get(name)),
            missing_sections=tuple(name for name in SECTIONS if name.casefold() not in headings),
        )


def split_card(markdown: str) -> tuple[dict[str, str], str]:
    """The front matter's fields in METADATA, as text, and the body. What is not plain text there counts as absent."""
    from huggingface_hub import ModelCard

    try:
        card = ModelCard(markdown, ignore_metadata_errors=True)
        found = {name: _plain(getattr(card.data, name, None)) for name in METADATA}
    except Exception:  # the parser raises many kinds of error on a seat's text, all meaning the same
        return {}, markdown
    return {name: text for name, text in found.items() if text}, card.text


def _plain(value: Any) -> str:
    """A field as text: a word, a number, a date, a short list of words. Anything else, and anything long, is none."""
    if isinstance(value, date | float) or (isinstance(value, int) and abs(value) < 10**15):
        return str(value)
    if isinstance(value, list) and len(value) <= 20 and all(isinstance(item, str) for item in value):
        value = ", ".join(value)
    plain = isinstance(value, str) and len(value) <= 500 and not any("\ud800" <= c <= "\udfff" for c in value)
    return value if plain else ""


def supported(record: Record, number: CardNumber) -> bool:
    """Whether the cited entry is a fact whose field holds this value (to 5e-4, relative or absolute)."""
    cited = [entry for entry in record.entries if entry.number == number.entry and entry.type == "fact"]
    if not cited or cited[0].visibility != "seat":
        return False
    value: Any = cited[0].payload
    for part in number.field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and _PLACE.fullmatch(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value - number.value) <= 5e-4 * max(1.0, abs(value))


def prints(value: float, text: str) -> bool:
    """Whether `text` is `value` (or its percentage) rounded to the digits shown."""
    plain = text.replace(",", "")
    mantissa, _, exponent = plain.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    if exponent:
        return f"{value:.{digits}e}" == f"{float(plain):.{digits}e}"
    # A share rounded to a whole number says nothing: 0.54 is not 1.
    telling = [
        scaled for scaled in (value, 100 * value) if digits or scaled == round(scaled) or abs(scaled) >= 10
    ]
    return any(f"{scaled:.{digits}f}" == plain for scaled in telling)
