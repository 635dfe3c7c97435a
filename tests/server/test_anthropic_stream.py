"""A message's events for exact event scripts, the same message whole, and that a stream ends whatever happens."""

import threading
from typing import Any

import httpx
import pytest
from anthropic_events import events, folded, parsed
from http_helpers import Connect, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, ScriptedRow, stays_in

from engine.events import Span
from server.anthropic_conversation import from_messages
from server.anthropic_stream import Blocks
from server.pieces import CallArguments, CallBegin, CallEnd, Reasoning, Text
from server.settings import Settings

TOOL = {
    "name": "f",
    "input_schema": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "number"}}},
}
THINK = {"type": "adaptive"}


def body(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], **fields}


def stream(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/messages?beta=true", json=body(stream=True, **fields))
    assert response.status_code == 200
    return events(response)


def called(row: ScriptedRow, *parameters: str) -> None:
    """A whole call of the tool, in several steps."""
    row.spans([Span("tool", "", opens=True), Span("tool", "\n<function=f>\n")])
    for parameter in parameters:
        name, value = parameter.split("=")
        row.say(f"<parameter={name}>\n{value}\n</parameter>\n", kind="tool", tokens=3)
    row.say("</function>\n", kind="tool")
    row.spans([Span("text", "", opens=True)])


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, text: Any) -> dict[str, Any]:
    keys = {"input_json": "partial_json"}
    return {
        "type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", keys.get(kind, kind): text}
    }  # fmt: skip


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_text_alone(client: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()

    def script(row: ScriptedRow) -> None:
        row.prefill(3)
        row.say("Hello", tokens=2)
        row.wait(gate)
        row.say(" there.", tokens=2)
        row.finish()

    scripted.script = script
    body_text = ""
    with client.stream("POST", "/v1/messages", json=body(stream=True)) as response:
        for line in response.iter_lines():
            body_text += f"{line}\n"
            if "Hello" in line:
                gate.set()
    got = parsed(body_text)
    request = scripted.rows[0].request
    prompt = len(request.prompt)
    assert got == [
        {
            "type": "message_start",
            "message": {
                "id": request.id, "type": "message", "role": "assistant", "model": "demo-13m", "content": [],
                "stop_reason": None, "stop_sequence": None,
                "usage": usage(prompt, 0, 0),
            },
        },
        start(0, type="text", text=""),
        delta(0, "text", "Hello"),
        delta(0, "text", " there."),
        stop(0),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": usage(prompt, 4, 0),
        },
        {"type": "message_stop"},
    ]  # fmt: skip


def usage(prompt: int, made: int, thought: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2,
        "output_tokens": made, "output_tokens_details": {"thinking_tokens": thought},
    }  # fmt: skip


