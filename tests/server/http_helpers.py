"""How the tests of this folder ask, and read what they get."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

from engine.handle import EngineHandle
from server.admin import server_facts
from server.backend import Backend
from server.generation import Generations
from server.limits import Limits
from server.settings import LiveSettings, Settings
from server.telemetry import Telemetry

KEY = "a-key-of-sixteen-letters"

Connect = Callable[..., httpx.Client]
"""Starts a server with these limits and settings over the scripted engine; the answer is a client on it."""


def backend_over(engine: EngineHandle, **settings: Any) -> Backend:
    """What the endpoints work with, without a server around it."""
    limits, live, telemetry = Limits(), LiveSettings(Settings(**settings)), Telemetry(engine)
    generations = Generations(engine, limits, live, telemetry)
    return Backend(engine, generations, limits, live, telemetry, server_facts("http://127.0.0.1:1", keyed=False))


def ask(client: httpx.Client, content: str = "hi", **fields: Any) -> httpx.Response:
    """One chat completion with a single user message."""
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], **fields})


def frames(response: httpx.Response) -> list[Any]:
    """The frames of an SSE body: JSON values, `[DONE]` as it stands, comments left out."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = [frame.removeprefix("data: ") for frame in response.text.split("\n\n") if frame.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for a condition that another thread will bring about."""
    over = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < over, "it did not come about"
        threading.Event().wait(0.005)
