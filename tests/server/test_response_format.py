"""Answers held to JSON over HTTP: what comes back parses and fits, streamed or not, thinking left alone."""

import json
from typing import Any

import httpx
import pytest
from http_helpers import ask, frames

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "fits": {"type": "boolean"},
    },
    "required": ["name", "age", "fits"],
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}


def answered(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = ask(client, "Give me a person as JSON.", **fields).json()["choices"][0]
    return choice


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_kept_by_a_model_that_was_never_taught_to(demo: httpx.Client, seed: int) -> None:
    choice = answered(demo, response_format=STRICT, seed=seed, temperature=1, max_tokens=200)
    assert choice["finish_reason"] == "stop"
    person = json.loads(choice["message"]["content"])
    assert [type(person[name]) for name in ("name", "age", "fits")] == [str, int, bool]


def test_thinking_is_free_and_the_answer_is_not(demo: httpx.Client) -> None:
    kwargs = {"enable_thinking": True}
    choice = answered(demo, response_format=STRICT, seed=3, max_tokens=300, chat_template_kwargs=kwargs)
    assert choice["message"]["reasoning_content"]
    assert set(json.loads(choice["message"]["content"])) == set(SCHEMA["properties"])


def test_a_stream_says_what_a_whole_answer_says(demo: httpx.Client) -> None:
    fields = {"response_format": STRICT, "seed": 7, "max_tokens": 200}
    whole = answered(demo, **fields)["message"]["content"]
    streamed = frames(ask(demo, "Give me a person as JSON.", stream=True, **fields))
    assert "".join(frame["choices"][0]["delta"].get("content") or "" for frame in streamed[:-1]) == whole


def test_json_object_is_any_object(demo: httpx.Client) -> None:
    choice = answered(demo, response_format={"type": "json_object"}, seed=1, temperature=0.5, max_tokens=120)
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    else:
        assert choice["message"]["content"].startswith("{")


def test_a_schema_bomb_is_refused_at_once(demo: httpx.Client) -> None:
    bomb: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        bomb = {"type": "object", "properties": {"a": bomb}}
    body = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": bomb}}
    response = demo.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}], "response_format": body}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema.schema"
