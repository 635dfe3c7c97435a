"""Tool calls over a link: of a server of ours, and of any server with OpenAI's API."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_servers import VllmLike, until
from scripted_engine import ScriptedEngine, ScriptedRow
from speaker import Speaker

import engine
from engine.chat import load_chat_format
from engine.events import Event, FinishEvent, TokenEvent
from mtplx_tui.conversation import Said
from mtplx_tui.link import Link, Question
from mtplx_tui.remote.openai import OpenAILink
from mtplx_tui.remote.ours import RemoteLink
from mtplx_tui.tools.calls import ToolCall
from mtplx_tui.tools.heard import Heard
from mtplx_tui.tools.toolbox import Toolbox
from server.run import ServerThread

BOX = Toolbox(Path("/"), lambda: None)  # type: ignore[arg-type, return-value]
ARGUMENTS = '{"expression":  "47 + 85"}'
HISTORY = [
    *Said("user", "Add.").messages(),
    *Said("assistant", "", calls=[ToolCall("abc", "calculator", ARGUMENTS, "done", "132")]).messages(),
]


def said(link: Link) -> tuple[str, list[ToolCall], FinishEvent]:
    """What an answer says beside calls, its calls, and its end."""
    events: list[Event] = []
    link.ask(Question(HISTORY, tools=BOX.shown, id="q1"), events.append)
    until(lambda: any(isinstance(event, FinishEvent) for event in events), "the end")
    *told, finish = events
    assert isinstance(finish, FinishEvent)
    heard = Heard(BOX.named, "q1")
    spans = [span for event in told if isinstance(event, TokenEvent) for span in heard.take(event.spans)]
    spans += heard.end(finish.reason)
    return "".join(span.text for span in spans if span.kind == "text"), heard.calls, finish


@pytest.fixture
def other() -> Iterator[VllmLike]:
    other = VllmLike()
    yield other
    other.close()


def test_calls_as_openai_streams_them(other: VllmLike) -> None:
    link = OpenAILink(other.url)
    until(lambda: link.state == "ready")

    def delta(**fields: object) -> str:
        return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})

    def call(index: int | None, text: str, **named: object) -> dict[str, object]:
        place = {} if index is None else {"index": index}
        return place | ({"id": f"c{named['name']}"} if named else {}) | {"function": {**named, "arguments": text}}

    end = '{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}'
    read = {"name": "read_file"}
    streams = [
        [delta(content="See: "), delta(tool_calls=[call(0, "", name="calculator")]),
         *(delta(tool_calls=[call(0, letter)]) for letter in ARGUMENTS),
         delta(tool_calls=[call(1, "", name="current_time")]), delta(tool_calls=[call(2, '{"path": ".", ', **read)]),
         delta(tool_calls=[call(2, '"first_line": 1}')])],
        [delta(content="See: ", tool_calls=[
            call(None, ARGUMENTS, name="calculator"), call(None, "", name="current_time"),
            call(None, '{"path": ".", "first_line": 1}', **read),
        ])],
    ]  # fmt: skip
    for lines in streams:
        other.lines = [*lines, end, "[DONE]"]
        text, calls, finish = said(link)
        assert (text, finish.reason) == ("See: ", "stop")
        assert [(made.name, made.arguments) for made in calls] == [
            ("calculator", ARGUMENTS), ("current_time", "{}"), ("read_file", '{"path": ".", "first_line": 1}'),
        ]  # fmt: skip
    _, answer, result = other.bodies[-1]["messages"]
    assert answer["tool_calls"] == [
        {"type": "function", "id": "abc", "function": {"name": "calculator", "arguments": ARGUMENTS}}
    ]
    assert result == {"role": "tool", "tool_call_id": "abc", "content": "132", "name": "calculator"}
    assert [tool["function"]["name"] for tool in other.bodies[-1]["tools"]] == list(BOX.named)
    other.lines = [delta(tool_calls=[call(0, ARGUMENTS, name="shell")]), end, "[DONE]"]
    text, calls, _ = said(link)
    assert (text.startswith("<tool_call>"), ARGUMENTS in text, calls) == (True, True, [])
    link.close()


def test_calls_over_a_server_of_ours_by_both_its_apis() -> None:
    chat = load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m")
    scripted = ScriptedEngine(chat)
    tags = chat.tool_ids
    assert tags is not None

    def script(row: ScriptedRow) -> None:
        speaker = Speaker(chat, row)
        row.prefill(1)
        for token in (*chat.think_ids, *chat.encode("See: "), tags[0]):  # type: ignore[misc]
            speaker.say([token])
        text = "\n<function=calculator>\n<parameter=expression>\n47 + 85\n</parameter>\n</function>\n"
        speaker.say([*chat.encode(text), tags[1]])
        speaker.finish()

    scripted.script = script
    server = ServerThread(scripted, port=0)
    server.start()
    assert server.address is not None
    for link in (RemoteLink(server.address), OpenAILink(server.address)):
        link.listen(lambda event: None)
        until(lambda link=link: link.state == "ready", "the connection")  # type: ignore[misc]
        text, calls, finish = said(link)
        assert (text.strip(), finish.reason) == ("See:", "stop")
        assert [(made.name, json.loads(made.arguments)) for made in calls] == [
            ("calculator", {"expression": "47 + 85"})
        ]
        assert scripted.rows[-1].request.prompt == chat.render(HISTORY, tools=BOX.shown)
        link.close()
    assert server.stop(0.5)
    scripted.close()
