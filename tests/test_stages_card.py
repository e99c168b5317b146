"""The card stage: every number held against its fact, what is missing named, hostile text survived."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from ledgers import DELIVERY, new_platform, open_stage, replay, seat_of
from pydantic import ValidationError

from delivery_plane.claims import CardClaim, CardNumber
from delivery_plane.compute.plane import ComputePlane
from delivery_plane.delivery import Amounts, DeliverySpec, OnFlag, StageName
from delivery_plane.entry import canonical, sha256
from delivery_plane.facts import CardChecked
from delivery_plane.record import Record
from delivery_plane.scenario import SplitPaths
from scenarios.catalog import load_scenario
from scenarios.seats.reference import Reference
from scenarios.seats.turn import Turn
from stages.card import METADATA, SECTIONS, Card, prints, split_card, supported
from stages.stage import OverlapSearch, StageContext

RECORD = Record(records.healthy_record())


def entry_of(kind: str) -> int:
    """Number of the first entry of a kind."""
    return next(entry.number for entry in RECORD.entries if entry.kind == kind)


def number(field: str, value: float, kind: str = "candidate_evaluated") -> CardNumber:
    return CardNumber(label=field, value=value, entry=entry_of(kind), field=field)


def context(record: Record = RECORD) -> StageContext:
    """A visit of the card stage, which needs the record alone."""
    nowhere = Path("nowhere")
    return StageContext(
        spec=DeliverySpec(delivery_id=DELIVERY, scenario="support-intents", seat="reference"),
        attempt=1,
        scenario=load_scenario("support-intents"),
        splits=SplitPaths(public=nowhere, probe=nowhere, dev=nowhere, sealed=nowhere),
        record=record,
        plane=cast(ComputePlane, None),
        folder=nowhere,
        bases={},
        fence=1,
        used=Amounts(),
        reserved=Amounts(),
        reserve=lambda _, __: False,
        settle=lambda _, __: None,
        sealed_overlap=cast(OverlapSearch, None),
    )


def checked(markdown: str, *numbers: CardNumber, record: Record = RECORD) -> CardChecked:
    (fact,) = Card().execute(context(record), CardClaim(markdown=markdown, numbers=numbers))
    assert isinstance(fact, CardChecked)
    canonical(fact.model_dump(mode="json"))  # as it is written into the ledger
    return fact


FRONT = "---\nbase_model: micro-1\nlicense: apache-2.0\nlanguage: en\n---\n"
BODY = "".join(f"## {section}\n\nWords.\n\n" for section in SECTIONS)


def test_a_good_card_is_clean() -> None:
    text = FRONT + BODY + "Of 400 items 240 right, uplift 0.54, that is 54.0 percentage points.\n"
    fact = checked(text, number("items", 400), number("correct", 240), number("uplift", 0.54))
    assert fact == CardChecked(
        card_digest=sha256(text.encode()),
        numbers=3,
        unsupported_numbers=(),
        uncited_numbers=(),
        metadata={"base_model": "micro-1", "license": "apache-2.0", "language": "en"},
        missing_metadata=(),
        missing_sections=(),
    )


def test_the_reference_seat_s_own_card_is_clean(tmp_path: Path) -> None:
    parts = new_platform(tmp_path)
    holder = parts.identities.new("seat-reference", "seat")
    replay(parts, records.played(StageName.COST), holder)
    open_stage(parts, StageName.CARD)
    seat = seat_of(parts, holder)
    claim = Reference().card(seat, Turn(StageName.CARD, 1, None, OnFlag.STOP))
    assert isinstance(claim, CardClaim)
    fact = checked(claim.markdown, *claim.numbers, record=parts.ledger.record(DELIVERY))
    assert fact.numbers == 7
    assert fact.unsupported_numbers == fact.uncited_numbers == ()
    assert fact.missing_metadata == fact.missing_sections == ()
    parts.ledger.close()


# --- cited numbers


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("candidate_evaluated", "items", 400),
        ("candidate_evaluated", "uplift", 0.54),
        ("candidate_evaluated", "uplift", 0.5404),
        ("candidate_evaluated", "correct", 240.1),
        ("meters_read", "used.gpu_seconds", 100),
        ("meters_read", "budget.tokens", 1_000_000),
        ("data_profiled", "issues.pii.count", 12),
        ("deployment_observed", "steps.1.p95_milliseconds", 200),
        ("schedule_offered", "offers.0.usd", 0.015),
        ("job_ended", "probe_last", 0.7),
    ],
)
def test_a_number_that_its_fact_holds_is_supported(kind: str, field: str, value: float) -> None:
    assert supported(RECORD, number(field, value, kind))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("candidate_evaluated", "items", 401),
        ("candidate_evaluated", "uplift", 0.541),
        ("candidate_evaluated", "uplift", -0.54),
        ("candidate_evaluated", "candidate", 1),
        ("candidate_evaluated", "nothing", 1),
        ("candidate_evaluated", "", 1),
        ("candidate_evaluated", "items.0", 400),
        ("candidate_evaluated", "__class__", 1),
        ("artifact_registered", "finite", 1),
        ("deployment_observed", "stopped_at_share", 0),
        ("deployment_observed", "steps.9.requests", 20),
        ("deployment_observed", "steps.-1.requests", 20),
        ("deployment_observed", "steps", 3),
        ("meters_read", "used", 1),
        # What the seat itself said, what the oracle said, and what the seat must not know.
        ("eval", "uplift", 0.54),
        ("cost", "total.gpu_seconds", 100),
        ("stage", "attempt", 1),
        ("planted_truth", "contract_margin", 0.30),
        ("planted_truth", "sealed_items", 400),
        ("acceptance_tested", "items", 400),
        ("acceptance", "uplift", 0.5125),
    ],
)
def test_a_number_that_no_visible_fact_holds_is_unsupported(kind: str, field: str, value: float) -> None:
    assert not supported(RECORD, number(field, value, kind))


def test_a_number_citing_an_entry_that_is_not_there_is_unsupported() -> None:
    assert not supported(RECORD, CardNumber(label="x", value=400, entry=10_000, field="items"))


@pytest.mark.parametrize("part", ["²", "9" * 5000])
def test_an_odd_place_in_a_list_is_unsupported_not_a_crash(part: str) -> None:
    try:
        odd = number(f"steps.{part}.requests", 20, "deployment_observed")
    except ValidationError:
        return  # refused by form: as good
    assert not supported(RECORD, odd)


@settings(deadline=None, max_examples=80)
@given(
    field=st.text(max_size=10)
    | st.lists(st.sampled_from(["steps", "0", "1", "requests", "used", "usd", "", "-1"]), max_size=4).map(
        ".".join
    ),
    value=st.floats(-1e9, 1e9),
    entry=st.integers(1, 100),
)
def test_no_citation_crashes_and_support_means_the_value_is_there(
    field: str, value: float, entry: int
) -> None:
    cited = CardNumber(label="x", value=value, entry=entry, field=field)
    if supported(RECORD, cited):
        found = RECORD.entries[entry - 1]
        assert found.type == "fact"
        assert found.visibility == "seat"


def test_the_labels_of_unsupported_numbers_are_listed_and_the_others_are_not() -> None:
    wrong = CardNumber(label="made up", value=0.99, entry=entry_of("candidate_evaluated"), field="uplift")
    fact = checked(FRONT + BODY + "0.99 and 400", wrong, number("items", 400))
    assert fact.unsupported_numbers == ("made up",)
    assert fact.uncited_numbers == ()
    assert fact.numbers == 2


# --- printed numbers


@pytest.mark.parametrize(
    "text", ["0.54", "54", "54.0", "54%", "0.540", "**0.54**", "(54 points)", "54.", "+0.54"]
)
def test_a_share_may_be_printed_as_it_is_or_as_a_percentage(text: str) -> None:
    assert checked(FRONT + BODY + f"uplift {text}\n", number("uplift", 0.54)).uncited_numbers == ()


@pytest.mark.parametrize(
    ("value", "text", "same"),
    [
        (0.5375, "0.54", True),
        (0.5375, "53.8", True),
        (0.5375, "53.75", True),
        (0.5375, "0.53", False),
        (0.5375, "0.5374", False),
        (0.5375, "53.7", False),
        (0.5375, "5.4", False),
        (-0.03, "-0.03", True),
        (-0.03, "-3", True),
        (-0.03, "3", False),
        (240, "240", True),
        (240, "240.0", True),
        (240, "024", False),
        (240, "2400", False),
        (0.02, "0.0", True),
        (1e-9, "0.000", True),
        (1e6, "1000000", True),
    ],
)
def test_a_printed_number_is_its_value_rounded_to_the_digits_shown(
    value: float, text: str, same: bool
) -> None:
    assert prints(value, text) == same


@pytest.mark.parametrize("text", ["99", "0.99", "99%", "99.5", "-4", "٩٩", "99th 99", "| 99 |", "99,"])
def test_a_number_that_nothing_cites_is_listed(text: str) -> None:
    assert checked(FRONT + BODY + f"We reach {text}\n", number("uplift", 0.54)).uncited_numbers


@pytest.mark.parametrize(
    "text", ["micro-1", "v1.2", "job-1", "x86_64", "apache-2.0", "GPT2", "a1b2", "no numbers"]
)
def test_a_number_inside_a_name_is_none(text: str) -> None:
    assert checked(FRONT + BODY + f"See {text} for more\n").uncited_numbers == ()


def test_numbers_in_the_front_matter_are_not_results() -> None:
    front = "---\nbase_model: micro-1\nlicense: apache-2.0\nlanguage: en\nversion: 17\n---\n"
    assert checked(front + BODY).uncited_numbers == ()


@pytest.mark.parametrize("text", ["9.9e-1", "0.90-0.99", "between 97-99 percent"])
def test_a_number_in_another_dress_is_listed_too(text: str) -> None:
    assert checked(FRONT + BODY + f"We reach {text}\n").uncited_numbers


def test_a_share_rounded_to_a_whole_number_is_not_supported() -> None:
    assert checked(FRONT + BODY + "We reach 1 point\n", number("uplift", 0.54)).uncited_numbers == ("1",)


def test_thousands_may_be_set_apart() -> None:
    text = FRONT + BODY + "Trained on 48,000 tokens\n"
    assert checked(text, number("tokens", 48_000, "job_ended")).uncited_numbers == ()


# --- front matter and sections


@pytest.mark.parametrize(
    ("front", "missing"),
    [
        ("", METADATA),
        ("---\n---\n", METADATA),
        ("---\nlicense: mit\n---\n", ("base_model", "language")),
        ("---\nbase_model: ''\nlicense:\nlanguage: []\n---\n", METADATA),
        ("---\nbase_model: x\nlicense: [\n---\n", METADATA),
        ("---\n- base_model\n- license\n---\n", METADATA),
        ("---\njust words\n---\n", METADATA),
        ("---\nbase_model: x\nlicense: mit\nlanguage: en\n", METADATA),
        ("\n\nwords first\n---\nbase_model: x\nlicense: mit\nlanguage: en\n---\n", METADATA),
        ("---\nbase_model: !!python/object/apply:os.getcwd []\nlicense: mit\nlanguage: en\n---\n", METADATA),
        ("---\nbase_model: x\nlicense: mit\nlanguage: \x00en\n---\n", METADATA),
        ("---\r\nbase_model: x\r\nlicense: mit\r\nlanguage: en\r\n---\r\n", ()),
        ("---\nbase_model: 5\nlicense: 2026-01-01\nlanguage: [en, de]\n---\n", ()),
    ],
)
def test_front_matter_that_is_missing_or_malformed_counts_as_missing(
    front: str, missing: tuple[str, ...]
) -> None:
    fact = checked(front + "# name\n" + BODY)
    assert fact.missing_metadata == missing
    assert set(fact.metadata) <= set(METADATA)
    assert fact.missing_sections == ()


@pytest.mark.parametrize("left_out", SECTIONS)
def test_a_missing_section_is_named(left_out: str) -> None:
    body = BODY.replace(f"## {left_out}\n", f"{left_out}\n")
    assert checked(FRONT + body).missing_sections == (left_out,)


def test_sections_are_found_at_any_level_and_in_any_case() -> None:
    body = "# INTENDED USE\n#### training data \n##evaluation\n###### Limitations\t\n"
    assert checked(FRONT + body).missing_sections == ()


# --- hostile text


def bomb(levels: int) -> str:
    """A few hundred characters of YAML that stand for 9 ** levels of them."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "---\n" + "\n".join(lines) + f"\nbase_model: *a{levels - 1}\nlicense: mit\nlanguage: en\n---\n"


