"""How the tests of this folder ask, and read what they get."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx

Connect = Callable[..., httpx.Client]
"""Starts a server with these limits over the scripted engine; the answer is a client on it."""


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
