"""The OpenAPI document over a real server: every route is in it, and what the routes answer is what it says."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_helpers import ask
from pydantic import TypeAdapter
from tiny_encoders import save_bert

from engine.engine import ThreadEngine
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from server.api import admin, anthropic, ollama, openai, responses, streams
from server.api.errors import AnthropicError, Error
from server.facts import AnswerFacts, RequestFacts
from server.run import ServerThread

HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
ANTHROPIC_TOOL = {"name": "add", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def client(demo_engine: ThreadEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("models")
    config = RetrievalConfig(str(save_bert(folder / "tiny-bert")), str(save_bert(folder / "tiny-cross", labels=1)))
    server = ServerThread(demo_engine, port=0, retrieval=Retrieval(demo_engine, config))
    server.start()
    assert server.address is not None
    with httpx.Client(base_url=server.address, timeout=60, trust_env=False) as client:
        yield client
    assert server.stop(1.0)


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    response = client.get("/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def described(document: dict[str, Any], method: str, path: str, status: int) -> dict[str, Any]:
    """What the document says of the answer to a request for this path, which may be any that a template means."""
    for template, operations in document["paths"].items():
        if re.fullmatch(re.sub(r"\\{\w+\\}", ".+", re.escape(template)), path.partition("?")[0]):
            found = operations.get(method.lower(), {}).get("responses", {}).get(str(status))
            if found is not None:
                return dict(found)
    raise AssertionError(f"{method} {path} with {status} is not in the document")


def test_every_route_is_described_and_nothing_refers_to_what_is_not_there(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {
        "/", "/health", "/ready", "/metrics", "/v1/models", "/v1/models/{name}", "/api/tags", "/v1/chat/completions",
        "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank",
        "/v1/mtplx/server", "/v1/mtplx/ask", "/v1/mtplx/events", "/v1/mtplx/settings", "/v1/mtplx/cache",
        "/v1/mtplx/requests", "/v1/mtplx/requests/{request_id}", "/v1/mtplx/requests/{request_id}/answer",
        "/v1/mtplx/requests/{request_id}/cancel",
    }  # fmt: skip
    names = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names.append(operation["operationId"])
            assert operation["summary"], (method, path)
            good = [operation["responses"][status] for status in ("200", "202") if status in operation["responses"]]
            assert [bool(response["content"]) for response in good] == [True], (method, path)
            assert ("requestBody" in operation) == (method in ("post", "patch") and not path.endswith("/cancel"))
    assert len(names) == len(set(names))
    schemas = document["components"]["schemas"]
    for reference in set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', str(document).replace("'", '"'))):
        assert reference in schemas
    assert "$defs" not in str(document)


def test_every_answer_has_the_form_that_the_document_gives_it(client: httpx.Client, document: dict[str, Any]) -> None:
    made = ask(client, max_tokens=4).json()["id"]
    client.post("/v1/mtplx/ask", json={"id": "known", **HI})
    chat, text, messages = "/v1/chat/completions", "/v1/completions", "/v1/messages"
    cases: list[tuple[str, str, Any, int, Any]] = [
        ("GET", "/", None, 200, admin.Root),
        ("GET", "/health", None, 200, admin.Health),
        ("GET", "/ready", None, 200, admin.Readiness),
        ("GET", "/v1/models", None, 200, openai.Models),
        ("GET", "/v1/models/demo-13m", None, 200, openai.Model),
        ("GET", "/api/tags", None, 200, ollama.Tags),
        ("GET", "/v1/models/nobody", None, 404, Error),
        ("POST", chat, {**HI, "n": 2, "logprobs": True, "top_logprobs": 2}, 200, openai.ChatCompletion),
        ("POST", chat, {**HI, "tools": [TOOL], "tool_choice": "required"}, 200, openai.ChatCompletion),
        ("POST", chat, {}, 400, Error),
        ("POST", chat, {**HI, "model": "nobody"}, 404, Error),
        ("POST", text, {"prompt": ["a", "b"], "echo": True, "logprobs": 2}, 200, openai.TextCompletion),
        ("POST", text, {"prompt": "a", "max_tokens": 0}, 400, Error),
        ("POST", messages, {**HI, "thinking": {"type": "adaptive"}, "max_tokens": 80}, 200, anthropic.Message),
        ("POST", messages, {**HI, "tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "any"}}, 200, anthropic.Message),
        ("POST", messages, {}, 400, AnthropicError),
        ("POST", messages + "/count_tokens", HI, 200, anthropic.TokenCount),
        ("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 40}, 200, responses.Response),
        ("POST", "/v1/responses", {"input": "hi", "tools": [{"type": "custom", "name": "add"}],
                                   "tool_choice": "required", "max_output_tokens": 40}, 200, responses.Response),
        ("POST", "/v1/responses", {"input": 1}, 400, Error),
        ("POST", "/v1/embeddings", {"input": ["fox", "owl"]}, 200, openai.Embeddings),
        ("POST", "/v1/embeddings", {"input": "fox", "encoding_format": "base64"}, 200, openai.Embeddings),
        ("POST", "/v1/rerank", {"query": "a", "documents": ["fox"], "return_documents": True}, 200, openai.Ranking),
        ("GET", "/v1/mtplx/server", None, 200, admin.Server),
        ("POST", "/v1/mtplx/ask", {"id": "new", **HI}, 202, admin.Started),
        ("POST", "/v1/mtplx/ask", {"id": "known", **HI}, 409, Error),
        ("GET", "/v1/mtplx/requests?limit=3", None, 200, admin.Requests),
        ("GET", "/v1/mtplx/requests?limit=x", None, 400, Error),
        ("GET", f"/v1/mtplx/requests/{made}", None, 200, admin.RequestDetail),
        ("GET", "/v1/mtplx/requests/known/answer", None, 200, AnswerFacts),
        ("GET", "/v1/mtplx/requests/nobody/answer", None, 404, Error),
        ("POST", f"/v1/mtplx/requests/{made}/cancel", None, 200, RequestFacts),
        ("GET", "/v1/mtplx/settings", None, 200, admin.AllSettings),
        ("PATCH", "/v1/mtplx/settings", {"keep_alive_s": 5}, 200, admin.AllSettings),
        ("POST", "/v1/mtplx/settings", {"keep_alive_s": 0}, 400, Error),
        ("GET", "/v1/mtplx/cache", None, 200, admin.Cache),
        ("DELETE", "/v1/mtplx/cache", None, 202, admin.Cache),
    ]  # fmt: skip
    for method, path, body, status, form in cases:
        response = client.request(method, path, json=body)
        assert response.status_code == status, (method, path, response.text)
        told = described(document, method, path, status)["content"]["application/json"]["schema"]
        assert f"/{form.__name__}'" in str(told), (method, path, told)
        TypeAdapter(form).validate_json(response.content)


def test_a_method_that_a_path_does_not_take_is_answered_with_those_that_it_does(
    client: httpx.Client, document: dict[str, Any]
) -> None:
    for path, operations in document["paths"].items():
        response = client.request("PUT", re.sub(r"{\w+}", "x", path))
        assert response.status_code == 405
        assert set(response.headers["allow"].lower().split(", ")) - {"head"} == set(operations), path


def test_errors_are_in_anthropics_envelope_for_its_clients(client: httpx.Client) -> None:
    response = client.get("/v1/models/nobody", headers={"anthropic-version": "2023-06-01"})
    AnthropicError.model_validate_json(response.content)


def test_every_event_of_a_stream_has_the_form_that_the_document_gives_it(client: httpx.Client) -> None:
    chat = {**HI, "n": 2, "logprobs": True, "stream_options": {"include_usage": True}}
    cases: list[tuple[str, dict[str, Any], Any]] = [
        ("/v1/chat/completions", chat, streams.Chat),
        ("/v1/completions", {"prompt": "a", "max_tokens": 4, "logprobs": 1, "echo": True}, streams.Text),
        ("/v1/messages", HI, streams.Messages),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 4}, streams.ResponseEvent),
    ]
    for path, body, form in cases:
        response = client.post(path, json={**body, "stream": True})
        lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
        assert len(lines) > 2
        for line in lines:
            if line != "[DONE]":
                TypeAdapter(form).validate_json(line)
