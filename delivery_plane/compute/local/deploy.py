"""The roll-out as the platform drives it: smoke test, growing canary shares, rollback. Loads no torch."""

import secrets
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from delivery_plane.claims import DeployClaim
from delivery_plane.compute.local.children import Child, call_in_child, log_path
from delivery_plane.compute.plane import ModelRef
from delivery_plane.errors import ComputeFault
from delivery_plane.facts import CanaryStep, DeploymentObserved
from delivery_plane.rows import read_rows

START_SECONDS = 120.0
ANSWER_SECONDS = 60.0
SMOKE_REQUESTS = 8
ROLLBACK_REQUESTS = 5
"""Replies that must all come from the stable weights before the way back counts as taken."""

NEW_TOKENS = 32
"""Most tokens of a served answer."""


@dataclass(frozen=True)
class _Reply:
    milliseconds: float
    model: str | None
    answer: str | None
    """None: the request failed."""


class _Endpoint:
    """The served endpoint from the outside: a client of the socket, and the hand on the pipe."""

    def __init__(self, child: Child, client: httpx.Client) -> None:
        self._child = child
        self._client = client

    def route(self, share: float) -> None:
        """Send this share of requests to the candidate from now on."""
        self._child.send(share)
        if self._child.receive(ANSWER_SECONDS) != ("message", share):
            raise ComputeFault(f"{self._child.what}: the share was not taken up; log: {self._child.log}")

    def ask(self, prompt: str) -> _Reply:
        """One request; one that fails in any way is a reply without an answer."""
        started = time.perf_counter()
        model = answer = None
        try:
            reply = self._client.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": prompt}], "max_tokens": NEW_TOKENS},
            )
            if reply.status_code == 200:
                body = reply.json()
                model, answer = body["model"], body["choices"][0]["message"]["content"].strip()
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
            pass
        return _Reply((time.perf_counter() - started) * 1000, model, answer)


def roll_out(
    model: Path,
    stable: Path,
    plan: DeployClaim,
    items: Path,
    logs: Path,
    fault: str | None,
    device_name: str,
) -> DeploymentObserved:
    """Serve `model` beside `stable`, walk the plan's shares until a limit is crossed, and roll back.

    Latency and errors of a step are over all its requests, as its clients see them. Raises ComputeFault.
    """
    prompts = [row["prompt"] for row in read_rows(items)]
    smoke = prompts[:SMOKE_REQUESTS]
    expected = call_in_child(
        "answers without a server",
        "delivery_plane.compute.local.evaluate:answers",
        ModelRef(base_path=model),
        smoke,
        NEW_TOKENS,
        device_name,
        logs=logs,
    )
    token = secrets.token_urlsafe(24)
    with Child(
        "serving",
        "delivery_plane.compute.local.serve:run",
        (model, stable, token, fault, device_name),
        log_path(logs, "serving"),
        streams=True,
    ) as child:
        port, stable_digest, candidate_digest = child.receive(START_SECONDS)[1]
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=ANSWER_SECONDS,
            # A proxy in the environment would be asked for loopback too.
            trust_env=False,
        ) as client:
            endpoint = _Endpoint(child, client)
            endpoint.route(1.0)
            served = [endpoint.ask(prompt) for prompt in smoke]
            steps, stopped_at = _canary(endpoint, plan, prompts, candidate_digest)
            started = time.perf_counter()
            endpoint.route(0.0)
            back = [endpoint.ask(prompts[i % len(prompts)]) for i in range(ROLLBACK_REQUESTS)]
            rollback_seconds = time.perf_counter() - started
        child.send(None)
        child.receive(START_SECONDS)
    serving_now = {reply.model for reply in back}
    return DeploymentObserved(
        model_digest=candidate_digest,
        steps=steps,
        smoke_requests=len(smoke),
        smoke_matches=sum(
            reply.answer == answer and reply.model == candidate_digest
            for reply, answer in zip(served, expected, strict=True)
        ),
        stopped_at_share=stopped_at,
        rollback_exercised=True,
        rollback_digest=_one_digest(serving_now, stable_digest),
        rollback_seconds=rollback_seconds,
    )


def _canary(
    endpoint: _Endpoint, plan: DeployClaim, prompts: list[str], candidate_digest: str
) -> tuple[tuple[CanaryStep, ...], float | None]:
    """The steps taken, and the share at which a limit was crossed."""
    steps: list[CanaryStep] = []
    asked = 0
    for share in plan.canary_shares:
        endpoint.route(share)
        replies = []
        for _ in range(plan.requests_per_step):
            replies.append(endpoint.ask(prompts[asked % len(prompts)]))
            asked += 1
        times = sorted(reply.milliseconds for reply in replies)
        step = CanaryStep(
            canary_share=share,
            requests=len(replies),
            canary_requests=sum(reply.model == candidate_digest for reply in replies),
            errors=sum(reply.answer is None for reply in replies),
            p50_milliseconds=statistics.median(times),
            # Nearest rank: an observed time, also with few requests.
            p95_milliseconds=times[-(-95 * len(times) // 100) - 1],
        )
        steps.append(step)
        if (
            step.errors > plan.max_error_share * step.requests
            or step.p95_milliseconds > plan.max_p95_milliseconds
        ):
            return tuple(steps), share
    return tuple(steps), None


def _one_digest(serving: set[str | None], stable: str) -> str | None:
    """Whose weights answered after the rollback: the stable ones only if all replies say so."""
    others = sorted(digest for digest in serving if digest is not None and digest != stable)
    if others:
        return others[0]
    return stable if serving == {stable} else None