def test_thinking_text_and_a_call(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.prefill(3)
        row.spans([Span("reasoning", "Hm."), Span("text", "I "), Span("text", "look.")], tokens=3)
        called(row, "a=x", "n=2.50")
        row.finish()

    scripted.script = script
    got = stream(client, thinking=THINK)[1:-2]
    call_id = got[7]["content_block"]["id"]
    assert call_id.startswith("toolu_")
    assert len(call_id) >= len("toolu_") + 24
    written = [event for event in got if event.get("delta", {}).get("type") == "input_json_delta"]
    assert "".join(event["delta"]["partial_json"] for event in written) == '{"a":"x","n":2.50}'
    assert [event for event in got if event not in written] == [
        start(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking", "Hm."),
        delta(0, "signature", got[2]["delta"]["signature"]),
        stop(0),
        start(1, type="text", text=""),
        delta(1, "text", "I look."),
        stop(1),
        start(2, type="tool_use", id=call_id, name="f", input={}),
        stop(2),
    ]
    assert got[2]["delta"]["signature"]


def test_calls_alone_have_no_text_block_before_or_between_them(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        called(row, "a=x")
        row.say("\n")
        called(row)
        row.finish()

    scripted.script = script
    for message in (folded(stream(client)), client.post("/v1/messages", json=body()).json()):
        assert [(block["type"], block["name"], block["input"]) for block in message["content"]] == [
            ("tool_use", "f", {"a": "x"}),
            ("tool_use", "f", {}),
        ]
        assert len({block["id"] for block in message["content"]}) == 2
        assert message["stop_reason"] == "tool_use"


def test_arguments_stream_while_they_are_made(client: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()

    def script(row: ScriptedRow) -> None:
        row.spans([Span("tool", "", opens=True), Span("tool", "<function=f>\n<parameter=a>\nlong ")])
        row.wait(gate)
        row.say("text\n</parameter>\n</function>", kind="tool")
        row.spans([Span("text", "", opens=True)])
        row.finish()

    scripted.script = script
    with client.stream("POST", "/v1/messages", json=body(stream=True)) as response:
        for line in response.iter_lines():
            if "long " in line:
                gate.set()
        assert gate.is_set()


@pytest.mark.parametrize(
    ("finish", "fields", "expected"),
    [
        ({}, {}, ("end_turn", None)),
        ({"stop": "END"}, {"stop_sequences": ["END"]}, ("stop_sequence", "END")),
        ({"reason": "length"}, {"max_tokens": 2}, ("max_tokens", None)),
        ({"reason": "length"}, {"max_tokens": 100_000}, ("model_context_window_exceeded", None)),
        ({"reason": "length"}, {"max_tokens": None}, ("model_context_window_exceeded", None)),
    ],
)
def test_stop_reason_says_what_ended_the_answer(
    client: httpx.Client, scripted: ScriptedEngine, finish: Any, fields: Any, expected: tuple[str, str | None]
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("one two", tokens=2)
        row.finish(**finish)

    scripted.script = script
    for message in (folded(stream(client, **fields)), client.post("/v1/messages", json=body(**fields)).json()):
        assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_stop_inside_thinking_keeps_the_thinking(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("Let me", kind="reasoning", tokens=2)
        row.finish("length")

    scripted.script = script
    fields = {"max_tokens": 2, "thinking": THINK}
    for message in (folded(stream(client, **fields)), client.post("/v1/messages", json=body(**fields)).json()):
        (block,) = message["content"]
        assert (block["type"], block["thinking"]) == ("thinking", "Let me")
        assert block["signature"]
        assert message["stop_reason"] == "max_tokens"


def test_answer_of_nothing_has_no_block(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: row.finish()
    for message in (folded(stream(client)), client.post("/v1/messages", json=body()).json()):
        assert (message["content"], message["stop_reason"]) == ([], "end_turn")


def test_call_that_is_cut_short_ends_its_block(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.spans([Span("tool", "", opens=True), Span("tool", "<function=f>\n<parameter=a>\nhal")], tokens=9)
        row.finish("length")

    scripted.script = script
    got = stream(client, max_tokens=9)
    assert [event["type"] for event in got[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert got[-2]["delta"]["stop_reason"] == "max_tokens"
    whole = client.post("/v1/messages", json=body(max_tokens=9)).json()
    assert whole["stop_reason"] == "max_tokens"
    assert all(block["type"] == "text" for block in whole["content"]), "half a call is none"


def test_hidden_thinking_is_carried_by_its_signature(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("Secret", kind="reasoning")
        row.say(" thought \U0001f600", kind="reasoning")
        row.say("Done.")
        row.finish()

    scripted.script = script
    fields = {"thinking": {"type": "adaptive", "display": "omitted"}}
    streamed = folded(stream(client, **fields))
    whole = client.post("/v1/messages", json=body(**fields)).json()
    assert streamed["content"] == whole["content"]
    assert (whole["content"][0]["type"], whole["content"][0]["thinking"]) == ("thinking", "")
    (turn,) = from_messages([{"role": "assistant", "content": whole["content"]}])
    assert turn == {"role": "assistant", "content": "Done.", "reasoning_content": "Secret thought \U0001f600"}


steps = st.lists(
    st.tuples(
        st.sampled_from(["text", "reasoning", "call", "broken"]),
        st.text(alphabet=st.sampled_from("ab<>/=\n \U0001f600"), min_size=1, max_size=8),
    ),
    max_size=7,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, cut=st.booleans(), hidden=st.booleans())
def test_streamed_and_whole_answers_are_the_same(
    client: httpx.Client, scripted: ScriptedEngine, steps: list[tuple[str, str]], cut: bool, hidden: bool
) -> None:
    def script(row: ScriptedRow) -> None:
        row.prefill(1)
        for kind, text in steps:
            if kind == "call":
                called(row, f"a={text.replace('=', '')}")
            elif kind == "broken":
                row.spans([Span("tool", "", opens=True), Span("tool", text), Span("text", "", opens=True)])
            else:
                row.say(text, kind="reasoning" if kind == "reasoning" else "text")
        row.finish("length" if cut else "stop")

    scripted.script = script
    fields = {"thinking": {"type": "adaptive", "display": "omitted" if hidden else None}}
    streamed = folded(stream(client, **fields))
    whole = client.post("/v1/messages", json=body(**fields)).json()
    for message in (streamed, whole):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == whole


def test_every_piece_has_its_frames_in_any_order() -> None:
    blocks = Blocks(hidden=False)
    pieces = [
        Text("a"), CallBegin(0, "f"), CallArguments(0, "{"), CallArguments(0, "}"), CallEnd(0), CallBegin(1, "g"),
        CallArguments(1, "{}"), CallEnd(1), Text("b"), Text("c"), Reasoning("d"), Text("e"), Reasoning("f"),
    ]  # fmt: skip
    written = b"".join(frame for piece in pieces for frame in blocks.write(piece)) + b"".join(blocks.close())
    names = [line.removeprefix(b"event: content_block_").decode() for line in written.split(b"\n") if b"event" in line]
    text, call, thought = (["start", *["delta"] * deltas, "stop"] for deltas in (1, 2, 2))
    long_text, short_call = ["start", "delta", "delta", "stop"], ["start", "delta", "stop"]
    assert names == [*text, *call, *short_call, *long_text, *thought, *text, *thought]
    assert list(blocks.close()) == []


def test_pings_show_a_waiting_client_that_the_server_lives(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02)
    queued, read = threading.Event(), threading.Event()

    def script(row: ScriptedRow) -> None:
        row.wait(queued)
        row.prefill(3)
        row.wait(read)
        row.say("Hello")
        row.finish()

    scripted.script = script
    with client.stream("POST", "/v1/messages", json=body(stream=True)) as response:
        names = (line.removeprefix("event: ") for line in response.iter_lines() if line.startswith("event: "))
        assert next(names) == "ping", "nothing is known of the prompt yet"
        queued.set()
        assert next(name for name in names if name != "ping") == "message_start"
        assert next(names) == "ping", "the prompt is being read"
        read.set()
        rest = [name for name in names if name != "ping"]
    assert rest[0] == "content_block_start"
    assert rest[-1] == "message_stop"
    assert "message_start" not in rest


def test_pings_come_while_thinking_is_hidden(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.5)
    pinged = threading.Event()

    def script(row: ScriptedRow) -> None:
        while not pinged.wait(0.01):
            row.say("x", kind="reasoning")
        row.finish()

    scripted.script = script
    fields = {"thinking": {"type": "adaptive", "display": "omitted"}, "stream": True}
    with client.stream("POST", "/v1/messages", json=body(**fields)) as response:
        for line in response.iter_lines():
            if "ping" in line:
                pinged.set()
    assert pinged.is_set()


def test_clients_get_their_ping_within_ten_seconds() -> None:
    assert Settings().keep_alive_s <= 10


def test_error_after_some_text_ends_the_stream_with_an_error_event(
    client: httpx.Client, scripted: ScriptedEngine
) -> None:
    def script(row: ScriptedRow) -> None:
        row.prefill(1)
        row.say("one")
        row.say(" two")
        row.say(" three")
        row.finish("error", error="The model gave a logit that is not a finite number.")

    scripted.script = script
    response = client.post("/v1/messages", json=body(stream=True))
    got = events(response)
    assert "".join(event["delta"]["text"] for event in got if "delta" in event) == "one two three"
    error = {"type": "api_error", "message": "The model gave a logit that is not a finite number."}
    assert got[-1] == {"type": "error", "error": error, "request_id": response.headers["request-id"]}
    assert not {"message_delta", "message_stop"} & {event["type"] for event in got}
    whole = client.post("/v1/messages", json=body())
    assert (whole.status_code, whole.json()["error"]) == (500, error)
    assert whole.json()["request_id"] == whole.headers["request-id"]


@pytest.mark.parametrize("streamed", [False, True])
def test_cancel_by_the_operator_is_not_to_be_retried(
    client: httpx.Client, scripted: ScriptedEngine, streamed: bool
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("begun")
        scripted.cancel(row.request.id)
        row.wait()

    scripted.script = script
    response = client.post("/v1/messages", json=body(stream=streamed))
    error = events(response)[-1]["error"] if streamed else response.json()["error"]
    assert error["type"] == "api_error", "overloaded_error alone makes clients try again"
    if not streamed:
        assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")


def test_stalled_engine_ends_the_stream(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02, stalled_s=5)
    scripted.script = lambda row: row.wait()
    scripted.age = 10.0
    got = events(client.post("/v1/messages", json=body(stream=True)))
    assert (got[-1]["type"], got[-1]["error"]["type"]) == ("error", "api_error")
    until(scripted.rows[0].finished.is_set)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_client_that_leaves_frees_its_row(
    client: httpx.Client, scripted: ScriptedEngine, streamed: bool, phase: str
) -> None:
    scripted.script = stays_in(phase)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/messages", json=body(stream=streamed), timeout=httpx.Timeout(5, read=0.2))
    until(lambda: scripted.rows and scripted.rows[0].finished.is_set(), 2)
