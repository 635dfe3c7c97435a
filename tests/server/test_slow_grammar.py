"""A grammar that takes as long as it may to be compiled keeps nobody else waiting."""

import threading

import httpx
import pytest
from http_helpers import ask

SLOW = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer", "multipleOf": 999_983}}}
FRAMES = 5


@pytest.mark.slow
def test_other_streams_and_requests_go_on_while_a_grammar_is_compiled(demo: httpx.Client) -> None:
    refused: list[httpx.Response] = []
    slow = threading.Thread(target=lambda: refused.append(ask(demo, response_format=SLOW)))
    body = {"messages": [{"role": "user", "content": "Tell me a long story."}], "stream": True, "ignore_eos": True}
    with demo.stream("POST", "/v1/chat/completions", json={**body, "max_tokens": 1500}) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: "))
        next(lines)
        slow.start()
        for _ in range(FRAMES):
            next(lines)
        assert ask(demo, max_tokens=2).status_code == 200
        assert slow.is_alive(), "the grammar was compiled before anything else was done"
    slow.join(60)
    assert refused[0].status_code == 400
    assert refused[0].json()["error"]["param"] == "response_format"
