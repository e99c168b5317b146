"""Preflight: what is wrong with a job is seen before it is metered, and nothing is seen where nothing is wrong."""

import pytest
from preflight_table import CATALOGUE, DPO, HEALTHY, LORA, SETTINGS, TAMPERED, UNSEEN, Case, pairs, tried
from test_compute_tiny import job, plane

from delivery_plane.compute.faults import FAULTS
from delivery_plane.facts import CheckpointSaved

FEW = ("answers cut", "adapter on one block", "rate far too high", "no generation tags", "two start tokens",
       "mask-falls-back-to-all-ones", "packing-lets-examples-see-each-other", "only-one-side-truncated",
       "adapter-coverage-too-thin", "optimizer-holds-stale-parameters", "schedule-stepped-once-per-process",
       "adapter-keys-renamed-and-skipped")  # fmt: skip
FEW_HEALTHY = ("full", "full, cosine, low rate", "packing", "adapter of rank 1 on two kinds", "preferences, adapter",
               "rewards")  # fmt: skip


def refused(cases: list[Case]) -> None:
    for (name, _, check, field), checked in zip(
        cases, tried([made() for _, made, _, _ in cases]), strict=True
    ):
        assert checked.failed, name
        first = checked.failed[0]
        assert (first.name, first.field) == (check, field), (name, checked.failed)
        assert "\n" not in first.message


def passed(names: list[str]) -> None:
    for name, checked in zip(names, tried([HEALTHY[name]() for name in names]), strict=True):
        assert not checked.failed, (name, checked.failed)
        assert len(checked.checks) >= 15, name


CASES = [*SETTINGS, *TAMPERED, *CATALOGUE]


def test_what_is_wrong_is_caught_by_the_check_for_it() -> None:
    refused([case for case in CASES if case[0] in FEW])


def test_what_is_right_passes() -> None:
    passed(list(FEW_HEALTHY))


@pytest.mark.long
@pytest.mark.parametrize("cases", [SETTINGS, TAMPERED, CATALOGUE], ids=["settings", "tampered", "catalogue"])
def test_everything_wrong_is_caught_by_the_check_for_it(cases: list[Case]) -> None:
    refused(cases)


@pytest.mark.long
def test_everything_right_passes() -> None:
    passed(list(HEALTHY))


def test_every_fault_is_caught_or_said_to_be_out_of_sight() -> None:
    assert {name for name, *_ in CATALOGUE} | set(UNSEEN) == set(FAULTS)
    assert not {name for name, *_ in CATALOGUE} & set(UNSEEN)


def test_a_job_is_tried_in_a_child_and_leaves_nothing_behind() -> None:
    spec = job("untouched", lora=LORA)
    first, second = plane().preflight(spec), plane().preflight(spec)
    assert first.checks == second.checks
    assert not first.failed
    assert first.job_digest == spec.digest
    assert 0 < first.seconds < 60
    assert not spec.job_folder.exists()


def test_a_job_that_goes_on_from_another_is_tried_from_where_that_ended() -> None:
    first = job("first-stage", lora=LORA, steps=16)
    *_, saved = plane().train(first, None)
    assert isinstance(saved, CheckpointSaved)
    start = {"parents": (first.checkpoint_path(16),), "parent_digest": saved.digest}
    for checked in tried([job("second", **start), job("second", **start, lora=LORA)]):
        assert not checked.failed, checked.failed
        (held_out,) = (check.message for check in checked.checks if check.name == "held-out-answers-move")
        assert "5.5" not in held_out.partition("start")[0]  # as the base alone would begin


def test_a_planted_fault_is_not_named() -> None:
    name = "mask-falls-back-to-all-ones"
    checked = plane().preflight(job("unnamed", fault=name))
    assert checked.failed
    assert name not in checked.model_dump_json()
    assert checked.job_digest == job("unnamed").digest


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_what_is_out_of_sight_passes(name: str) -> None:
    preferring = {**pairs(), "dpo": DPO} if name.startswith("preference") else {}
    (checked,) = tried([job("unseen", fault=name, **preferring)])
    assert not checked.failed, checked.failed
