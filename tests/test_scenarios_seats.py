"""The scripted reference: what it asks for follows from the profile of the data in front of it."""

from pathlib import Path

import pytest

from delivery_plane.claims import ConfigClaim
from delivery_plane.delivery import DeliverySpec, OnFlag, StageName
from delivery_plane.facts import DataProfiled
from delivery_plane.seat.seat import Seat
from delivery_plane.settings import Home
from scenarios.seats.reference import Reference
from scenarios.seats.turn import Turn
from workflows.opening import open_delivery
from workflows.platform import open_platform


@pytest.mark.parametrize(
    ("answers", "prompt_characters", "steps", "row_tokens"),
    [
        (24, 104, 288, 128),  # support-intents, as its evidence was measured
        (77, 152, 606, 256),  # banking77, whose longest row has 223 tokens
        (24, 11, 288, 128),
        (2, 128, 156, 128),
        (2, 129, 156, 256),
    ],
)
def test_the_reference_trains_longer_on_more_answers_and_reads_longer_rows_whole(
    tmp_path: Path, answers: int, prompt_characters: int, steps: int, row_tokens: int
) -> None:
    platform = open_platform(Home(tmp_path / "home"))
    open_delivery(platform, DeliverySpec(delivery_id="one", scenario="support-intents", seat="reference"))
    profile = DataProfiled(
        rows=2000,
        dataset_digest="0" * 64,
        distinct_answers=answers,
        prompt_characters_p95=prompt_characters,
        licences={},
        issues={},
        overlap_ngram=13,
    )
    platform.ledger.fact("one", profile, stage=StageName.INTAKE, attempt=1)
    seat = Seat(platform.ledger, "one", platform.identities.get("seat-reference"), "brief", wake=lambda: None)
    turn = Turn(StageName.CONFIG, 1, None, OnFlag.STOP)
    claim = Reference().config(seat, turn)
    assert isinstance(claim, ConfigClaim)
    assert (claim.steps, claim.max_tokens_per_row) == (steps, row_tokens)
    assert (claim.batch_rows, claim.learning_rate, claim.masking) == (16, 4e-3, "assistant_only")
