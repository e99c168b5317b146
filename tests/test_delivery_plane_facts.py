"""Every kind of fact survives JSON unchanged, refuses what it does not know, and old versions still read."""

import json
from enum import StrEnum
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
import records
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from delivery_plane import facts
from delivery_plane.entry import GENESIS, Entry, canonical, entry_hash, sha256
from delivery_plane.facts import (
    UPCASTS,
    EvaluationRequested,
    Fact,
    FactBase,
    SeatWithdrew,
    Visibility,
    parse_fact,
)
from delivery_plane.record import Record

KINDS: tuple[type[FactBase], ...] = get_args(get_args(Fact)[0])

SAFE = 2**53 - 1
"""The largest integer that JSON readers agree on (RFC 8785, 3.2.2.3)."""

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
FLOATS = st.floats(-SAFE, SAFE, allow_nan=False)


def values(kind: Any, least: int | None = None) -> st.SearchStrategy[Any]:
    """Values of a fact field's type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [item.ge for item in arguments[1:] if isinstance(item, annotated_types.Ge)]
        return values(arguments[0], *bounds)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return reduce(or_, (values(argument) for argument in arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if kind is NoneType:
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-SAFE if least is None else least, SAFE)
    if kind is float:
        return FLOATS if least is None else st.floats(least, SAFE, allow_nan=False)
    if kind is str:
        return TEXT
    if issubclass(kind, StrEnum):
        return st.sampled_from(kind)
    return models(kind)


def models(kind: type[BaseModel]) -> st.SearchStrategy[Any]:
    """Instances of a model, every field drawn."""
    fields = {}
    for name, field in kind.model_fields.items():
        bounds = [item.ge for item in field.metadata if isinstance(item, annotated_types.Ge)]
        fields[name] = values(field.annotation, *bounds)
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**drawn))


def payload_of(fact: FactBase) -> dict[str, Any]:
    return fact.model_dump(mode="json")


def test_no_kind_is_left_out_of_the_union() -> None:
    assert set(KINDS) == set(FactBase.__subclasses__())
    named = [kind.model_fields["kind"].default for kind in KINDS]
    assert len(set(named)) == len(KINDS)
    assert {kind.__name__ for kind in KINDS} <= set(facts.__all__)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fact_survives_json_and_hashes_the_same_afterwards(kind: type[FactBase]) -> None:
    @settings(deadline=None, max_examples=12)
    @given(models(kind))
    def property_(fact: FactBase) -> None:
        written = canonical(payload_of(fact))
        read = json.loads(written)
        assert parse_fact(read) == fact
        assert type(parse_fact(read)) is kind
        assert canonical(read) == written
        assert json.loads(json.dumps(payload_of(fact))) == payload_of(fact)

    property_()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=1)
@given(data=st.data())
def test_a_fact_cannot_be_changed_and_refuses_what_it_does_not_know(
    kind: type[FactBase], data: st.DataObject
) -> None:
    fact = data.draw(models(kind))
    for name in kind.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(fact, name, getattr(fact, name))
    payload = payload_of(fact)
    with pytest.raises(ValidationError, match="Extra inputs"):
        parse_fact({**payload, "note": "x"})
    with pytest.raises(ValidationError):
        parse_fact({**payload, "v": payload["v"] + 1})
    with pytest.raises(ValidationError):
        parse_fact({**payload, "kind": payload["kind"] + "_"})
    for missing in (name for name, field in kind.model_fields.items() if field.is_required()):
        with pytest.raises(ValidationError, match="Field required"):
            parse_fact({name: value for name, value in payload.items() if name != missing})


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"kind": None},
        {"kind": "nothing_happened", "v": 1},
        {"kind": []},
    ],
)
def test_what_is_no_fact_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse_fact(payload)


def test_what_is_kept_from_the_seat_and_from_the_oracle() -> None:
    operator = {kind.__name__ for kind in KINDS if kind.visibility is Visibility.OPERATOR}
    assert operator == {
        "PlantedTruth",
        "FaultPlanted",
        "GateOpened",
        "AcceptanceTested",
        "AcceptanceUnmeasured",
        "DeliveryPurged",
    }
    kept = [kind.__name__ for kind in KINDS if not kind.for_oracle]
    assert kept == ["FaultPlanted", "DeliveryPurged"]


# --- versions


def test_an_old_version_is_brought_up_to_date_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        UPCASTS, ("seat_withdrew", -1), lambda old: {"kind": old["kind"], "v": 0, "because": old["cause"]}
    )
    monkeypatch.setitem(
        UPCASTS, ("seat_withdrew", 0), lambda old: {"kind": old["kind"], "v": 1, "reason": old["because"]}
    )
    for old in ({"v": -1, "cause": "no data"}, {"v": 0, "because": "no data"}, {"v": 1, "reason": "no data"}):
        assert parse_fact({"kind": "seat_withdrew", **old}) == SeatWithdrew(reason="no data")
    assert parse_fact(payload_of(EvaluationRequested(request_id="1", candidate="base")))


def test_an_old_fact_is_read_anew_and_its_entry_still_says_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = {"kind": "seat_withdrew", "v": 0, "because": "no data"}
    body: dict[str, Any] = {
        "delivery_id": "delivery-1",
        "number": 1,
        "type": "fact",
        "kind": "seat_withdrew",
        "stage": None,
        "attempt": 0,
        "visibility": "seat",
        "actor": "platform",
        "recorded_at": "2026-01-01T00:00:00.000000+00:00",
        "idempotency_key": "seat_withdrew",
        "payload": written,
        "prev_hash": GENESIS,
    }
    entry = Entry.model_validate({**body, "hash": entry_hash(body)})
    with pytest.raises(ValidationError):
        entry.fact()
    monkeypatch.setitem(
        UPCASTS, ("seat_withdrew", 0), lambda old: {"kind": old["kind"], "v": 1, "reason": old["because"]}
    )
    assert Record([entry]).facts(SeatWithdrew)[0].value == SeatWithdrew(reason="no data")
    assert entry.payload == written
    assert entry_hash(entry.model_dump(mode="json")) == entry.hash


# --- canonical JSON

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(JSON)
def test_a_payload_hashes_the_same_after_a_json_round_trip(payload: Any) -> None:
    assert sha256(canonical(json.loads(json.dumps(payload)))) == sha256(canonical(payload))
    assert sha256(canonical(json.loads(canonical(payload)))) == sha256(canonical(payload))


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(TEXT, JSON, min_size=2, max_size=6))
def test_the_order_of_keys_does_not_change_the_hash(payload: dict[str, Any]) -> None:
    assert canonical(dict(reversed(payload.items()))) == canonical(payload)


@settings(deadline=None, max_examples=60)
@given(JSON, JSON)
def test_different_payloads_hash_differently(one: Any, other: Any) -> None:
    # Python's 1 == True and 1 == 1.0 are left out: JSON tells only the first pair apart.
    if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
        assert canonical(one) == canonical(other)
    elif one != other:
        assert canonical(one) != canonical(other)


def test_a_whole_record_reads_back_as_it_was() -> None:
    entries = records.healthy_record()
    again = [Entry.model_validate_json(canonical(entry.model_dump(mode="json"))) for entry in entries]
    assert again == entries
    assert [entry.fact() for entry in again if entry.type == "fact"] == [
        entry.fact() for entry in entries if entry.type == "fact"
    ]
    assert all(entry_hash(entry.model_dump(mode="json")) == entry.hash for entry in again)
