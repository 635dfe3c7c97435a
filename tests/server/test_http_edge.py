"""Odd requests over a real socket to the real engine: each gets its status, and the engine lives on."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import ask

CASES = json.loads((Path(__file__).parent / "cases" / "http_edge.json").read_text())


def send(client: httpx.Client, case: dict[str, Any]) -> httpx.Response:
    if "json" in case:
        content = json.dumps(case["json"]).encode()
    elif "raw_latin1" in case:
        content = case["raw_latin1"].encode("latin-1")
    else:
        content = case.get("raw", "").encode()
    headers = {"Content-Type": "application/json", **case.get("headers", {})}
    path = case["path"].replace("MODEL", "demo-13m")
    return client.request(
        case.get("method", "POST"), path, content=content.replace(b"MODEL", b"demo-13m"), headers=headers
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_odd_request_gets_its_status_and_the_engine_lives_on(demo: httpx.Client, case: dict[str, Any]) -> None:
    response = send(demo, case)
    assert response.status_code == case["status"], response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "detail" not in response.json()
    assert demo.get("/health").json()["status"] == "ok"


def test_engine_still_answers_after_all_of_them(demo: httpx.Client) -> None:
    assert "132" in ask(demo, "What is 47 + 85?", temperature=0).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"logit_bias": {"99999999": 10}}, "logit_bias.99999999"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]},
         "messages[0].content[1].type"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         "messages[1].tool_calls[0]"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "reasoning": 5}]},
         "messages[1].reasoning"),
        ({"messages": None}, "messages"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "p"}}},
         "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {"type": "wizard"}}}},
         "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"chat_template": "{{ x }}"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"preserve_thinking": True}}, "chat_template_kwargs.preserve_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)  # fmt: skip
def test_refusal_names_the_field_by_its_json_path(demo: httpx.Client, fields: dict[str, Any], path: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    response = demo.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == path
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_null_fields_give_what_absent_ones_give(demo: httpx.Client) -> None:
    nulls = {"max_tokens": 8, "temperature": None, "stop": None, "stream": None, "tools": None, "n": None, "user": None}
    bare = ask(demo, "What is 3 + 4?", seed=5, max_tokens=8).json()["choices"]
    assert ask(demo, "What is 3 + 4?", seed=5, **nulls).json()["choices"] == bare


def test_context_overflow_tells_both_numbers(demo: httpx.Client) -> None:
    response = ask(demo, "What is 47 + 85? " * 1000)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    match = re.fullmatch(
        r"This model's maximum context length is 2048 tokens. However, your messages resulted in (\d+) tokens.",
        error["message"],
    )
    assert match is not None, error["message"]
    assert int(match[1]) > 4000


def test_text_beyond_reason_is_refused_without_tokenising_it(demo: httpx.Client) -> None:
    response = ask(demo, "x" * 5_000_000)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "2048 tokens" in response.json()["error"]["message"]


def test_control_tokens_in_a_message_are_text(demo: httpx.Client) -> None:
    plain = ask(demo, "a", max_tokens=1).json()["usage"]["prompt_tokens"]
    hostile = ask(demo, "<|im_end|>", max_tokens=1).json()["usage"]["prompt_tokens"]
    assert hostile > plain + 1, "a real control token would have been one token"


def test_ignored_fields_are_listed_in_a_header_that_they_can_not_forge(demo: httpx.Client) -> None:
    fields = {"service_tier": "auto", "x\r\nset-cookie: a=b": 1, "é": 2, "max_tokens": 1}
    response = ask(demo, stream_options={"continuous_usage_stats": True}, **fields)
    assert response.status_code == 200
    assert response.headers["x-mtplx-ignored-fields"] == (
        "?, service_tier, stream_options.continuous_usage_stats, x??set-cookie??a?b"
    )
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/v1/chat/completions", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/docs", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v1/models/other/model", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
    ],
)
def test_paths_that_are_not_here_get_the_envelope(demo: httpx.Client, method: str, path: str, status: int) -> None:
    response = demo.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/models/demo-13m", "/v1/models/demo%2D13m/", "//v1/models/demo-13m"])
def test_one_model_by_its_id(demo: httpx.Client, path: str) -> None:
    body = demo.get(str(demo.base_url).rstrip("/") + path).json()
    assert (body["id"], body["object"], body["context_window"]) == ("demo-13m", "model", 2048)


def test_model_list_serves_both_client_families(demo: httpx.Client) -> None:
    body = demo.get("/v1/models").json()
    assert (body["object"], body["has_more"], body["first_id"], len(body["data"])) == ("list", False, "demo-13m", 1)
    assert isinstance(body["data"][0]["created"], int)
    assert body["data"][0]["created_at"].endswith("Z")


def test_head_of_the_root_answers(demo: httpx.Client) -> None:
    assert demo.head("/").status_code == 200
