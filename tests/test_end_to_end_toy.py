"""Deliveries end to end on a toy scenario from outside the package: real server, workers, training, people."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import toy
from commands import Plane, until

from delivery_plane.settings import Home
from workflows.server import EmbeddedServer


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(toy.shared(tmp_path_factory.getbasetemp().parent))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    here = Plane(tmp_path_factory.mktemp("plane") / "home")
    with here.up():
        yield here


@pytest.fixture(scope="module")
def accepted(plane: Plane, scenario: str) -> str:
    """The id of an accepted delivery."""
    result = plane.json("deliver", scenario, "--id", "toy-good")
    assert result["outcome"] == "accepted", result
    return result["delivery_id"]


def waiting_gate(plane: Plane, delivery_id: str, kind: str) -> dict[str, str]:
    def find() -> dict[str, str] | None:
        waiting = plane.json("gates", "list", code=None)
        return next((g for g in waiting if g["delivery_id"] == delivery_id and g["gate"] == kind), None)

    return until(find, 120)


def test_the_reference_passes_every_stage_and_is_accepted(plane: Plane, accepted: str) -> None:
    shown = plane.json("deliveries", "show", accepted)
    assert [(s["name"], s["status"]) for s in shown["stages"]] == [
        (name, "passed")
        for name in [
            "intake",
            "plan",
            "config",
            "schedule",
            "train",
            "eval",
            "register",
            "deploy",
            "cost",
            "card",
        ]
    ]
    assert all(finding["entries"] for stage in shown["stages"] for finding in stage["findings"])
    assert shown["acceptance"]["decision"] == "accept"
    assert shown["acceptance"]["wins"] + shown["acceptance"]["losses"] + shown["acceptance"]["ties"] == 200
    assert shown["acceptance"]["e_value"] is None
    assert [gate["kind"] for gate in shown["gates"]] == ["spend", "release"]
    assert shown["ledger"]["verified"] is True
    assert shown["certificate"] == "uncertified"
    assert shown["meters"]["usd"] > 0
    assert shown["meters"]["dev_evaluations"] == 1


def test_the_seat_never_sees_findings_or_truth(plane: Plane, accepted: str) -> None:
    hidden = {"planted_truth", "gate_opened", "acceptance_tested", "stage", "acceptance"}
    for entry in plane.entries(accepted):
        assert (entry["visibility"] == "operator") == (entry["kind"] in hidden), entry["kind"]


def test_no_fact_holds_customer_text(plane: Plane, accepted: str) -> None:
    record = json.dumps([entry["payload"] for entry in plane.entries(accepted)])
    rows = [json.loads(line) for line in (plane.home / "sealed").rglob("sealed.jsonl").__next__().open()]
    assert not any(row["prompt"] in record for row in rows)


@pytest.mark.usefixtures("accepted")
def test_the_governance_worker_maps_no_torch(plane: Plane) -> None:
    for queue in ("governance", "compute"):
        pid = plane.runtime()["workers"][queue]
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), queue


def test_fetched_model_scores_what_was_promised(plane: Plane, accepted: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    plane.run("deliveries", "fetch", accepted, str(folder))
    dev = next((plane.home / "splits").rglob("dev.jsonl"))
    script = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
right = 0
rows = [json.loads(line) for line in open(sys.argv[2])]
for row in rows:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": row["prompt"]}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    right += tokenizer.decode(out[0, ids["input_ids"].shape[1]:], skip_special_tokens=True).strip() == row["answer"]
print(right / len(rows))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(dev)], capture_output=True, text=True, check=True
    )
    share = float(done.stdout)
    look = plane.facts(accepted, "candidate_evaluated")[0]
    assert share == look["correct"] / look["items"]
    assert json.loads((folder / "acceptance.json").read_text())["decision"] == "accept"
    assert "planted_truth" not in "".join(path.read_text() for path in folder.glob("*.json"))


def test_an_exported_record_is_rejudged_offline_without_torch(
    plane: Plane, accepted: str, tmp_path: Path
) -> None:
    export = tmp_path / "record.jsonl"
    plane.run("ledger", "export", accepted, "--out", str(export))
    elsewhere = Plane(tmp_path / "no-home")
    assert "verified" in elsewhere.run("ledger", "verify", str(export))
    code = (
        "import sys; from delivery_plane.cli.app import main\n"
        f"sys.argv = ['delivery-plane', 'rejudge', {str(export)!r}, '--json']\n"
        "try: main()\n"
        "finally: assert not {'torch', 'temporalio', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    judged = json.loads(done.stdout)
    assert judged["verdicts"] == 12
    assert judged["differences"] == []
    assert not (tmp_path / "no-home").exists()


def test_shuffled_labels_are_flagged_and_stopped(plane: Plane, scenario: str) -> None:
    shown = plane.json("deliver", scenario, "--seat", "label-shuffle", code=1)
    assert shown["outcome"] == "stopped_on_flag"
    assert shown["seat"] == "reference"
    assert [flag["action"] for flag in shown["flags"]] == ["paused"]
    assert shown["jobs"][0]["status"] == "stopped"
    assert shown["acceptance"] is None
    assert plane.facts(shown["delivery_id"], "flag_resolved")[0]["because"] == "seat_stopped"


@pytest.mark.long
def test_observed_faults_run_on_and_are_refused_by_the_sealed_test(plane: Plane, scenario: str) -> None:
    shown = plane.json("deliver", scenario, "--fault", "label-shuffle", "--on-flag", "observe", code=1)
    assert shown["outcome"] in ("rejected_not_better", "rejected_worse")
    assert {flag["action"] for flag in shown["flags"]} == {"observed"}
    job = shown["jobs"][0]
    assert job["status"] == "completed"
    assert job["train_loss_last"] <= 0.7 * job["train_loss_first"]


def test_the_scripted_approver_never_continues_past_a_flag(plane: Plane, scenario: str) -> None:
    shown = plane.json("deliver", scenario, "--fault", "label-shuffle", "--on-flag", "ask", code=1)
    assert shown["outcome"] == "stopped_on_flag"
    assert [(gate["kind"], gate["decision"]) for gate in shown["gates"]] == [
        ("spend", "approved"),
        ("flag", "rejected"),
    ]


@pytest.mark.long
def test_bad_seats_come_to_their_ends(plane: Plane, scenario: str) -> None:
    lazy = plane.json("deliver", scenario, "--seat", "do-nothing", code=1)
    assert lazy["outcome"] == "rejected_not_better"
    assert (lazy["acceptance"]["wins"], lazy["acceptance"]["losses"]) == (0, 0)
    blind = plane.json("deliver", scenario, "--seat", "transcriber", code=1)
    assert blind["outcome"] == "violation"
    failed = {
        stage["name"] for stage in blind["stages"] if stage["status"] == "failed" and stage["class"] == "J"
    }
    assert failed >= {"intake", "plan"}


@pytest.mark.long
def test_a_poor_dev_look_reopens_the_configuration(plane: Plane, scenario: str) -> None:
    # The detector only observes: whether it would flag the first, short run is not what is tested here.
    shown = plane.json("deliver", scenario, "--seat", "reviser", "--on-flag", "observe")
    assert shown["outcome"] == "accepted"
    visits = [(stage["name"], stage["attempt"]) for stage in shown["stages"]]
    assert visits[4:8] == [("train", 1), ("eval", 1), ("config", 2), ("schedule", 2)]
    assert visits[-1] == ("card", 2)
    assert shown["meters"]["dev_evaluations"] == 2
    # The second quote exceeds what was approved for the first: it needs its own approval.
    assert [gate["kind"] for gate in shown["gates"]] == ["spend", "spend", "release"]


@pytest.mark.long
def test_a_flag_may_be_answered_by_another_plan(plane: Plane, scenario: str) -> None:
    shown = plane.json("deliver", scenario, "--seat", "reviser", "--fault", "label-shuffle", code=1)
    assert shown["outcome"] == "stopped_on_flag"
    visits = [(stage["name"], stage["attempt"]) for stage in shown["stages"]]
    assert visits[4:6] == [("train", 1), ("plan", 2)]
    assert [job["status"] for job in shown["jobs"]] == ["stopped", "stopped"]


@pytest.mark.long
def test_people_decide_gates_and_every_wrong_decision_is_recorded(plane: Plane, scenario: str) -> None:
    plane.run("identity", "new", "ann", "--role", "approver")
    plane.run("identity", "new", "sam", "--role", "seat")
    delivery = plane.start("deliver", scenario, "--approver", "ask", "--id", "toy-people", "--json")
    gate = waiting_gate(plane, "toy-people", "spend")
    name, digest = gate["gate_id"], gate["digest"]
    shown = plane.run("gates", "show", name)
    assert digest in shown
    assert '"decide": "spend this on training?"' in shown

    def refused(*words: str) -> None:
        plane.run("gates", "approve", name, *words, code=1)

    refused("--as", "seat-reference", "--reason", "mine")
    refused("--as", "sam", "--reason", "not my role")
    refused("--as", "ann")
    refused("--as", "ann", "--reason", "seen before", "--digest", "0" * 64)
    plane.run("gates", "approve", name, "--as", "ann", "--reason", "within budget", "--digest", digest)
    refused("--as", "ann", "--reason", "again")
    release = waiting_gate(plane, "toy-people", "release")
    plane.run("gates", "reject", release["gate_id"], "--as", "ann", "--reason", "customer withdrew")
    out, _ = delivery.communicate(timeout=120)
    shown_end = json.loads(out)
    assert shown_end["outcome"] == "refused_at_gate"
    refusals = [fact["why"] for fact in plane.facts("toy-people", "gate_decision_refused")]
    assert refusals == ["seat_holder", "not_an_approver", "no_reason", "changed_bytes", "already_decided"]
    assert [(g["kind"], g["decision"], g["by"]) for g in shown_end["gates"]] == [
        ("spend", "approved", "ann"),
        ("release", "rejected", "ann"),
    ]


@pytest.mark.long
def test_no_decision_by_the_deadline_is_a_refusal_and_a_late_one_is_refused(
    plane: Plane, scenario: str
) -> None:
    hasty = Plane(plane.home, {"DELIVERY_PLANE_DEADLINES__SPEND_SECONDS": "2"})
    shown = hasty.json("deliver", scenario, "--approver", "none", "--id", "toy-late", code=1)
    assert shown["outcome"] == "refused_at_gate"
    assert shown["gates"][0]["decision"] == "expired"
    assert shown["jobs"] == []
    plane.run("identity", "new", "late", "--role", "approver")
    gate = plane.facts("toy-late", "gate_opened")[0]["gate_id"]
    plane.run("gates", "approve", gate, "--as", "late", "--reason", "sorry", code=1)
    assert [fact["why"] for fact in plane.facts("toy-late", "gate_decision_refused")] == ["late"]


@pytest.mark.long
def test_a_person_may_let_a_flagged_job_go_on(plane: Plane, scenario: str) -> None:
    plane.run("identity", "new", "bold", "--role", "approver")
    delivery = plane.start(
        "deliver", scenario, "--fault", "label-shuffle", "--on-flag", "ask", "--approver", "ask",
        "--id", "toy-bold", "--json",
    )  # fmt: skip
    gate = waiting_gate(plane, "toy-bold", "spend")
    plane.run("gates", "approve", gate["gate_id"], "--as", "bold", "--reason", "go")
    flag = waiting_gate(plane, "toy-bold", "flag")
    plane.run("gates", "approve", flag["gate_id"], "--as", "bold", "--reason", "let us see")
    second = waiting_gate(plane, "toy-bold", "flag")
    assert second["gate_id"] != flag["gate_id"]
    plane.run("gates", "reject", second["gate_id"], "--as", "bold", "--reason", "enough")
    out, _ = delivery.communicate(timeout=120)
    assert json.loads(out)["outcome"] == "stopped_on_flag"
    starts = plane.facts("toy-bold", "job_started")
    assert [start["resume_step"] for start in starts] == [0, 72]
    probes = [fact["step"] for fact in plane.facts("toy-bold", "probe_observed")]
    assert probes == sorted(set(probes))


def test_an_operator_cancels(plane: Plane, scenario: str) -> None:
    delivery = plane.start("deliver", scenario, "--approver", "none", "--id", "toy-cancel", "--json")
    waiting_gate(plane, "toy-cancel", "spend")
    plane.run("deliveries", "cancel", "toy-cancel")
    out, _ = delivery.communicate(timeout=60)
    assert json.loads(out)["outcome"] == "cancelled_by_operator"
    plane.run("deliveries", "cancel", "toy-cancel", code=2)


@pytest.mark.long
def test_workers_join_a_server_that_somebody_else_runs(tmp_path: Path, scenario: str) -> None:
    elsewhere = EmbeddedServer(Home(tmp_path / "server").create())
    elsewhere.start()
    plane = Plane(tmp_path / "home", {"DELIVERY_PLANE_ADDRESS": elsewhere.address})
    workers = [
        plane.start(
            "worker",
            "--queue",
            queue,
            "--address",
            elsewhere.address,
            "--deployment",
            "dp",
            "--build-id",
            "one",
        )
        for queue in ("compute", "governance")
    ]
    try:
        temporal = [Path(sys.executable).parent / "temporal", "--address", elsewhere.address]
        promote = [
            "worker",
            "deployment",
            "set-current-version",
            "--deployment-name",
            "dp",
            "--build-id",
            "one",
        ]
        until(
            lambda: (
                subprocess.run([*temporal, *promote, "--yes"], capture_output=True, check=False).returncode
                == 0
            ),
            60,
        )
        shown = plane.json("deliver", scenario, "--seat", "transcriber", code=1)
        assert shown["outcome"] == "violation"
        assert not (plane.home / "temporal.sqlite").exists()
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        for worker in workers:
            worker.communicate(timeout=60)
        elsewhere.stop()


@pytest.mark.long
def test_a_delivery_whose_workflow_was_terminated_is_taken_up_again(tmp_path: Path, scenario: str) -> None:
    plane = Plane(tmp_path / "home")
    with plane.up():
        delivery = plane.start("deliver", scenario, "--approver", "ask", "--id", "toy-ended", "--json")
        waiting_gate(plane, "toy-ended", "spend")
        temporal = Path(sys.executable).parent / "temporal"
        subprocess.run(
            [temporal, "workflow", "terminate", "-w", "toy-ended", "--address", plane.runtime()["address"]],
            check=True,
            capture_output=True,
        )
        delivery.communicate(timeout=60)
        assert delivery.returncode == 4
    with plane.up():
        plane.run("identity", "new", "ann", "--role", "approver")
        gate = waiting_gate(plane, "toy-ended", "spend")
        plane.run("gates", "reject", gate["gate_id"], "--as", "ann", "--reason", "not today")
        until(lambda: plane.facts("toy-ended", "delivery_closed"), 60)
    assert plane.facts("toy-ended", "delivery_closed")[0]["outcome"] == "refused_at_gate"
    numbers = [entry["number"] for entry in plane.entries("toy-ended")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(plane.facts("toy-ended", "data_profiled")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_in_order_even_when_its_shell_made_it_ignore_interrupts(tmp_path: Path, number: int) -> None:
    plane = Plane(tmp_path / "home")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = plane.start("up")
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: (plane.home / "runtime.json").exists(), 60)
    pids = [plane.runtime()["server_pid"], *plane.runtime()["workers"].values()]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert out.endswith("stopping\n")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not (plane.home / "runtime.json").exists()
