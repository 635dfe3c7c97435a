"""A Messages body over the socket: whatever a client sends becomes a checked request or a refusal, and nothing else."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scripted_engine import CONTEXT, VOCAB, ScriptedEngine

from engine.request import Grammar, Request
from server.anthropic_request import MessagesFields

TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}


def body(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "demo-13m", "max_tokens": 9, "messages": [{"role": "user", "content": content}], **fields}


def post(client: httpx.Client, sent: Any, path: str = "/v1/messages") -> httpx.Response:
    return client.post(path, content=json.dumps(sent), headers={"content-type": "application/json"})


def asked(client: httpx.Client, scripted: ScriptedEngine, **fields: Any) -> Request:
    """What the engine was asked for."""
    response = post(client, body(**fields))
    assert response.status_code == 200, response.text
    return scripted.rows[-1].request


def refusal(client: httpx.Client, sent: Any) -> str:
    response = post(client, sent)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    return str(response.json()["error"]["message"])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def mostly(sound: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A sound value nine times out of ten, else any: a body of nothing but nonsense gets no further than its start."""
    return st.integers(0, 9).flatmap(lambda roll: values if roll == 0 else sound)


words = mostly(st.text(max_size=9))
texts = st.fixed_dictionaries({"type": st.just("text"), "text": words}, optional={"cache_control": values})
results = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": words, "content": mostly(st.lists(texts, max_size=2) | words)}
)
thoughts = st.fixed_dictionaries({"type": st.just("thinking"), "thinking": words, "signature": values})
uses = st.fixed_dictionaries(
    {
        "type": st.just("tool_use"),
        "id": words,
        "name": words,
        "input": mostly(st.dictionaries(st.text(max_size=9), values)),
    }
)
others = st.fixed_dictionaries({"type": st.sampled_from(["image", "document", "redacted_thinking"]), "source": values})


def message(role: str, *blocks: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(mostly(st.one_of(*blocks)), min_size=1, max_size=3)
    return st.fixed_dictionaries({"role": mostly(st.just(role)), "content": mostly(listed | words)})


conversations = st.lists(
    mostly(message("user", texts, texts, results, others) | message("assistant", thoughts, texts, uses)), max_size=3
).flatmap(lambda turns: message("user", texts).map(lambda last: [*turns, last]))
tools = st.fixed_dictionaries(
    {"name": mostly(st.sampled_from("fg")), "input_schema": mostly(st.just({"type": "object"}))}
)
sound_fields = {
    "model": st.just("demo-13m"), "max_tokens": st.integers(1), "temperature": st.floats(0, 1),
    "top_k": st.integers(-1), "top_p": st.floats(0, 1), "seed": st.integers(),
    "stop_sequences": st.lists(st.text(max_size=3), max_size=17), "system": words | st.lists(texts, max_size=2),
    "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "adaptive", "disabled"])}),
    "tools": st.lists(mostly(tools), max_size=3),
    "tool_choice": st.fixed_dictionaries({"type": st.sampled_from(["auto", "none", "any", "tool"])}),
}  # fmt: skip
bodies = st.fixed_dictionaries(
    {"messages": mostly(conversations)},
    optional={
        name: mostly(sound_fields.get(name, st.none()))
        for name in MessagesFields.model_fields
        if name not in ("messages", "stream")
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=bodies)
@example(sent=body(stop_sequences=["\udfff"]))
@example(sent=body(seed=1e300))
@example(sent=body(temperature=float("nan")))
@example(sent=body(logit_bias={"99999999": 10}))
@example(sent=body(**{"model_config": 1, "": 3}))
def test_any_body_becomes_a_sound_request_or_a_refusal(
    client: httpx.Client, scripted: ScriptedEngine, sent: dict[str, Any]
) -> None:
    before = len(scripted.rows)
    response = post(client, sent)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()) == {"type", "error", "request_id"}
        assert len(scripted.rows) == before
        return
    request = scripted.rows[-1].request
    request.check(VOCAB)
    assert request.max_tokens is None or 1 <= request.max_tokens <= CONTEXT - len(request.prompt)


@pytest.mark.parametrize("field", sorted(set(MessagesFields.model_fields) - {"messages"}))
def test_null_is_absence_for_every_optional_field(client: httpx.Client, scripted: ScriptedEngine, field: str) -> None:
    sent = body()
    sent.pop(field, None)
    without = post(client, sent)
    null = post(client, {**sent, field: None})
    first, second = (row.request for row in scripted.rows)
    assert without.status_code == null.status_code == 200
    for name in ("prompt", "sampling", "max_tokens", "stop", "grammar", "seed"):
        assert getattr(first, name) == getattr(second, name)


def test_fields_reach_the_engine(client: httpx.Client, scripted: ScriptedEngine) -> None:
    request = asked(
        client, scripted, temperature=0.5, top_p=0.8, top_k=7, stop_sequences=["a", "", "b"], stop="c", seed=2**64 + 3,
        max_tokens=5.0, min_p=0.1, presence_penalty=1, frequency_penalty=-1.5, repetition_penalty=1.1,
        logit_bias={"5": 200}, ignore_eos=True,
    )  # fmt: skip
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.8, 7, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.5, 1.1)
    assert sampling.logit_bias == ((5, 100.0),)
    assert (request.stop, request.seed, request.max_tokens, request.ignore_eos) == (("a", "b", "c"), 3, 5, True)
    assert request.id.startswith("msg_")
    assert len(request.id) >= len("msg_") + 24


