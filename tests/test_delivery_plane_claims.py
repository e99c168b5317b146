"""A claim is checked for form, and what is wrong with it is said in one line without repeating it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery_plane.claims import FlagAnswer, parse_claim, stage_of
from delivery_plane.delivery import STAGES, StageName
from delivery_plane.errors import BadInput


def claims() -> dict[str, dict[str, Any]]:
    """One good claim per stage, and an answer to a flag, as JSON objects."""
    found = {
        entry.kind: json.loads(json.dumps(entry.payload))
        for entry in records.healthy_record()
        if entry.type == "claim"
    }
    answer = FlagAnswer(flag_id="flag-1", action="stop", reason="wasted")
    return {**found, "flag": answer.model_dump(mode="json")}


CLAIMS = claims()


def why_not(payload: object) -> str:
    """The one line that says why a claim is not usable."""
    with pytest.raises(BadInput) as caught:
        parse_claim(payload)
    assert len(str(caught.value).splitlines()) == 1
    assert "http" not in str(caught.value)
    return str(caught.value)


def test_there_is_a_claim_for_each_stage_and_one_for_flags() -> None:
    assert set(CLAIMS) == {*STAGES, "flag"}


@pytest.mark.parametrize("stage", CLAIMS)
def test_a_good_claim_is_read_as_it_was_written(stage: str) -> None:
    claim = parse_claim(CLAIMS[stage])
    assert claim.model_dump(mode="json") == CLAIMS[stage]
    assert stage_of(claim) == (None if stage == "flag" else StageName(stage))


@pytest.mark.parametrize("stage", CLAIMS)
def test_an_unknown_field_is_refused_by_name(stage: str) -> None:
    assert f"{stage}.verdict" in why_not({**CLAIMS[stage], "verdict": "passed"})


@pytest.mark.parametrize("stage", CLAIMS)
def test_a_missing_field_is_named(stage: str) -> None:
    claim = CLAIMS[stage]
    required = [name for name, field in type(parse_claim(claim)).model_fields.items() if field.is_required()]
    assert required
    for missing in required:
        said = why_not({name: value for name, value in claim.items() if name != missing})
        assert f"{stage}.{missing}: Field required" in said


LONG = "x" * 4001

WRONG: list[tuple[str, str, Any]] = [
    ("intake", "decision", "perhaps"),
    ("intake", "statement_of_work", LONG),
    ("intake", "issues", [{"kind": "pii", "rows": -1, "action": "drop"}]),
    ("intake", "issues", [{"kind": "typos", "rows": 1, "action": "drop"}]),
    ("plan", "objective", "magic"),
    ("plan", "selectors", [{"name": "drop_hard_rows"}]),
    ("plan", "selectors", [{"name": "sample", "rows": 0}]),
    ("plan", "dev_evaluations", -1),
    ("config", "learning_rate", 0),
    ("config", "learning_rate", "fast"),
    ("config", "steps", 15),
    ("config", "steps", 10**7),
    ("config", "warmup_share", 1.5),
    ("config", "batch_rows", 0),
    ("config", "seed", -1),
    ("config", "lora", {"rank": 0, "alpha": 1}),
    ("schedule", "gpus", 0),
    ("schedule", "expected_usd", -0.01),
    ("schedule", "start", "tomorrow"),
    ("train", "action", "continue"),
    ("eval", "uplift", 1.01),
    ("eval", "uplift_interval", [0.1]),
    ("register", "artifact_name", "../escape"),
    ("register", "artifact_name", "a/b"),
    ("register", "artifact_name", ""),
    ("register", "artifact_name", ".hidden"),
    ("register", "artifact_name", "line\n"),
    ("register", "artifact_name", "a" * 97),
    ("deploy", "canary_shares", []),
    ("deploy", "canary_shares", [0.1] * 9),
    ("deploy", "canary_shares", [1.1]),
    ("deploy", "requests_per_step", 201),
    ("deploy", "max_p95_milliseconds", 0),
    ("cost", "total", {"usd": -1}),
    ("cost", "total", {"euro": 1}),
    ("card", "markdown", "x" * 20_001),
    ("card", "numbers", [{"label": "a", "value": 1, "entry": 0, "field": "b"}]),
    ("flag", "action", "ignore"),
]


@pytest.mark.parametrize(("stage", "field", "value"), WRONG)
def test_a_wrong_value_is_refused_with_the_field_s_name(stage: str, field: str, value: Any) -> None:
    said = why_not({**CLAIMS[stage], field: value})
    assert f"{stage}.{field}" in said
    others = {name for name in CLAIMS[stage] if name != field and f"{stage}.{name}:" in said}
    assert not others


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("intake", lambda value: {"target_margin": value}),
        ("plan", lambda value: {"abort_criteria": [_criterion(value)]}),
        ("eval", lambda value: {"uplift_interval": [0.0, value]}),
        ("card", lambda value: {"numbers": [{"label": "a", "value": value, "entry": 1, "field": "b"}]}),
    ],
    ids=["intake", "plan", "eval", "card"],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e17])
def test_a_number_that_cannot_be_recorded_is_refused_by_form(
    stage: str, change: Callable[[float], dict[str, Any]], value: float
) -> None:
    why_not({**CLAIMS[stage], **change(value)})


def _criterion(value: float) -> dict[str, Any]:
    return {"measure": "usd", "comparison": "above", "value": value, "at_fraction": 0.5}


def test_a_count_that_cannot_be_recorded_is_refused_by_form() -> None:
    why_not({**CLAIMS["intake"], "issues": [{"kind": "pii", "rows": 2**60, "action": "drop"}]})


@pytest.mark.parametrize(
    ("stage", "field"),
    [
        ("plan", "base"),
        ("schedule", "gpu_kind"),
        ("eval", "candidate"),
        ("register", "base"),
        ("deploy", "rollback_to"),
    ],
)
@pytest.mark.parametrize("value", ["\ud800", "x" * 1_000_000], ids=["half a character", "a megabyte"])
def test_a_name_that_cannot_or_should_not_be_recorded_is_refused_by_form(
    stage: str, field: str, value: str
) -> None:
    why_not({**CLAIMS[stage], field: value})


def test_many_problems_are_still_one_line_of_some_of_them() -> None:
    said = why_not({"stage": "config"})
    assert said.count("Field required") == 6
    said = why_not({"stage": "deploy", "a": 1, "b": 2})
    assert said.endswith("; and 2 more")
    assert said.count("Field required") + said.count("Extra inputs") == 6
    assert len(why_not({"stage": "cost", **{f"field_{n}": n for n in range(500)}})) < 600


# --- anything at all


def said_of(payload: object) -> str:
    """What is said of a claim that is not usable; nothing when it is."""
    try:
        parse_claim(payload)
    except BadInput as error:
        return str(error)
    return ""


KEYS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
WORDS = st.text(st.characters(exclude_categories=("C", "Z")), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=150)
@given(JSON)
def test_what_is_no_claim_is_bad_input_and_nothing_else(payload: Any) -> None:
    why_not(payload)


@settings(deadline=None, max_examples=150)
@given(stage=st.sampled_from(sorted(CLAIMS)), data=st.data())
def test_a_claim_with_any_field_replaced_is_taken_or_bad_input(stage: str, data: st.DataObject) -> None:
    field = data.draw(st.sampled_from(sorted(CLAIMS[stage])))
    assert len(said_of({**CLAIMS[stage], field: data.draw(JSON)}).splitlines()) <= 1


@settings(deadline=None, max_examples=60)
@given(stage=st.sampled_from(sorted(set(CLAIMS) - {"cost"})), data=st.data())
def test_a_refusal_never_repeats_what_was_sent(stage: str, data: st.DataObject) -> None:
    secret = "kingfisher-4711"
    field = data.draw(st.sampled_from(sorted(set(CLAIMS[stage]) - {"stage"})))
    assert secret not in said_of({**CLAIMS[stage], field: [secret, {"inner": secret}]})


@pytest.mark.parametrize(
    "payload",
    [
        {**CLAIMS["cost"], "a\nb\x1b[2J": 1},
        {"stage": "a\nb\x1b[2J"},
        {**CLAIMS["cost"], "x" * 100_000: 1},
        {"stage": "x" * 100_000},
    ],
    ids=["field", "stage", "long field", "long stage"],
)
def test_a_name_made_to_harm_is_not_repeated(payload: dict[str, Any]) -> None:
    said = why_not(payload)
    assert said.isprintable()
    assert len(said) < 1000
