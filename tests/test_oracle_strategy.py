"""What a job was, told from facts alone: every objective the recipes make, and what only looks like one."""

from typing import Any

import pytest
from records import Builder, changed, ended, played, probe, started

from delivery_plane.delivery import StageName
from delivery_plane.entry import Entry
from delivery_plane.facts import PolicyObserved, PreferenceObserved
from delivery_plane.record import Record
from oracle.strategy import State, state_of

WRITTEN_BY = "9e" * 32
POLICY = PolicyObserved(
    rollouts=640,
    policy_versions=40,
    generated_tokens=2000,
    reward_mean=0.4,
    reward_std=0.3,
    zero_std_share=0.1,
    clipped_share=0.0,
)
PREFERENCE = PreferenceObserved(accuracy=0.9, margin=0.8, chosen_shift=0.1)


def job(probed: dict[str, Any] | None = None, **start: Any) -> list[Entry]:
    """A finished job, its probes and its start changed."""
    entries = played(StageName.TRAIN, judged=False)
    if probed:
        dumped = {
            name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value
            for name, value in probed.items()
        }
        entries = changed(entries, "probe_observed", **dumped)
    return changed(entries, "job_started", **start) if start else entries


def of(entries: list[Entry], job_id: str = "job-1") -> State:
    return state_of(Record(entries, for_oracle=True), job_id)


REFERENCE = {"reference_digest": "ba5e" * 16}
REWARD = {"reward": "guess-number:game_won"}


@pytest.mark.parametrize(
    ("entries", "objective", "data"),
    [
        (job(), "SFT", "customer"),
        (job(generator_digests=[WRITTEN_BY]), "RFT", "self-generated"),
        (changed(job(), "config_rendered", supervised_prompt_tokens=3000), "CPT", "customer"),
        (changed(job(), "config_rendered", supervised_prompt_tokens=30), "SFT", "customer"),
        (job({"preference": PREFERENCE}, **REFERENCE), "PREF", "customer"),
        (job({"policy": POLICY}, **REWARD), "ONLINE_RL", "on-policy"),
        (changed(job(), "job_ended", steps=0), "NONE", "customer"),
        # What only looks like it: `grpo.py` that runs likelihood, rollouts nobody learnt from, one frozen policy,
        # pairs whose two answers are the same, a preference without a reference, nothing supervised.
        (job(**REWARD), "unknown", "unknown"),
        (job({"policy": POLICY.model_copy(update={"rollouts": 0})}, **REWARD), "unknown", "unknown"),
        (job({"policy": POLICY.model_copy(update={"policy_versions": 1})}, **REWARD), "unknown", "unknown"),
        (job({"policy": POLICY}), "unknown", "unknown"),
        (
            job({"preference": PREFERENCE.model_copy(update={"margin": 0.0})}, **REFERENCE),
            "unknown",
            "unknown",
        ),
        (job({"preference": PREFERENCE}), "unknown", "unknown"),
        (job({"policy": POLICY, "preference": PREFERENCE}, **REWARD, **REFERENCE), "unknown", "unknown"),
        (job({"supervised_tokens": 0}), "unknown", "unknown"),
    ],
)
def test_the_objective_follows_from_facts(entries: list[Entry], objective: str, data: str) -> None:
    found = of(entries)
    assert (found.objective, found.data) == (objective, data)
    assert found.lineage == ("base", objective)
    assert {entry.kind for entry in entries if entry.number in found.entries} == {
        "config_rendered",
        "job_started",
        "probe_observed",
        "job_ended",
    }


def test_a_recipes_own_name_and_the_plan_label_nothing() -> None:
    entries = job(recipe="grpo", strategy={"k": "ONLINE_RL", "m": "full", "d": "on-policy", "g": ["base"]})
    assert of(changed(entries, "plan", objective="grpo")) == of(job())


@pytest.mark.parametrize(
    ("rendered", "mechanism"),
    [
        ({}, "adapter"),
        ({"adapted_modules": 0, "trainable_parameters": 3_000_000}, "full"),
        ({"adapted_modules": 0, "trainable_parameters": 10}, "partial"),
        ({"adapted_modules": 0, "trainable_parameters": 0}, "none"),
    ],
)
def test_the_mechanism_follows_from_what_would_train(rendered: dict[str, Any], mechanism: str) -> None:
    assert of(changed(job(), "config_rendered", **rendered) if rendered else job()).mechanism == mechanism


def test_a_resumed_job_is_one_run_and_lineage_goes_through_parents() -> None:
    b = Builder(job())
    b.fact(started(fence=2, resume_step=80), StageName.TRAIN, 1)
    assert of(b.entries).lineage == ("base", "SFT")
    second = {"job_id": "job-2", "parent": "job-1", "parent_digest": "c4ec" * 16}
    b.fact(started(**second, **REFERENCE), StageName.TRAIN, 2)
    b.fact(probe(160, 40, job_id="job-2", preference=PREFERENCE.model_dump()), StageName.TRAIN, 2)
    with pytest.raises(LookupError, match="not ended"):
        of(b.entries, "job-2")
    b.fact(ended(job_id="job-2"), StageName.TRAIN, 2)
    assert of(b.entries, "job-2").lineage == ("base", "SFT", "PREF")


def test_a_job_that_was_never_probed_or_started_has_no_state() -> None:
    unprobed = [entry for entry in job() if entry.kind != "probe_observed"]
    with pytest.raises(LookupError, match="never probed"):
        of(unprobed)
    with pytest.raises(LookupError, match="no job job-9"):
        of(job(), "job-9")


def test_jobs_that_descend_from_themselves_or_from_nobody_have_an_unknown_lineage() -> None:
    b = Builder(job(parent="job-1"))
    b.fact(started(fence=2, parent="job-1"), StageName.TRAIN, 1)
    assert of(b.entries).lineage[-1] == "SFT"
    assert "unknown" in of(b.entries).lineage
    assert of(job(parent="job-7")).lineage == ("unknown", "SFT")
