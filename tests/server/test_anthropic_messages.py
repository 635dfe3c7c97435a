"""Whole messages and counts over the socket: what reported faults of other servers expect of this one."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic_events import events, folded
from http_helpers import Connect, until
from scripted_engine import CONTEXT, ScriptedEngine, ScriptedRow

from engine.chat import load_chat_format
from engine.errors import QueueFullError
from engine.events import Span
from engine.handle import EventSink
from engine.models.locate import ASSETS
from engine.request import Request
from server.run import ServerThread

USER = [{"role": "user", "content": "hi"}]
LATE_SYSTEM: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {"role": "system", "content": "extra context"},
    {"role": "assistant", "content": [{"type": "text", "text": "ok"}]},
    {"role": "user", "content": "go on"},
]


def post(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/messages", json={"model": "demo-13m", "max_tokens": 8, "messages": USER, **fields})


def test_message_has_its_shape_and_the_requests_id(client: httpx.Client, scripted: ScriptedEngine) -> None:
    response = post(client)
    assert response.status_code == 200
    assert response.headers["request-id"].startswith("req_")
    message = response.json()
    prompt = len(scripted.rows[0].request.prompt)
    assert message == {
        "id": scripted.rows[0].request.id,
        "type": "message",
        "role": "assistant",
        "model": "demo-13m",
        "content": [{"type": "text", "text": "Hello there."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_a_tools_input_is_the_models_own_text(client: httpx.Client, scripted: ScriptedEngine) -> None:
    written = '{"n": 1e400, "s": 2.50, "b": 12345678901234567890, "a": "\\u00e9"}'

    def script(row: ScriptedRow) -> None:
        row.spans([Span("tool", "", opens=True), Span("tool", f"<function=f>\n<parameter=o>\n{written}\n</parameter>")])
        row.spans([Span("tool", "\n</function>"), Span("text", "", opens=True)])
        row.finish()

    scripted.script = script
    schema = {"type": "object", "properties": {"o": {"type": "object"}}}
    response = post(client, tools=[{"name": "f", "input_schema": schema}])
    assert f'"input":{{"o":{written}}}' in response.text
    assert response.json()["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_system_turn_in_mid_conversation_stays_there(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool
) -> None:
    system = [{"type": "text", "text": "base"}]
    assert post(client, system=system, messages=LATE_SYSTEM, stream=stream).status_code == 200
    assert post(client, system=system, messages=[LATE_SYSTEM[0], *LATE_SYSTEM[2:]]).status_code == 200
    told, untold = (row.request.prompt for row in scripted.rows)
    said = scripted.chat.decode(told)
    assert said.index("hello") < said.index("<|im_start|>system\nextra context<|im_end|>") < said.index("go on")
    head = scripted.chat.encode("<|im_start|>system\nbase<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n")
    assert told[: len(head)] == untold[: len(head)] == head


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[tuple[httpx.Client, ScriptedEngine]]:
    """A server whose model's template refuses a system turn that is not the first."""
    shutil.copytree(ASSETS / "demo-13m", tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    template = tmp_path / "model" / "chat_template.jinja"
    refusing = "{%- for m in messages -%}{%- if m['role'] == 'system' and not loop.first -%}{{- raise_exception("
    refusing += "'System message must be at the beginning.') -}}{%- endif -%}{%- endfor -%}"
    template.write_text(refusing + template.read_text())
    engine = ScriptedEngine(load_chat_format(tmp_path / "model"))
    server = ServerThread(engine, port=0)
    server.start()
    assert server.address is not None
    with httpx.Client(base_url=server.address, timeout=10, trust_env=False) as client:
        yield client, engine
    server.stop(0.5)


def test_system_turn_in_mid_conversation_is_no_error_with_a_template_that_refuses_it(
    strict: tuple[httpx.Client, ScriptedEngine],
) -> None:
    client, engine = strict
    response = post(client, system="base", messages=LATE_SYSTEM)
    assert response.status_code == 200, response.text
    said = engine.chat.decode(engine.rows[0].request.prompt)
    assert said.index("hello") < said.index("extra context") < said.index("ok<") < said.index("go on")
    count = client.post("/v1/messages/count_tokens", json={"system": "base", "messages": LATE_SYSTEM})
    assert count.json() == {"input_tokens": len(engine.rows[0].request.prompt)}


def billed(cch: str, content: str) -> dict[str, Any]:
    header = f"x-anthropic-billing-header: cc_version=2.1.1.{cch}; cc_entrypoint=cli; cch={cch};"
    system = [{"type": "text", "text": header}, {"type": "text", "text": "ctx " * 600}]
    return {"system": system, "messages": [{"role": "user", "content": content}], "max_tokens": 4}


def test_billing_header_does_not_part_two_conversations(client: httpx.Client, scripted: ScriptedEngine) -> None:
    quote = "x-anthropic-billing-header: what is it?"
    for number, content in enumerate(("hi", "other", quote)):
        assert post(client, **billed(f"1111{number}", content)).status_code == 200
    said = [scripted.chat.decode(row.request.prompt) for row in scripted.rows]
    assert said[1] == said[0].replace("user\nhi<", "user\nother<")
    assert said[2] == said[0].replace("user\nhi<", f"user\n{quote}<")
    assert "cc_version" not in "".join(said)


def test_second_conversation_takes_the_system_prompt_from_the_cache(demo: httpx.Client) -> None:
    block = demo.post("/v1/messages/count_tokens", json=billed("1", "")).json()["input_tokens"]
    first = post(demo, **billed("aaa", "hi")).json()["usage"]
    second = post(demo, **billed("bbb", "other")).json()["usage"]
    assert second["cache_read_input_tokens"] >= 0.9 * block
    assert second["input_tokens"] + second["cache_read_input_tokens"] == pytest.approx(block, abs=5)
    assert first["output_tokens"] <= 4
    streamed = events(post(demo, **billed("ccc", "more"), stream=True))
    assert streamed[0]["message"]["usage"]["cache_read_input_tokens"] >= 0.9 * block
    assert folded(streamed)["usage"]["cache_read_input_tokens"] >= 0.9 * block


def test_seeded_text_is_that_of_chat_completions_streamed_or_not(demo: httpx.Client) -> None:
    story = [{"role": "user", "content": "Tell me a short story about a fox."}]
    fields: dict[str, Any] = {"messages": story, "max_tokens": 60, "seed": 5, "temperature": 1}
    thinking = {"type": "adaptive"}
    whole = post(demo, **fields, thinking=thinking).json()
    streamed = folded(events(post(demo, **fields, thinking=thinking, stream=True)))
    chat = demo.post("/v1/chat/completions", json=fields).json()["choices"][0]["message"]
    assert streamed["content"] == whole["content"]
    said = {block["type"]: block.get("text", block.get("thinking")) for block in whole["content"]}
    assert said.get("text", "") == chat["content"]
    assert said.get("thinking", "") == chat.get("reasoning_content", "")


def test_count_is_of_the_whole_prompt_whether_it_fits_or_not(client: httpx.Client, scripted: ScriptedEngine) -> None:
    for words in (1, 5 * CONTEXT):
        messages = [{"role": "user", "content": "word " * words}]
        response = client.post(
            "/v1/messages/count_tokens", json={"messages": messages, "thinking": {"type": "adaptive"}}
        )
        assert response.json() == {"input_tokens": len(scripted.chat.render(messages))}
    assert not scripted.rows


def test_count_takes_conversations_that_end_with_an_answer(client: httpx.Client) -> None:
    messages = [*USER, {"role": "assistant", "content": "hello"}]
    assert client.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"] > 4


@pytest.mark.parametrize("stream", [False, True])
def test_busy_server_says_overloaded_and_when_to_come_again(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(request: Request, on_event: EventSink) -> None:
        raise QueueFullError(8, 128)

    monkeypatch.setattr(scripted, "submit", full)
    response = post(client, stream=stream)
    assert response.status_code == 529
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "overloaded_error"
    assert response.json()["request_id"] == response.headers["request-id"]


def test_loading_server_says_overloaded(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.load()
    response = post(client)
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")
    assert response.headers["retry-after"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"max_tokens": NaN}'])
def test_broken_bodies_get_anthropics_envelope(client: httpx.Client, content: bytes) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["type"]) == (400, "error")
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_other_paths_and_methods_are_refused_in_the_envelope(client: httpx.Client) -> None:
    response = client.get("/v1/messages")
    assert (response.status_code, response.json()["type"]) == (405, "error")
    response = client.post("/v1/messages/batches", json={})
    assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")


def test_model_object_has_what_anthropics_clients_require(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
    assert {"type", "id", "display_name", "created_at", "lifecycle", "max_input_tokens", "max_tokens"} <= set(model)


def test_client_that_leaves_a_whole_answer_frees_the_row(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect()
    scripted.script = lambda row: row.wait()
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/messages", json={"messages": USER}, timeout=httpx.Timeout(5, read=0.2))
    until(lambda: scripted.rows and scripted.rows[0].finished.is_set())