@pytest.mark.parametrize(
    "markdown",
    [
        bomb(6),
        bomb(2),
        "---\nbase_model: &a [*a]\nlicense: mit\nlanguage: en\n---\n",
    ],
    ids=["bomb", "small bomb", "loop"],
)
def test_aliases_do_not_grow_beyond_the_longest_card(markdown: str) -> None:
    fact = checked(markdown + BODY)
    assert sum(map(len, fact.metadata.values())) <= 20_000


@pytest.mark.parametrize(
    "value",
    ['"\\uD800"', ":".join(["1"] * 4000), "0x" + "f" * 8000],
    ids=["half a character", "number in base sixty", "long number"],
)
def test_front_matter_that_is_no_text_counts_as_missing(value: str) -> None:
    front = f"---\nbase_model: {value}\nlicense: mit\nlanguage: en\n---\n"
    assert "base_model" in checked(front + BODY).missing_metadata


HUGE: dict[str, tuple[Callable[[], tuple[str, int]], float]] = {
    # What makes the card, how many numbers it cites, and the CPU seconds it may take.
    "words": (lambda: ("word " * 4000, 10), 0.6),
    "digits": (lambda: ("1" * 20_000, 10), 0.6),
    "digits and letters": (lambda: ("1a" * 10_000, 10), 0.6),
    "dots": (lambda: ("1." * 10_000, 10), 0.6),
    "minus": (lambda: ("-" * 20_000, 10), 0.6),
    "hashes": (lambda: ("#" * 20_000, 10), 0.6),
    "empty headings": (lambda: ("#\n" * 10_000, 10), 0.6),
    "new lines": (lambda: ("---" + "\n" * 19_000, 10), 0.6),
    "dashes": (lambda: ("---\n" * 5000, 10), 0.6),
    "quotes": (lambda: ('---\nlicense: "' + "\\\\" * 9000 + '"\n---\n', 10), 0.6),
    "keys": (lambda: ("---\n" + "a: b\n" * 3000 + "---\n", 10), 0.9),
    "anchors": (lambda: ("---\na: [" + ", ".join(f"&a{n} x" for n in range(1900)) + "]\n---\n", 10), 0.9),
    "unicode": (lambda: ("\U0001f600\u202e\u200b" * 6000, 10), 0.6),
    # The YAML parser recurses and gives up, which takes it a second whatever the length.
    "brackets": (lambda: ("---\nlicense: " + "[" * 19_000 + "\n---\n", 10), 2.5),
    "braces": (lambda: ("---\nlicense: " + "{a: " * 4900 + "\n---\n", 10), 2.5),
    "spaces in a heading": (lambda: ("# a" + " " * 19_000 + "b", 10), 0.4),
    "many citations": (lambda: (" ".join(str(n) for n in range(1000, 4000)), 800), 0.9),
}


