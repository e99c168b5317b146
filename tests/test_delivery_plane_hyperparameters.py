"""Settings that contradict each other are refused where they are written down, by field and reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from delivery_plane.claims import ConfigClaim, parse_claim
from delivery_plane.errors import BadInput
from delivery_plane.hyperparameters import Hyperparameters

GOOD: dict[str, Any] = {
    "learning_rate": 1e-3,
    "scheduler": "cosine",
    "batch_rows": 16,
    "steps": 160,
    "max_tokens_per_row": 256,
    "masking": "assistant_only",
}
DPO: dict[str, Any] = {"beta": 0.1}
GRPO: dict[str, Any] = {"group_rows": 8, "max_new_tokens": 16}
LORA: dict[str, Any] = {"rank": 8, "alpha": 16}


@pytest.mark.parametrize(
    ("settings", "field", "reason"),
    [
        ({"accumulation": 3}, "accumulation", "cannot share 16 batch_rows"),
        ({"accumulation": 32}, "accumulation", "cannot share 16 batch_rows"),
        ({"warmup_share": 1.0}, "warmup_share", "never falls"),
        ({"packing": True, "dpo": DPO}, "packing", "only sft packs rows"),
        ({"packing": True, "grpo": GRPO}, "packing", "only sft packs rows"),
        ({"masking": "all", "dpo": DPO}, "masking", "only sft may take it on prompts"),
        ({"masking": "all", "grpo": GRPO}, "masking", "only sft may take it on prompts"),
        ({"lora": {**LORA, "targets": ["all-linear", "q_proj"]}}, "lora.targets", "names every module"),
        ({"lora": {**LORA, "targets": ["q_proj", "q_proj"]}}, "lora.targets", "named twice"),
        ({"dpo": DPO, "grpo": GRPO}, "grpo", "one recipe"),
        ({"grpo": {**GRPO, "group_rows": 5}}, "grpo.group_rows", "do not fill 16 batch_rows"),
        ({"grpo": {**GRPO, "temperature": 0}}, "grpo.temperature", "nothing to compare"),
        ({"grpo": {**GRPO, "max_new_tokens": 256}}, "grpo.max_new_tokens", "no room for the prompt"),
    ],
)
def test_a_contradiction_names_the_field_and_the_reason(
    settings: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(ValidationError):
        Hyperparameters.model_validate({**GOOD, **settings})
    with pytest.raises(BadInput) as refused:
        parse_claim({"stage": "config", **GOOD, **settings})
    assert f"{field}: " in str(refused.value)
    assert reason in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_all_contradictions_are_told_at_once() -> None:
    with pytest.raises(BadInput, match=r"accumulation: .*; packing: .*; masking: "):
        parse_claim(
            {"stage": "config", **GOOD, "accumulation": 3, "packing": True, "masking": "all", "dpo": DPO}
        )


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({}, "sft"),
        ({"packing": True, "masking": "all", "accumulation": 4}, "sft"),
        ({"warmup_share": 1.0, "scheduler": "constant"}, "sft"),
        ({"dpo": DPO, "lora": LORA}, "dpo"),
        ({"grpo": GRPO, "lora": {**LORA, "targets": ["q_proj", "v_proj"]}}, "grpo"),
    ],
)
def test_settings_that_agree_are_taken_for_their_recipe(settings: dict[str, Any], recipe: str) -> None:
    claim = parse_claim({"stage": "config", **GOOD, **settings})
    assert isinstance(claim, ConfigClaim)
    assert claim.recipe == recipe


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_passes_share_a_batch_exactly_or_are_refused(batch_rows: int, accumulation: int) -> None:
    settings = {**GOOD, "batch_rows": batch_rows, "accumulation": accumulation}
    if batch_rows % accumulation == 0:
        assert Hyperparameters.model_validate(settings).accumulation == accumulation
    else:
        with pytest.raises(ValidationError, match="accumulation: "):
            Hyperparameters.model_validate(settings)
