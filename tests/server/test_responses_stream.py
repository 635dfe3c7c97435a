"""The events of a response for exact scripts, and that a whole response is what its stream ends with."""

import json
import threading
from collections.abc import Callable
from itertools import groupby
from typing import Any

import httpx
import pytest
from http_helpers import Connect, backend_over, until
from responses_events import check, events, same, spans_of
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.chat import ChatFormat
from engine.events import FinishEvent, Span, Stats, TokenEvent, Usage
from server.errors import context_overflow
from server.responses_output import Output
from server.responses_request import plan_response

URL = "/v1/responses"
READ = {
    "type": "function",
    "name": "read",
    "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}},
}
PATCH = {"type": "custom", "name": "patch", "description": "Patches files."}
BOX = {
    "type": "namespace",
    "name": "mcp__box",
    "description": "A box.",
    "tools": [{**READ, "name": "open"}, {**PATCH, "name": "fill"}],
}
TOOLS = [READ, PATCH, BOX]


def call(name: str, **arguments: str) -> str:
    """A call as the model writes it."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


ANSWERS = {
    "text": "\n</think>\n\nIt is 7.",
    "reasoning and text": "Let me see.\nSo.\n</think>\n\nIt is \U0001f600.",
    "reasoning alone": "Let me see.",
    "nothing": "",
    "one call": "I read.\n</think>\n\n" + call("read", path="a \"b\"\n", lines="5"),
    "text and calls": "hm\n</think>\n\nThis.\n" + call("read", path="a") + "\n" + call("read", path="b", lines="x"),
    "custom call": "hm\n</think>\n\n" + call("patch", input="*** Begin\n\\n \"x\" \U0001f600\n*** End"),
    "custom call of another form": "hm\n</think>\n\n" + call("patch", text="x"),
    "namespace": "hm\n</think>\n\n" + call("mcp__box__open", path="a") + call("mcp__box__fill", input="b"),
    "call of an unknown tool": "hm\n</think>\n\n" + call("write", path="a"),
    "broken call": "hm\n</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\na\n</tool_call> and so on",
    "text behind a call": "hm\n</think>\n\n" + call("read", path="a") + "\nThat was it.",
    "reasoning behind text": "a\n</think>\n\nb<think>\nc\n</think>\n\nd",
}  # fmt: skip


def script(chat: ChatFormat, text: str, reason: Any = "stop", **finish: Any) -> Callable[[ScriptedRow], None]:
    def play(row: ScriptedRow) -> None:
        for spans in spans_of(chat, text):
            row.spans(spans)
        row.finish(reason, **finish)

    return play


def streamed(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    return events(client.post(URL, json={"input": "hi", "stream": True, **fields}))


def whole(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = client.post(URL, json={"input": "hi", **fields})
    assert response.status_code == 200
    body: dict[str, Any] = response.json()
    return body


def test_events_of_reasoning_and_text_in_their_order(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def play(row: ScriptedRow) -> None:
        row.say("hm", kind="reasoning")
        row.spans([Span("reasoning", "."), Span("text", "It"), Span("text", " is")], tokens=3)
        row.say(" 7.")
        row.finish()

    scripted.script = play
    got = streamed(client)
    kinds = [event["type"].removeprefix("response.") for event in got]
    assert [kind for kind, _ in groupby(kinds)] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    final = got[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    assert final["output"][0]["summary"] == [{"type": "summary_text", "text": "hm."}]
    assert final["output"][0]["encrypted_content"] is None
    assert final["usage"] == {
        "input_tokens": len(scripted.rows[0].request.prompt),
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {
            "reasoning_tokens": 4, "accepted_prediction_tokens": 4, "rejected_prediction_tokens": 1,
        },
        "total_tokens": len(scripted.rows[0].request.prompt) + 5,
    }  # fmt: skip
    assert final["id"] == scripted.rows[0].request.id
    assert len(final["id"]) >= len("resp_") + 24


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_response_is_what_its_stream_ends_with(
    client: httpx.Client, scripted: ScriptedEngine, name: str, reason: str
) -> None:
    scripted.script = script(scripted.chat, ANSWERS[name], reason)
    got = streamed(client, tools=TOOLS)
    assert same(got[-1]["response"]) == same(whole(client, tools=TOOLS))
    assert got[-1]["type"] == ("response.completed" if reason == "stop" else "response.incomplete")


def by_token(engine: ScriptedEngine, text: str) -> list[dict[str, Any]]:
    """The events of an answer of which each token comes alone, as far as they are about items."""
    body = json.dumps({"input": "hi", "tools": TOOLS}).encode()
    output = Output(plan_response(backend_over(engine), body, "resp_x", "api"), engine)
    made: list[dict[str, Any]] = []
    for spans in spans_of(engine.chat, text):
        made += output.take([TokenEvent("resp_x", 0.0, (7,), spans)])
    made += output.take([FinishEvent("resp_x", 0.0, "stop", Usage(), Stats())])
    return made + list(output.end())


def test_a_functions_arguments_stream_as_they_are_made(client: httpx.Client, scripted: ScriptedEngine) -> None:
    made = by_token(scripted, ANSWERS["one call"])
    assert sum(event["type"] == "response.function_call_arguments.delta" for event in made) > 3
    scripted.script = script(scripted.chat, ANSWERS["one call"])
    got = streamed(client, tools=TOOLS)
    thought, item = got[-1]["response"]["output"]
    assert thought["summary"][0]["text"] == "I read."
    assert (item["name"], item["arguments"], item["status"]) == (
        "read",
        '{"path":"a \\"b\\"\\n","lines":5}',
        "completed",
    )
    assert "namespace" not in item
    assert item["call_id"].startswith("call_")
    assert item["id"].startswith("fc_")


def test_a_custom_tools_text_streams_unescaped(client: httpx.Client, scripted: ScriptedEngine) -> None:
    made = by_token(scripted, ANSWERS["custom call"])
    assert sum(event["type"] == "response.custom_tool_call_input.delta" for event in made) > 3
    scripted.script = script(scripted.chat, ANSWERS["custom call"])
    got = streamed(client, tools=TOOLS)
    item = got[-1]["response"]["output"][-1]
    assert (item["type"], item["name"]) == ("custom_tool_call", "patch")
    assert item["input"] == '*** Begin\n\\n "x" \U0001f600\n*** End'
    assert item["id"].startswith("ctc_")


def test_a_namespaces_tools_get_their_names_back(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = script(scripted.chat, ANSWERS["namespace"])
    got = streamed(client, tools=TOOLS)
    calls = got[-1]["response"]["output"][1:]
    assert [(item["type"], item["namespace"], item["name"]) for item in calls] == [
        ("function_call", "mcp__box", "open"), ("custom_tool_call", "mcp__box", "fill"),
    ]  # fmt: skip
    begun = [event["item"] for event in got if event["type"] == "response.output_item.added"]
    assert [(item["namespace"], item["name"]) for item in begun[1:]] == [("mcp__box", "open"), ("mcp__box", "fill")]
    assert scripted.chat.decode(scripted.rows[0].request.prompt).count('"mcp__box__open"') == 1


def test_what_is_no_call_is_text(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = script(scripted.chat, ANSWERS["call of an unknown tool"])
    (_, message) = whole(client, tools=TOOLS)["output"]
    assert message["content"][0]["text"] == call("write", path="a")
    scripted.script = script(scripted.chat, ANSWERS["one call"])
    (_, message) = whole(client, tools=TOOLS, tool_choice="none")["output"]
    assert message["content"][0]["text"].startswith("<tool_call>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Let me see", ["reasoning"]),
        ("hm\n</think>\n\nIt is", ["reasoning", "message"]),
        ("hm\n</think>\n\nI read." + call("read", path="a")[:45], ["reasoning", "message", "function_call"]),
        ("hm\n</think>\n\n" + call("patch", input="*** Begin")[:52], ["reasoning", "custom_tool_call"]),
    ],
)
def test_an_answer_that_is_cut_says_so(
    client: httpx.Client, scripted: ScriptedEngine, text: str, kinds: list[str], stream: bool
) -> None:
    scripted.script = script(scripted.chat, text, "length")
    got = streamed(client, tools=TOOLS) if stream else []
    final = got[-1]["response"] if stream else whole(client, tools=TOOLS)
    assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["type"] for item in final["output"]] == kinds
    assert [item["status"] for item in final["output"]] == ["completed"] * (len(kinds) - 1) + ["incomplete"]
    if stream and kinds[-1].endswith("_call"):
        # An agent runs a tool as soon as its call is done, and half a patch must not be.
        assert got[-2]["type"].endswith(".delta")


def test_a_failure_after_some_text_ends_the_stream_with_a_failed_response(
    client: httpx.Client, scripted: ScriptedEngine
) -> None:
    scripted.script = script(scripted.chat, "hm\n</think>\n\none two", "error", error="The model is broken.")
    final = streamed(client)[-1]
    assert final["type"] == "response.failed"
    response = final["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "The model is broken."}
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    answer = client.post(URL, json={"input": "hi"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "The model is broken.")


def test_cancel_by_the_operator_is_not_to_be_retried(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def play(row: ScriptedRow) -> None:
        row.say("begun")
        scripted.cancel(row.request.id)
        row.wait()

    scripted.script = play
    error = streamed(client)[-1]["response"]["error"]
    assert error["code"] == "invalid_prompt", "the one code that makes agents stop asking"
    assert "cancelled" in error["message"]
    answer = client.post(URL, json={"input": "hi"})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "false")


def test_a_full_context_found_late_has_the_code_that_agents_know(scripted: ScriptedEngine) -> None:
    plan = plan_response(backend_over(scripted), b'{"input": "hi"}', "resp_x", "api")
    failed = Output(plan, scripted).failed(context_overflow(2048, 3000))
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


def test_silence_gets_real_events_with_the_response_so_far(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02)
    gate = threading.Event()

    def play(row: ScriptedRow) -> None:
        row.say("It")
        row.wait(gate)
        row.say(" is 7.")
        row.finish()

    scripted.script = play
    received: list[str] = []
    with client.stream("POST", URL, json={"input": "hi", "stream": True}) as response:
        for line in response.iter_lines():
            received.append(line)
            if received.count("event: response.in_progress") == 4:
                gate.set()
    got = events(httpx.Response(200, headers=response.headers, text="\n".join(received) + "\n"))
    assert not any(line.startswith(":") for line in received)
    waiting = [event["response"] for event in got if event["type"] == "response.in_progress"]
    assert waiting[0]["output"] == []
    assert waiting[-1]["output"][0]["content"][0]["text"] == "It"
    assert got[-1]["response"]["output"][0]["content"][0]["text"] == "It is 7."


def test_an_engine_that_hangs_ends_the_stream(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02, stalled_s=5)
    scripted.script = lambda row: row.wait()
    scripted.age = 10.0
    got = streamed(client)
    assert got[-1]["type"] == "response.failed"
    assert "does not respond" in got[-1]["response"]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row(client: httpx.Client, scripted: ScriptedEngine, stream: bool) -> None:
    def play(row: ScriptedRow) -> None:
        row.say("some")
        row.wait()

    scripted.script = play
    with pytest.raises(httpx.ReadTimeout):
        client.post(URL, json={"input": "hi", "stream": stream}, timeout=httpx.Timeout(5, read=0.2))
    until(lambda: scripted.rows and scripted.rows[0].finished.is_set())


@pytest.mark.parametrize("path", ["/v1/responses", "/responses", "/v1/responses/", "//v1/responses"])
def test_paths(client: httpx.Client, path: str) -> None:
    assert client.post(path, json={"input": "hi"}).json()["object"] == "response"


@pytest.mark.parametrize("broken", ["gap", "no end", "lost delta", "other item"])
def test_the_checker_of_these_tests_sees_a_broken_stream(
    scripted: ScriptedEngine, client: httpx.Client, broken: str
) -> None:
    got = streamed(client)
    match broken:
        case "gap":
            got.pop(3)
        case "no end":
            got.pop()
        case "lost delta":
            next(event for event in got if event.get("delta"))["delta"] = "x"
        case "other item":
            next(event for event in got if "item_id" in event)["item_id"] = "msg_other"
    with pytest.raises((AssertionError, ValueError)):
        check(got)
