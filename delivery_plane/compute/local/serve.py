"""The endpoint of a roll-out: two models behind `/v1/chat/completions`, a share of requests to the candidate.

It runs in a child process. Who decides the share is at the other end of the pipe, never of the socket.
"""

import hmac
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from delivery_plane.compute.faults import planted
from delivery_plane.compute.faults.fault import Fault
from delivery_plane.compute.local.children import Channel
from delivery_plane.compute.local.digests import model_digest
from delivery_plane.compute.local.models import context_tokens, greedy, load_model, load_tokenizer, use_device
from delivery_plane.compute.local.tokens import serving_prompts
from delivery_plane.compute.plane import ModelRef

MAX_NEW_TOKENS = 256
MAX_BODY_BYTES = 1 << 20


@dataclass
class _Router:
    """Sends every so many-th request to the candidate: by counting, so that a share is met exactly."""

    share: float = 0.0
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, share: float) -> None:
        with self.lock:
            self.share, self.seen = share, 0

    def next_is_canary(self) -> bool:
        with self.lock:
            before, self.seen = self.seen, self.seen + 1
            # A sliver more, so that 0.1 times 10 counts as 1.
            return int(self.seen * self.share + 1e-9) > int(before * self.share + 1e-9)


@dataclass
class _Endpoint:
    stable: tuple[str, Any]
    candidate: tuple[str, Any]
    tokenizer: Any
    token: str
    fault: Fault
    """What is wrong with the candidate's side, if anything."""
    router: _Router = field(default_factory=_Router)
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    async def health(self, _request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def complete(self, request: Request) -> JSONResponse:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return _refusal(401, "a bearer token is needed")
        if int(request.headers.get("content-length", MAX_BODY_BYTES + 1)) > MAX_BODY_BYTES:
            return _refusal(413, f"at most {MAX_BODY_BYTES} bytes, with a content length")
        try:
            body = await request.json()
            prompt = _last_user_message(body)
            max_tokens = min(MAX_NEW_TOKENS, max(1, int(body.get("max_tokens", MAX_NEW_TOKENS))))
        except (ValueError, KeyError, TypeError, AttributeError):
            return _refusal(400, "give messages with one user message, and max_tokens as a number")
        return await run_in_threadpool(self._answer, prompt, max_tokens)

    def _answer(self, prompt: str, max_tokens: int) -> JSONResponse:
        ids = serving_prompts(self.tokenizer, [prompt])[0]
        is_canary = self.router.next_is_canary()
        digest, model = self.candidate if is_canary else self.stable
        if is_canary:
            ids = self.fault.serve(ids, self.tokenizer)
        room = context_tokens(model) - len(ids)
        if room < 1:
            return _refusal(400, "the message is longer than the model's context")
        # One at a time: with one thread two generations at once take as long, and both answer late.
        with self.one_at_a_time:
            tokens = torch.tensor([ids], device=model.device)
            new = greedy(model, self.tokenizer, tokens, torch.ones_like(tokens), min(max_tokens, room))[0]
        ended = bool((new == self.tokenizer.eos_token_id).any())
        return JSONResponse(
            {
                "object": "chat.completion",
                "created": int(time.time()),
                "model": digest,
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "role": "assistant",
                            "content": self.tokenizer.decode(new, skip_special_tokens=True),
                        },
                        "finish_reason": "stop" if ended else "length",
                    }
                ],
                "usage": {
                    "prompt_tokens": len(ids),
                    "completion_tokens": len(new),
                    "total_tokens": len(ids) + len(new),
                },
            }
        )


def run(
    channel: Channel, candidate: Path, stable: Path, token: str, fault_name: str | None, device_name: str
) -> None:
    """Serve until told to end. Sends (port, stable digest, candidate digest), then obeys shares; None ends it."""
    device = use_device(device_name)
    fault = planted(fault_name, 0)
    ours, theirs = model_digest(stable), model_digest(candidate)
    loaded = load_model(ModelRef(base_path=candidate), device)
    endpoint = _Endpoint(
        stable=(ours, load_model(ModelRef(base_path=stable), device)),
        # The base itself may be the candidate; it was not trained.
        candidate=(theirs, loaded if theirs == ours else fault.load(loaded)),
        tokenizer=load_tokenizer(stable),
        token=token,
        fault=fault,
    )
    routes = [
        Route("/healthz", endpoint.health),
        Route("/v1/chat/completions", endpoint.complete, methods=["POST"]),
    ]
    server = uvicorn.Server(
        uvicorn.Config(
            Starlette(routes=routes), log_level="warning", lifespan="off", timeout_graceful_shutdown=2
        )
    )
    # Bound here and to loopback only: the system picks a free port, and nobody can take it in between.
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        threading.Thread(target=_obey, args=(channel, endpoint.router, server), daemon=True).start()
        channel.send((listener.getsockname()[1], endpoint.stable[0], endpoint.candidate[0]))
        server.run(sockets=[listener])


def _obey(channel: Channel, router: _Router, server: uvicorn.Server) -> None:
    while True:
        share = channel.receive()
        if share is None:
            server.should_exit = True
            return
        router.set(share)
        channel.send(share)


def _last_user_message(body: Any) -> str:
    users = [message["content"] for message in body["messages"] if message["role"] == "user"]
    if len(users) != 1 or not isinstance(users[0], str):
        raise ValueError("one user message is answered")
    return users[0]


def _refusal(status: int, why: str) -> JSONResponse:
    return JSONResponse({"error": {"message": why, "type": "invalid_request_error"}}, status_code=status)