def test_absent_fields_are_the_models_own_settings(client: httpx.Client, scripted: ScriptedEngine) -> None:
    response = post(client, {"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 200
    request = scripted.rows[-1].request
    assert request.sampling == scripted.model.sampling
    assert (request.max_tokens, request.seed, request.stop, request.grammar) == (None, None, (), None)


def test_max_tokens_beyond_the_context_is_clamped(client: httpx.Client, scripted: ScriptedEngine) -> None:
    request = asked(client, scripted, max_tokens=128_000)
    assert request.max_tokens == CONTEXT - len(request.prompt)


@pytest.mark.parametrize(
    ("thinking", "on"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, True),
    ],
)
def test_thinking_is_on_only_where_it_is_asked_for(
    client: httpx.Client, scripted: ScriptedEngine, thinking: Any, on: bool
) -> None:
    rendered = scripted.chat.render([{"role": "user", "content": "hi"}], thinking=on)
    assert asked(client, scripted, thinking=thinking).prompt == rendered


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"effort": "high", "format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
    ],
)
def test_output_format_is_a_grammar(client: httpx.Client, scripted: ScriptedEngine, fields: dict[str, Any]) -> None:
    grammar = asked(client, scripted, **fields).grammar
    assert isinstance(grammar, Grammar)
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", SCHEMA)


def test_tools_are_shown_with_the_clients_own_schema(client: httpx.Client, scripted: ScriptedEngine) -> None:
    tool = {**TOOL, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "type": "custom"}
    request = asked(client, scripted, tools=[tool, {"name": "now", "description": None, "input_schema": {}}])
    shown = scripted.chat.decode(request.prompt)
    for function in (
        {"name": "get_weather", "description": "Tells the weather.", "parameters": TOOL["input_schema"]},
        {"name": "now", "parameters": {}},
    ):
        assert json.dumps({"type": "function", "function": function}) in shown
    assert "cache_control" not in shown
    assert "eager_input_streaming" not in shown


def test_tool_choice_none_changes_no_token_of_the_prompt(client: httpx.Client, scripted: ScriptedEngine) -> None:
    auto = asked(client, scripted, tools=[TOOL])
    assert asked(client, scripted, tools=[TOOL], tool_choice={"type": "none"}).prompt == auto.prompt


@pytest.mark.parametrize(
    ("choice", "named"),
    [({"type": "any"}, {"get_weather", "now"}), ({"type": "tool", "name": "now"}, {"now"}), ({"type": "auto"}, set())],
)
def test_a_call_that_is_asked_for_is_enforced(
    client: httpx.Client, scripted: ScriptedEngine, choice: dict[str, Any], named: set[str]
) -> None:
    grammar = asked(client, scripted, tools=[TOOL, {"name": "now", "input_schema": {}}], tool_choice=choice).grammar
    text = "" if grammar is None else grammar.text
    assert {name for name in ("get_weather", "now") if name in text} == named


