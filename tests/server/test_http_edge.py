"""Odd requests over a real socket to the real engine: each gets its status, and the engine lives on."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import ask
from tiny_encoders import save_bert

from engine.engine import ThreadEngine
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from server.run import ServerThread

OPENAI_ERROR = {"message", "type", "param", "code"}
CASES = json.loads((Path(__file__).parent / "cases" / "http_edge.json").read_text())


@pytest.fixture(scope="module")
def edge_url(demo_engine: ThreadEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with an embedding model beside the chat model."""
    vectors = RetrievalConfig(embedding=str(save_bert(tmp_path_factory.mktemp("models") / "tiny-bert")))
    server = ServerThread(demo_engine, port=0, retrieval=Retrieval(demo_engine, vectors))
    server.start()
    assert server.address is not None
    yield server.address
    assert server.stop(1.0)


@pytest.fixture
def edge(edge_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=edge_url, timeout=60, trust_env=False, verify=False) as client:
        yield client


def send(client: httpx.Client, case: dict[str, Any]) -> httpx.Response:
    """MODEL is the name of the model that the path is for."""
    model = "tiny-bert" if case["path"] == "/v1/embeddings" else "demo-13m"
    if "json" in case:
        content = json.dumps(case["json"]).encode()
    elif "pad" in case:
        content = json.dumps({"messages": [{"role": "user", "content": "hi"}], "pad": "x" * case["pad"]}).encode()
    elif "raw_latin1" in case:
        content = case["raw_latin1"].encode("latin-1")
    else:
        content = case.get("raw", "").encode()
    headers = {"Content-Type": "application/json", **case.get("headers", {})}
    return client.request(
        case.get("method", "POST"),
        case["path"].replace("MODEL", model),
        content=content.replace(b"MODEL", model.encode()),
        headers=headers,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_odd_request_gets_its_status_and_the_engine_lives_on(edge: httpx.Client, case: dict[str, Any]) -> None:
    response = send(edge, case)
    assert response.status_code == case["status"], response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == ({"type", "message"} if "/messages" in case["path"] else OPENAI_ERROR)
        assert error["message"]
        assert "detail" not in response.json()
    assert edge.get("/health").json()["status"] == "ok"


def choices(body: Any) -> list[Any]:
    return [choice["index"] for choice in body["choices"]]


HELD: dict[str, Callable[[Any], bool]] = {
    "unknown_model": lambda body: body["error"]["code"] == "model_not_found",
    "host_evil": lambda body: body["error"]["type"] == "permission_error",
    "n_2": lambda body: choices(body) == [0, 1],
    "compl_prompt_list": lambda body: choices(body) == [0, 1],
    "max_tokens_float": lambda body: body["usage"]["completion_tokens"] <= 4,
    "dup_keys": lambda body: body["usage"]["completion_tokens"] <= 4,
    "logprobs_true": lambda body: all(
        set(token) == {"token", "logprob", "bytes", "top_logprobs"} and len(token["top_logprobs"]) == 3
        for token in body["choices"][0]["logprobs"]["content"]
    ),
    "compl_logprobs_int": lambda body: all(
        len(top) in (2, 3)
        for top in body["choices"][0]["logprobs"]["top_logprobs"]  # the token itself may be a third
    ),
    "resp_json_schema": lambda body: bool(
        re.fullmatch(r'\{\s*"n"\s*:\s*-?\d+\s*\}?', body["choices"][0]["message"]["content"])
    ),
    "tool_choice_required": lambda body: body["choices"][0]["finish_reason"] == "tool_calls",
    "special_token_in_user": lambda body: body["usage"]["prompt_tokens"] > 20,
    "messages_unknown_block": lambda body: body["usage"]["input_tokens"] > 5,
    "embeddings": lambda body: [entry["index"] for entry in body["data"]] == [0],
    "ollama_tags": lambda body: [model["name"] for model in body["models"]] == ["demo-13m"],
}
"""What of the answer shows that more than its status is right."""


@pytest.mark.parametrize("name", HELD)
def test_answer_is_the_one_that_was_asked_for(edge: httpx.Client, name: str) -> None:
    (case,) = (case for case in CASES if case["case"] == name)
    if name in ("resp_json_schema", "tool_choice_required"):  # before there is any of either the model thinks
        case = {**case, "json": {**case["json"], "max_tokens": 100}}
    assert HELD[name](send(edge, case).json())


def test_engine_still_answers_after_all_of_them(demo: httpx.Client) -> None:
    assert "132" in ask(demo, "What is 47 + 85?", temperature=0).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"temperature": -1}, "temperature"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
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
    response = ask(demo, stream_options={"chunk_usage": True}, **fields)
    assert response.status_code == 200
    assert response.headers["x-mtplx-ignored-fields"] == (
        "?, service_tier, stream_options.chunk_usage, x??set-cookie??a?b"
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
    assert set(response.json()["error"]) == OPENAI_ERROR


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
