"""Training in a child: probes, checkpoints, stopping, resuming, dying."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from test_compute_tiny import ANSWERS, job, plane, root

from delivery_plane.compute.faults import known_faults, planted
from delivery_plane.compute.local.digests import weights_digest
from delivery_plane.compute.plane import JobSpec, Observation, Resume, TrainStatus
from delivery_plane.errors import BadInput, ComputeFault, Interrupted
from delivery_plane.facts import CheckpointSaved, ProbeObserved
from delivery_plane.hyperparameters import LoraSettings
from delivery_plane.rows import read_rows


def trained(
    spec: JobSpec, resume: Resume | None = None, stop_at: int | None = None
) -> tuple[list[ProbeObserved], list[CheckpointSaved], TrainStatus]:
    seen: list[Observation] = []
    running = plane().train(spec, resume)
    answer = None
    while True:
        try:
            seen.append(running.send(answer))
        except StopIteration as end:
            probes = [fact for fact in seen if isinstance(fact, ProbeObserved)]
            return probes, [fact for fact in seen if isinstance(fact, CheckpointSaved)], end.value
        answer = "stop" if isinstance(seen[-1], ProbeObserved) and len(seen) // 2 + 1 == stop_at else None


def resume_from(probe: ProbeObserved) -> Resume:
    return Resume(
        step=probe.step,
        device_seconds=probe.device_seconds,
        probe_seconds=probe.probe_seconds,
    )


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=16, dropout=0.1)])
def test_a_run_is_probed_and_saved_at_every_sixteenth_and_learns(lora: LoraSettings | None) -> None:
    spec = job(f"whole-{lora is not None}", lora=lora)
    probes, saved, status = trained(spec)
    assert status == "completed"
    assert [probe.step for probe in probes] == [save.step for save in saved] == list(spec.probe_steps())
    assert len(probes) == 16
    assert probes[-1].train_loss is not None
    assert probes[0].train_loss is not None
    assert probes[-1].train_loss < probes[0].train_loss
    assert probes[-1].probe_loss is not None
    assert probes[-1].probe_loss < probes[-1].base_probe_loss
    assert 0 < probes[0].parameter_delta_norm < probes[-1].parameter_delta_norm
    assert probes[-1].budget_fraction == 1
    assert probes[-1].tokens > probes[-1].supervised_tokens > probes[0].supervised_tokens > 0
    assert probes[-1].device_seconds > probes[-1].probe_seconds > 0
    assert sorted(path.name for path in spec.job_folder.glob("checkpoint-*")) == [
        f"checkpoint-{step}" for step in sorted(spec.probe_steps()[-2:], key=str)
    ]
    assert saved[-1].digest == weights_digest(spec.checkpoint_path(spec.steps))
    assert len({save.digest for save in saved}) == 16


def test_stop_at_a_probe_saves_a_checkpoint_and_ends() -> None:
    probes, saved, status = trained(job("stopped"), stop_at=3)
    assert status == "stopped"
    assert len(probes) == len(saved) == 3


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4, alpha=16, dropout=0.1)])
def test_a_killed_run_resumes_bit_for_bit(lora: LoraSettings | None) -> None:
    uninterrupted, last, _ = trained(job(f"through-{lora is not None}", lora=lora))
    spec = job(f"killed-{lora is not None}", lora=lora)
    running = plane().train(spec, None)
    before = [next(running) for _ in range(11)]
    running.close()
    # The sixth probe was seen, its checkpoint was not: the job goes on from the fifth.
    fifth = [fact for fact in before if isinstance(fact, ProbeObserved)][4]
    probes, saved, status = trained(spec, resume_from(fifth))
    assert status == "completed"
    assert [save.digest for save in saved] == [save.digest for save in last[5:]]
    timeless = {"job_id", "device_seconds", "probe_seconds", "peak_memory_bytes"}
    assert [probe.model_dump(exclude=timeless) for probe in probes] == [
        probe.model_dump(exclude=timeless) for probe in uninterrupted[5:]
    ]
    assert probes[0].device_seconds > fifth.device_seconds


def test_a_checkpoint_that_is_not_whole_or_not_of_this_job_is_not_resumed() -> None:
    spec = job("broken")
    probes, _, _ = trained(spec, stop_at=2)
    other = spec.model_copy(update={"learning_rate": 0.02})
    with pytest.raises(ComputeFault, match="another job"):
        trained(other, resume_from(probes[-1]))
    (spec.checkpoint_path(probes[-1].step) / "optimizer.pt").write_bytes(b"")
    with pytest.raises(ComputeFault, match=r"damaged: optimizer\.pt"):
        trained(spec, resume_from(probes[-1]))
    (spec.checkpoint_path(probes[0].step) / "complete.json").unlink()
    with pytest.raises(ComputeFault, match="no complete checkpoint"):
        trained(spec, resume_from(probes[0]))


def test_a_run_whose_loss_is_not_finite_says_so_and_keeps_no_such_weights() -> None:
    probes, saved, status = trained(job("diverged", learning_rate=1e15, scheduler="constant"))
    assert status == "not_finite"
    assert probes[-1].probe_loss is None
    assert len(saved) == len(probes) - 1


def test_inputs_that_changed_since_the_plan_are_refused() -> None:
    with pytest.raises(ComputeFault, match="rows changed"):
        trained(job("changed", dataset_digest="0" * 64))


def test_a_trainer_that_is_killed_was_interrupted_and_is_no_hang() -> None:
    spec = job("shot")
    running = plane().train(spec, None)
    next(running)
    os.kill(trainer_pid(spec), signal.SIGKILL)
    with pytest.raises(Interrupted, match=r"killed by signal 9.*trainer\.log"):
        list(running)


def test_a_trainer_that_crashes_by_itself_is_a_fault() -> None:
    spec = job("crashed")
    running = plane().train(spec, None)
    next(running)
    os.kill(trainer_pid(spec), signal.SIGSEGV)
    with pytest.raises(ComputeFault, match="killed by signal 11"):
        list(running)


def test_a_newer_trainer_of_a_job_ends_the_older_one() -> None:
    spec = job("twice")
    older = plane().train(spec, None)
    next(older)  # waits at its first probe, with the job's lock in hand
    assert len(list(plane().train(spec, None))) == 32
    with pytest.raises(Interrupted):
        list(older)


def test_a_worker_loads_no_torch_runs_main_once_and_takes_its_trainer_along(tmp_path: Path) -> None:
    clean, endless = job("clean"), job("endless", steps=100_000)
    program = f"""
        import sys
        from pathlib import Path
        from delivery_plane.compute.local.plane import LocalPlane
        from delivery_plane.compute.plane import JobSpec

        print("main runs", flush=True)
        plane = LocalPlane(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}), "cpu")
        clean, endless = (JobSpec.model_validate_json(text) for text in sys.argv[1:])
        plane.render(clean)
        print(len(list(plane.train(clean, None))), "facts")
        heavy = ("torch", "transformers", "trl", "peft", "lm_eval", "datasets", "numpy")
        print([name for name in heavy if name in sys.modules], flush=True)
        next(plane.train(endless, None))
    """
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(program))
    with (tmp_path / "printed").open("w") as printed:
        worker = subprocess.Popen(
            [sys.executable, str(script), clean.model_dump_json(), endless.model_dump_json()],
            stdout=printed,
            stderr=printed,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
    try:
        pid = _wait_for(lambda: trainer_pid(endless), 90)
        # In the middle of computing: the first probe is thousands of steps away.
        _wait_for(lambda: _cpu_ticks(pid) > 150 or None, 60)
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
    killed = time.monotonic()
    _wait_for(lambda: _gone(pid) or None, 10)
    assert time.monotonic() - killed < 2
    assert (tmp_path / "printed").read_text().splitlines()[:3] == ["main runs", "32 facts", "[]"]


def test_label_shuffle_changes_labels_only() -> None:
    rows = read_rows(root() / "train.jsonl")
    shuffled = planted("label-shuffle", 1).rows(rows)
    assert [{**row, "answer": ""} for row in shuffled] == [{**row, "answer": ""} for row in rows]
    assert {row["answer"] for row in shuffled} == set(ANSWERS)
    kept = sum(one["answer"] == two["answer"] for one, two in zip(rows, shuffled, strict=True))
    assert 0 < kept < len(rows) / 2
    assert planted("label-shuffle", 1).rows(rows) == shuffled
    assert planted(None, 1).rows(rows) == rows


def test_a_faulty_run_has_the_same_plan_and_other_weights() -> None:
    clean, faulty = job("clean-labels", steps=16), job("shuffled-labels", steps=16, fault="label-shuffle")
    assert clean.digest == faulty.digest
    assert trained(clean, stop_at=2)[1][-1].digest != trained(faulty, stop_at=2)[1][-1].digest


def test_an_unknown_fault_is_refused() -> None:
    assert "label-shuffle" in known_faults()
    with pytest.raises(BadInput, match=r"no such fault; known: .*label-shuffle"):
        next(plane().train(job("unknown", fault="gremlins"), None))


def trainer_pid(spec: JobSpec) -> int | None:
    """The process that holds the job's lock, from the kernel's table of locks."""
    lock = spec.job_folder / "trainer.lock"
    if not lock.exists():
        return None
    inode = lock.stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "POSIX" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return None


def _gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def _cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11])


def _wait_for(found, seconds: float):  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if (value := found()) is not None:
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")
