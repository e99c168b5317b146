"""The scenario that ships, on the base that ships: every seat ends as `expected.toml` declares. The reference and its
shuffled labels are the demo, which `.ci/run` holds to the same from the wheel."""

from collections.abc import Iterator

import pytest
from commands import Plane

from scenarios.catalog import expected, load_scenario

SCENARIO = "support-intents"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    here = Plane(tmp_path_factory.mktemp("plane") / "home")
    with here.up():
        yield here


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("do-nothing", ("--seat", "do-nothing")),
        ("transcriber", ("--seat", "transcriber")),
        ("fault:labels-all-masked-marker-miss", ("--fault", "labels-all-masked-marker-miss")),
        ("fault:label-shuffle:observe", ("--fault", "label-shuffle", "--on-flag", "observe")),
    ],
)
def test_seats_and_faults_end_as_declared(plane: Plane, declared: str, words: tuple[str, ...]) -> None:
    shown = plane.json("deliver", SCENARIO, *words, code=None, seconds=600)
    want = expected(load_scenario(SCENARIO))[declared]
    assert shown["outcome"] in (want.outcome, *want.also)
    failed = list(dict.fromkeys(stage["name"] for stage in shown["stages"] if stage["status"] == "failed"))
    if want.failed_stages:
        assert failed == list(want.failed_stages)
    if want.caught_by == "detector":
        assert shown["flags"]
    if "." in want.caught_by:
        wrong = [f for s in shown["stages"] for f in s["findings"] if f["status"] == "failed"]
        assert want.caught_by in {f["rule"] for f in wrong}
        assert {f["rule"] for f in wrong if f["blocking"]} <= {want.caught_by}
    if declared.endswith("observe"):
        job = shown["jobs"][0]
        assert job["train_loss_last"] <= 0.7 * job["train_loss_first"]
