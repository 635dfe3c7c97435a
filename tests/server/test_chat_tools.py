"""Tools of a chat completion: what is asked of the engine, and calls in whole answers and in streams."""

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from http_helpers import ask, frames
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.events import FinishReason, Span
from server.chat_tools import tools_of
from server.errors import ApiError
from server.tools import Tools


def function(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": function(name, **properties)}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"})
TIME = tool("get_time", city={"type": "string"})
TOOLS = [WEATHER, TIME]

OPEN, CLOSE = Span("tool", "", opens=True), Span("text", "", opens=True)


def call(name: str, **values: str) -> list[Span]:
    """The spans of a call, a few letters each."""
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    text = f"\n<function={name}>\n{parameters}</function>\n"
    return [OPEN, *(Span("tool", text[at : at + 5]) for at in range(0, len(text), 5)), CLOSE]


def says(*spans: Span, reason: FinishReason = "stop") -> Any:
    """A script that says one span a step."""

    def script(row: ScriptedRow) -> None:
        for span in spans:
            row.spans([span])
        row.finish(reason)

    return script


def streamed(response: httpx.Response, index: int = 0) -> dict[str, Any]:
    """What a stream's chunks for one choice add up to, with rules that clients rely on checked."""
    message: dict[str, Any] = {"content": "", "tool_calls": [], "finish_reason": None}
    for chunk in frames(response)[:-1]:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            assert message["finish_reason"] is None
            message["content"] += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls", ()):
                if "id" in delta:
                    assert delta["index"] == len(message["tool_calls"])
                    assert delta["function"]["arguments"] == ""
                    message["tool_calls"].append(
                        {"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])}
                    )
                else:
                    assert set(delta) == {"index", "function"}
                    assert set(delta["function"]) == {"arguments"}
                    message["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
            message["finish_reason"] = choice["finish_reason"]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    calls = message.get("tool_calls", [])
    assert all(each["type"] == "function" for each in calls)
    assert all(each["id"].startswith("call_") and len(each["id"]) >= 29 for each in calls)
    assert len({each["id"] for each in calls}) == len(calls)
    return [(each["function"]["name"], each["function"]["arguments"]) for each in calls]


def both(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """A whole answer's message with its finish_reason; the stream must add up to the same."""
    choice = ask(client, **fields).json()["choices"][0]
    stream = streamed(ask(client, stream=True, **fields))
    assert stream["content"] == (choice["message"]["content"] or "")
    assert calls_of(stream) == calls_of(choice["message"])
    assert stream["finish_reason"] == choice["finish_reason"]
    return {**choice["message"], "finish_reason": choice["finish_reason"]}


# --- answers


def test_calls_come_whole_or_in_deltas_with_their_own_index(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = says(
        *call("get_weather", city="Paris", days="3"), Span("text", "\n"), *call("get_time", city='"Rome"')
    )
    message = both(client, tools=TOOLS)
    assert calls_of(message) == [
        ("get_weather", '{"city":"Paris","days":3}'), ("get_time", '{"city":"\\"Rome\\""}'),
    ]  # fmt: skip
    assert (message["content"], message["finish_reason"]) == (None, "tool_calls")


def test_calls_with_nothing_between_them_stay_two(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = says(*call("get_time")[:-1], *call("get_time"))
    assert calls_of(both(client, tools=TOOLS)) == [("get_time", "{}")] * 2


def test_arguments_stream_as_they_are_made(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = says(OPEN, Span("tool", "<function=get_time>\n<parameter=city>\n"), *[Span("tool", "word ")] * 50)
    deltas = [
        delta
        for chunk in frames(ask(client, stream=True, tools=TOOLS))[:-1]
        for delta in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert json.loads("".join(delta["function"]["arguments"] for delta in deltas)) == {"city": "word " * 50}
    assert len(frames(ask(client, stream=True, tools=TOOLS))) > 4


def test_reasoning_and_text_come_before_the_call(client: httpx.Client, scripted: ScriptedEngine) -> None:
    spans = [Span("reasoning", "hm"), Span("text", "I look."), *call("get_time", city="Rome")]

    def script(row: ScriptedRow) -> None:
        row.spans(spans, tokens=9)
        row.finish()

    scripted.script = script
    message = both(client, tools=TOOLS)
    assert (message["content"], message["reasoning_content"]) == ("I look.", "hm")
    deltas = [chunk["choices"][0]["delta"] for chunk in frames(ask(client, stream=True, tools=TOOLS))[1:-2]]
    assert [list(delta) for delta in deltas] == [["reasoning_content", "content"], ["tool_calls"], ["tool_calls"]]


def test_call_cut_by_max_tokens_is_never_handed_out_as_a_whole(client: httpx.Client, scripted: ScriptedEngine) -> None:
    cut = call("get_weather", city="Paris")[:-3]
    scripted.script = says(*call("get_time"), *cut, reason="length")
    choice = ask(client, tools=TOOLS).json()["choices"][0]
    assert calls_of(choice["message"]) == [("get_time", "{}")]
    assert choice["message"]["content"] == "<tool_call>" + "".join(span.text for span in cut)
    assert choice["finish_reason"] == "length"
    stream = streamed(ask(client, stream=True, tools=TOOLS))
    assert (stream["content"], stream["finish_reason"]) == ("", "length")
    assert calls_of(stream) == [("get_time", "{}"), ("get_weather", '{"city":"Paris')]


def test_what_is_no_call_is_text_and_ends_with_stop(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = says(*call("get_news", about="Paris"), Span("text", "\nSorry."))
    message = both(client, tools=TOOLS)
    assert message["content"].startswith("<tool_call>\n<function=get_news>")
    assert message["content"].endswith("</tool_call>\nSorry.")
    assert (message["finish_reason"], "tool_calls" in message) == ("stop", False)


@pytest.mark.parametrize(
    ("fields", "called"),
    [
        ({"tools": TOOLS}, True),
        ({"tools": TOOLS, "tool_choice": "required"}, True),
        ({"tools": TOOLS, "tool_choice": "none"}, False),
        ({"tools": []}, False),
        ({}, False),
        ({"tools": [TIME]}, False),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}, False),
        ({"functions": [WEATHER["function"]]}, True),
        ({"functions": [WEATHER["function"]], "function_call": "none"}, False),
    ],
)
def test_only_tools_that_may_be_called_are(
    client: httpx.Client, scripted: ScriptedEngine, fields: dict[str, Any], called: bool
) -> None:
    scripted.script = says(*call("get_weather", city="Paris"))
    message = both(client, **fields)
    assert calls_of(message) == ([("get_weather", '{"city":"Paris"}')] if called else [])
    assert message["finish_reason"] == ("tool_calls" if called else "stop")


def test_each_choice_counts_its_own_calls(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        for _ in range((row.request.seed or 0) - 6):
            row.spans(call("get_time"))
        row.finish()

    scripted.script = script
    response = ask(client, n=3, seed=6, tools=TOOLS, stream=True)
    assert [len(calls_of(streamed(response, index))) for index in range(3)] == [0, 1, 2]
    choices = ask(client, n=3, seed=6, tools=TOOLS).json()["choices"]
    assert [len(calls_of(choice["message"])) for choice in choices] == [0, 1, 2]
    assert [choice["finish_reason"] for choice in choices] == ["stop", "tool_calls", "tool_calls"]


@pytest.mark.parametrize(("fields", "single"), [({}, False), ({"parallel_tool_calls": False}, True)])
def test_parallel_tool_calls_reaches_the_engine(
    client: httpx.Client, scripted: ScriptedEngine, fields: dict[str, Any], single: bool
) -> None:
    ask(client, tools=TOOLS, **fields)
    assert scripted.rows[0].request.single_call is single


def test_clients_own_tool_fields_are_shown_to_the_model(client: httpx.Client, scripted: ScriptedEngine) -> None:
    given = {"type": "function", "function": {"name": "look_up", "strict": False, "parameters": {"x-own": [1]}}}
    ask(client, tools=[given])
    assert json.dumps(given) in scripted.chat.decode(scripted.rows[0].request.prompt)


def test_session_with_odd_tool_turns_goes_on(client: httpx.Client, scripted: ScriptedEngine) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
            {"function": {"name": "gone", "arguments": None}},
        ]},
        {"role": "tool", "content": None},
        {"role": "tool", "content": [{"type": "text", "text": "two"}], "tool_call_id": 5, "name": None},
        {"role": "function", "name": "f", "content": "three"},
        {"role": "tool", "content": "four", "tool_call_id": "unknown"},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]  # fmt: skip
    response = client.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert response.status_code == 200, response.text
    prompt = scripted.chat.decode(scripted.rows[0].request.prompt)
    assert [text in prompt for text in ("{bad", "<function=gone>", "two", "three", "four")] == [True] * 5


def test_tools_that_can_not_fit_are_refused_before_they_are_tokenised(client: httpx.Client) -> None:
    huge = tool("huge", **{f"p{index}": {"type": "string"} for index in range(300_000)})
    response = ask(client, tools=[huge])
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


# --- fields


def names(tools: Tools) -> tuple[list[str], str, Sequence[str] | None, bool]:
    only = None if tools.only is None else sorted(tools.only)
    return [each.name for each in tools.offered], tools.choice, only, tools.parallel


BOTH = ["get_weather", "get_time"]


def named(name: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: object, tools: object) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({}, ([], "auto", None, True)),
        ({"tools": [], "tool_choice": "none"}, ([], "auto", None, True)),
        ({"tools": TOOLS}, (BOTH, "auto", None, True)),
        ({"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": None}, (BOTH, "auto", None, True)),
        ({"tools": TOOLS, "tool_choice": "none"}, (BOTH, "none", None, True)),
        ({"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}, (BOTH, "required", None, False)),
        ({"tools": TOOLS, "tool_choice": named("get_time")}, (BOTH, "required", ["get_time"], True)),
        ({"tools": TOOLS, "tool_choice": allowed("auto", [named("get_time")])}, (BOTH, "auto", ["get_time"], True)),
        ({"tools": TOOLS, "tool_choice": allowed("required", [named(n) for n in BOTH])},
         (BOTH, "required", sorted(BOTH), True)),
        ({"functions": [t["function"] for t in TOOLS]}, (BOTH, "auto", None, True)),
        ({"functions": [t["function"] for t in TOOLS], "function_call": {"name": "get_time"}},
         (BOTH, "required", ["get_time"], True)),
        ({"tools": [TIME], "functions": [WEATHER["function"]], "function_call": "none"},
         (["get_time"], "auto", None, True)),
    ],
)  # fmt: skip
def test_choice_is_taken_as_it_was_meant(fields: dict[str, Any], taken: object) -> None:
    assert names(tools_of(fields)) == taken


def test_strict_and_parameters_are_kept() -> None:
    given = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    (first, second) = tools_of({"tools": [given, {"type": "function", "function": {"name": "bare"}}]}).offered
    assert (first.strict, first.parameters, first.shown) == (True, WEATHER["function"]["parameters"], given)
    assert (second.strict, second.parameters) == (False, {})


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": ["auto"]}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("get_news")}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": named(None)}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": TOOLS, "tool_choice": allowed("none", [named("get_time")])}, "tool_choice.allowed_tools"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", [])}, "tool_choice.allowed_tools"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", [named("get_time"), "x"])},
         "tool_choice.allowed_tools.tools[1]"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", [named("get_news")])},
         "tool_choice.allowed_tools.tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": named("get_time")}, "tool_choice"),
        ({"functions": [WEATHER["function"]], "function_call": {"name": "get_time"}}, "function_call.name"),
        ({"functions": [WEATHER["function"]], "function_call": "required"}, "function_call"),
        ({"function_call": {"name": "get_time"}}, "function_call"),
    ],
)  # fmt: skip
def test_choice_that_can_not_be_met_is_refused_with_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ApiError) as caught:
        tools_of(fields)
    assert (caught.value.status, caught.value.param) == (400, path)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [TIME, {"type": "function"}]}, "tools[1].function"),
        ({"tools": [tool("")]}, "tools[0].function.name"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("a\n")]}, "tools[0].function.name"),
        ({"tools": [tool("a>")]}, "tools[0].function.name"),
        ({"tools": [tool("x" * 129)]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"functions": ["f"]}, "functions[0]"),
    ],
)  # fmt: skip
def test_tool_that_is_none_is_refused_with_its_path(client: httpx.Client, fields: dict[str, Any], path: str) -> None:
    response = ask(client, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, path)


def test_functions_beside_tools_are_listed_as_ignored(client: httpx.Client) -> None:
    response = ask(client, tools=[TIME], functions=[WEATHER["function"]], function_call="auto")
    assert response.headers["x-mtplx-ignored-fields"] == "function_call, functions"


# --- the bundled model, which was taught to call tools


def test_demo_model_calls_a_tool_and_answers_from_its_result(demo: httpx.Client) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    body = {"messages": [question], "tools": [tool("get_weather", city={"type": "string"})], "temperature": 0}
    response = demo.post("/v1/chat/completions", json=body)
    choice = response.json()["choices"][0]
    assert calls_of(choice["message"]) == [("get_weather", '{"city":"Paris"}')]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    stream = streamed(demo.post("/v1/chat/completions", json={**body, "stream": True}))
    assert (calls_of(stream), stream["finish_reason"]) == (calls_of(choice["message"]), "tool_calls")
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "12 degrees, sunny"}
    after = demo.post("/v1/chat/completions", json={**body, "messages": [question, choice["message"], result]})
    message = after.json()["choices"][0]["message"]
    assert "12 degrees" in message["content"]
    assert after.json()["choices"][0]["finish_reason"] == "stop"