def test_one_call_at_most_where_parallel_use_is_disabled(client: httpx.Client, scripted: ScriptedEngine) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert asked(client, scripted, tools=[TOOL], tool_choice=choice).single_call
    assert not asked(client, scripted, tools=[TOOL]).single_call
    assert not asked(client, scripted, tool_choice=choice).single_call


def test_tools_of_anthropics_servers_are_dropped_and_said_so(client: httpx.Client, scripted: ScriptedEngine) -> None:
    servers = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
    ]
    response = post(client, body(tools=[*servers, TOOL]))
    shown = scripted.chat.decode(scripted.rows[-1].request.prompt)
    assert "get_weather" in shown
    assert "web_search" not in shown
    ignored = response.headers["x-mtplx-ignored-fields"].split(", ")
    assert ignored == ["tools.bash_20250124", "tools.computer_20250124", "tools.web_search_20250305"]
    alone = asked(client, scripted, tools=servers)
    assert alone.prompt == asked(client, scripted).prompt


def test_fields_that_change_nothing_are_listed(client: httpx.Client) -> None:
    sent = body(
        metadata={"user_id": "x"},
        context_management={"edits": []},
        service_tier="auto",
        container=None,
        betas=["x"],
        thinking={"type": "enabled", "budget_tokens": 2000, "new": 1},
        output_config={"effort": "low"},
        tools=[{**TOOL, "eager_input_streaming": True}],
        mcp_servers=[],
    )
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = post(client, sent, path)
        assert response.headers["x-mtplx-ignored-fields"].split(", ") == [
            "betas", "container", "context_management", "metadata", "output_config.effort", "service_tier",
            "thinking.budget_tokens", "thinking.new", "tools.eager_input_streaming",
        ]  # fmt: skip
    assert "x-mtplx-ignored-fields" not in post(client, body()).headers


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 2}, "n"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x", 5]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": ["x" * 1025]}, "stop_sequences"),
        ({"system": 5}, "system"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f>\n<x", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools[1].name"),
        ({"tools": [{"name": "f", "input_schema": {}, "strict": "yes"}]}, "tools[0].strict"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"mcp_servers": [{"type": "url", "url": "https://example.com"}]}, "mcp_servers"),
    ],
)
def test_refusal_names_the_field(
    client: httpx.Client, scripted: ScriptedEngine, fields: dict[str, Any], path: str
) -> None:
    assert refusal(client, body(**fields)).startswith(f"{path}: ")
    assert not scripted.rows


def test_schema_that_is_nested_too_deep_is_refused(client: httpx.Client) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(70):
        schema = {"type": "object", "properties": {"a": schema}}
    for field, fields in (
        ("output_config.format", {"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        ("output_format", {"output_format": {"type": "json_schema", "schema": schema}}),
    ):
        assert refusal(client, body(**fields)).startswith(f"{field}.schema: ")


def test_model_that_is_not_here_is_not_found(client: httpx.Client) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = post(client, body(model="claude-none"), path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
        assert response.json()["request_id"] == response.headers["request-id"]


def test_long_prompt_is_refused_in_the_words_that_clients_read(client: httpx.Client, scripted: ScriptedEngine) -> None:
    message = refusal(client, body("word " * 4000))
    tokens = len(scripted.chat.render([{"role": "user", "content": "word " * 4000}], thinking=False))
    assert message == f"prompt is too long: {tokens} tokens > {CONTEXT} maximum"
    assert refusal(client, body("word " * 400_000)).startswith("prompt is too long: ")


def test_who_asks_is_told_to_the_screens(client: httpx.Client, scripted: ScriptedEngine) -> None:
    client.headers["user-agent"] = "claude-cli/2.1.197 (external, sdk-cli)"
    assert asked(client, scripted).source == "api:claude-cli"
