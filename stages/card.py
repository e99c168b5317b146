"""Card: hold every number of the model card against the fact it cites."""

import re
from collections.abc import Iterable
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

_NUMBER = re.compile(r"(?<![\w.\-])-?\d+(?:\.\d+)?(?![\w\-]|\.\d)")
_HEADING = re.compile(r"^#+\s*(.+?)\s*$", re.MULTILINE)


class Card:
    """Stage 10."""

    name = StageName.CARD

    def prepare(self, context: StageContext) -> Iterable[FactBase]:  # noqa: ARG002 - nothing to prepare
        """Everything a card may say is on record already."""
        return ()

    def execute(self, context: StageContext, claim: CardClaim) -> Facts:
        """Which numbers are supported, which are not cited, and what is missing."""
        metadata, body = split_card(claim.markdown)
        headings = {heading.casefold() for heading in _HEADING.findall(body)}
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
            metadata={name: str(value) for name, value in metadata.items() if name in METADATA},
            missing_metadata=tuple(name for name in METADATA if not metadata.get(name)),
            missing_sections=tuple(name for name in SECTIONS if name.casefold() not in headings),
        )


def split_card(markdown: str) -> tuple[dict[str, Any], str]:
    """Front matter and body. Front matter that is not YAML counts as absent."""
    from huggingface_hub import ModelCard

    try:
        card = ModelCard(markdown, ignore_metadata_errors=True)
    except Exception:  # the parser raises many kinds of error on a seat's text, all meaning the same
        return {}, markdown
    return dict(vars(card.data)), card.text


def supported(record: Record, number: CardNumber) -> bool:
    """Whether the cited entry is a fact whose field holds this value (to 5e-4, relative or absolute)."""
    cited = [entry for entry in record.entries if entry.number == number.entry and entry.type == "fact"]
    if not cited or cited[0].visibility != "seat":
        return False
    value: Any = cited[0].payload
    for part in number.field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return False
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value - number.value) <= 5e-4 * max(1.0, abs(value))


def prints(value: float, text: str) -> bool:
    """Whether `text` is `value` (or its percentage) rounded to the digits shown."""
    digits = len(text.partition(".")[2])
    return any(f"{scaled:.{digits}f}" == text for scaled in (value, 100 * value))
