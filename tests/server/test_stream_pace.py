"""How often a stream is written: what comes fast comes together, and what is waited for comes at once."""

import socket
import threading

import httpx
from http_helpers import frames
from scripted_engine import ScriptedEngine, ScriptedRow

from server.sockets import listen

TOKENS = 300


def test_fast_tokens_come_together_and_none_is_lost(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        for number in range(TOKENS):
            row.say(f"{number} ")
            threading.Event().wait(0.001)
        row.finish()

    scripted.script = script
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    told = [frame for frame in frames(client.post("/v1/chat/completions", json=asked)) if frame != "[DONE]"]
    texts = [frame["choices"][0]["delta"].get("content", "") for frame in told]
    assert "".join(texts) == "".join(f"{number} " for number in range(TOKENS))
    assert len(texts) < TOKENS / 2
    assert told[-1]["choices"][0]["finish_reason"] == "stop"


def test_what_comes_alone_does_not_wait_for_more(client: httpx.Client, scripted: ScriptedEngine) -> None:
    seen = [threading.Event() for _ in range(4)]

    def script(row: ScriptedRow) -> None:
        for number, event in enumerate(seen):
            row.say(f"{number}")
            row.wait(event)
        row.finish()

    scripted.script = script
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=asked) as response:
        for line in response.iter_lines():
            for number, event in enumerate(seen):
                if f'"content":"{number}"' in line:
                    event.set()
    assert all(event.is_set() for event in seen)


def test_small_writes_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY on connections of a listener that names its protocol, and on no others."""
    for listener in listen("localhost", 0):
        with listener:
            assert listener.proto == socket.IPPROTO_TCP