@pytest.mark.parametrize(
    "name",
    HUGE,
)
def test_a_huge_card_is_checked_in_a_moment(name: str) -> None:
    make, seconds = HUGE[name]
    markdown, cited = make()
    assert len(markdown) <= 20_000
    entry = entry_of("candidate_evaluated")
    numbers = tuple(CardNumber(label=str(n), value=n + 0.25, entry=entry, field="x") for n in range(cited))
    try:
        claim = CardClaim(markdown=markdown, numbers=numbers)
    except ValidationError:
        return  # refused by form: as good
    visit = context()
    checked("warm", number("items", 1))
    begun = time.process_time()
    assert len(list(Card().execute(visit, claim))) == 1
    assert time.process_time() - begun < 4 * seconds  # a busy machine is that much slower


YAML = st.text(st.sampled_from("-: []{}&*!|>'\"#%@`\n\tab01.é\u2028\\?,"), max_size=60)


@settings(deadline=None, max_examples=200)
@given(front=YAML | st.text(max_size=40), body=st.text(max_size=60))
def test_no_card_crashes_the_check(front: str, body: str) -> None:
    markdown = f"---\n{front}\n---\n{body}"
    metadata, rest = split_card(markdown)
    assert rest in (markdown, body) or rest in markdown.replace("\r\n", "\n")
    fact = checked(markdown)
    assert set(fact.missing_metadata) == {name for name in METADATA if not metadata.get(name)}
