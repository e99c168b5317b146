"""Serving behind a canary, on a real socket of this machine."""

import functools
from pathlib import Path

import httpx
import pytest
from test_compute_judged import finished
from test_compute_tiny import plane, root

from delivery_plane.claims import DeployClaim
from delivery_plane.compute.local.children import Child
from delivery_plane.compute.local.digests import model_digest
from delivery_plane.errors import ComputeFault

pytestmark = pytest.mark.long


def roll_out_plan(**changes: object) -> DeployClaim:
    fields = {
        "canary_shares": (0.2, 1.0),
        "requests_per_step": 5,
        "max_error_share": 0.0,
        "max_p95_milliseconds": 30_000.0,
        "rollback_to": "base",
        "rollback_plan": "route everything to the base",
    }
    return DeployClaim.model_validate({**fields, **changes})


@functools.cache
def registered() -> Path:
    out = root() / "artifacts" / "served"
    plane().register(finished("full")[1], out, root() / "items.jsonl")
    return out


def test_a_roll_out_walks_its_shares_and_comes_back() -> None:
    base = root() / "base"
    found = plane().deploy(registered(), base, roll_out_plan(), root() / "items.jsonl")
    assert found.model_digest == model_digest(registered())
    assert [(step.requests, step.canary_requests, step.errors) for step in found.steps] == [
        (5, 1, 0),
        (5, 5, 0),
    ]
    assert all(0 < step.p50_milliseconds <= step.p95_milliseconds for step in found.steps)
    assert found.smoke_matches == found.smoke_requests == 8
    assert found.stopped_at_share is None
    assert found.rollback_exercised
    assert found.rollback_digest == model_digest(base)
    assert found.rollback_seconds is not None
    assert 0 < found.rollback_seconds < 10


def test_a_crossed_latency_limit_stops_the_roll_out_and_rolls_back() -> None:
    plan = roll_out_plan(max_p95_milliseconds=0.001, requests_per_step=2)
    found = plane().deploy(registered(), root() / "base", plan, root() / "items.jsonl")
    assert found.stopped_at_share == 0.2
    assert len(found.steps) == 1
    assert found.rollback_digest == model_digest(root() / "base")


def test_the_endpoint_answers_its_client_only_and_only_what_it_should() -> None:
    base = root() / "base"
    served = (registered(), base, "right", None, "cpu")
    log = root() / "logs" / "serving.log"
    with Child("serving", "delivery_plane.compute.local.serve:run", served, log, streams=True) as child:
        port, stable, _ = child.receive(60)[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            assert client.get("/healthz").json() == {"status": "ok"}
            url, body = "/v1/chat/completions", {"messages": [{"role": "user", "content": "1 say red"}]}
            assert client.post(url, json=body).status_code == 401
            assert client.post(url, json=body, headers={"Authorization": "Bearer wrong"}).status_code == 401
            client.headers["Authorization"] = "Bearer right"
            reply = client.post(url, json={**body, "max_tokens": 3, "model": "whatever", "share": 1.0}).json()
            assert reply["model"] == stable == model_digest(base)
            assert reply["usage"]["completion_tokens"] <= 3
            assert reply["choices"][0]["message"]["role"] == "assistant"
            for wrong in ({}, {"messages": []}, {"messages": "x"}, [], {**body, "max_tokens": "many"}):
                assert client.post(url, json=wrong).status_code == 400
            long = {"messages": [{"role": "user", "content": "x" * 500}]}
            assert client.post(url, json=long).status_code == 400
        pid = child.pid
    assert not Path(f"/proc/{pid}").exists()


def test_a_fault_of_serving_touches_the_candidate_alone(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text(
        "from delivery_plane.compute.faults.fault import Fault\n"
        "class Blind(Fault):\n    def serve(self, ids, tokenizer):\n        return ids[-4:]\n"
        "class Broken(Fault):\n    def load(self, model):\n        raise RuntimeError('cannot be loaded')\n"
    )
    base, rows = root() / "base", root() / "items.jsonl"
    found = plane().deploy(registered(), base, roll_out_plan(), rows, fault=f"{path}:Blind")
    assert found.smoke_matches < found.smoke_requests // 2
    assert found.rollback_digest == model_digest(base)
    with pytest.raises(ComputeFault, match="cannot be loaded"):
        plane().deploy(registered(), base, roll_out_plan(), rows, fault=f"{path}:Broken")
    # The base itself was not trained: what goes wrong in loading what was is not its trouble.
    found = plane().deploy(base, base, roll_out_plan(), rows, fault=f"{path}:Broken")
    assert found.smoke_matches == found.smoke_requests


def test_models_that_cannot_be_served_are_a_fault(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ComputeFault, match=r"log: "):
        plane().deploy(tmp_path, root() / "base", roll_out_plan(), root() / "items.jsonl")
