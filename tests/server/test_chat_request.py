"""The parser on its own: whatever a client sends becomes checked requests or a refusal, and nothing else."""

import json
import re
from typing import Any

import pytest
from http_helpers import backend_over
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scripted_engine import CONTEXT, VOCAB, ScriptedEngine

from engine.errors import EngineError
from server.chat_request import ChatFields, ChatPlan, plan_chat
from server.errors import ApiError, from_engine
from server.jsonbody import parse

numbers = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**30, 0.5, 1e-9, 1e308, -0.0])
)
texts = st.text(max_size=20) | st.sampled_from(["", "<|im_end|>", "\x00", "x" * 2000, "none"])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


def mostly(sound: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A sound value five times out of six, else any: a body of nothing but nonsense gets no further than its start."""
    return st.integers(0, 5).flatmap(lambda roll: values if roll == 0 else sound)


parts = st.fixed_dictionaries({"type": mostly(st.just("text")), "text": mostly(texts)})
calls = st.fixed_dictionaries(
    {"function": mostly(st.fixed_dictionaries({"name": mostly(texts), "arguments": values | st.just('{"a": 1}')}))},
    optional={"id": values, "type": values},
)
messages = st.fixed_dictionaries(
    {
        "role": mostly(st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])),
        "content": mostly(texts | st.lists(mostly(parts), min_size=1, max_size=3)),
    },
    optional={
        "reasoning_content": mostly(texts), "reasoning": mostly(texts), "refusal": mostly(texts),
        "tool_calls": mostly(st.lists(mostly(calls), max_size=3)), "function_call": mostly(st.none()),
        "name": values, "tool_call_id": values,
    },
)  # fmt: skip
unit = st.floats(0, 1)
sound_fields = {
    "temperature": st.floats(0, 2), "top_p": unit, "top_k": st.integers(-1), "min_p": unit,
    "presence_penalty": st.floats(-2, 2), "frequency_penalty": st.floats(-2, 2), "repetition_penalty": st.floats(0, 9),
    "logit_bias": st.dictionaries(st.integers(0, VOCAB).map(str), numbers, max_size=3), "seed": st.integers(),
    "stop": texts | st.lists(texts, max_size=18), "max_tokens": st.integers(1), "max_completion_tokens": st.integers(1),
    "n": st.integers(1, 9), "logprobs": st.just(True), "top_logprobs": st.integers(0, 21),
    "stream_options": st.dictionaries(texts, values, max_size=2), "model": st.just("demo-13m"),
    "tools": st.just([]), "tool_choice": st.sampled_from(["none", "auto", "required"]),
    "response_format": st.just({"type": "text"}), "chat_template_kwargs": st.just({"enable_thinking": False}),
}  # fmt: skip
bodies = st.fixed_dictionaries(
    {"messages": mostly(st.lists(mostly(messages), min_size=1, max_size=3))},
    optional={
        name: mostly(sound_fields.get(name, st.none())) for name in ChatFields.model_fields if name != "messages"
    },
)


def plan(engine: ScriptedEngine, body: object) -> ChatPlan:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return plan_chat(backend_over(engine), raw, "chatcmpl-test", "api")


def outcome(engine: ScriptedEngine, body: object) -> ChatPlan | ApiError:
    try:
        return plan(engine, body)
    except ApiError as error:
        return error
    except EngineError as error:
        return from_engine(error)


def user(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies)
@example(body=user(logit_bias={"1" * 5000: 1}))
@example(body=user(stop=["\udfff"]))
@example(body=user(seed=1e300))
@example(body=user(seed=float("inf")))
@example(body=user(max_tokens=1e300))
@example(body=user(top_k=10**40))
@example(body=user(**{"model_config": 1, "__class__": 2, "": 3}))
@example(body={"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": ""}}]}]})
def test_any_body_becomes_sound_requests_or_a_refusal(scripted: ScriptedEngine, body: dict[str, Any]) -> None:
    got = outcome(scripted, body)
    if isinstance(got, ApiError):
        assert got.status in (400, 404)
        assert got.param is None or re.split(r"[.\[]", got.param)[0] in ChatFields.model_fields
        assert not re.search(r"\.(str|list|dict|int|float)\b", got.param or ""), "pydantic's names are not the client's"
        json.dumps(got.body).encode()
        return
    assert 1 <= len(got.requests) <= 8
    for request in got.requests:
        request.check(VOCAB)
        assert len(request.prompt) < CONTEXT
        assert request.max_tokens is None or 1 <= request.max_tokens <= CONTEXT - len(request.prompt)
        assert request.seed is None or 0 <= request.seed < 2**64
        assert 0 <= request.sampling.top_k <= VOCAB
        assert 0.0 <= request.sampling.temperature <= 2.0


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(raw=b'{"a":NaN}')
@example(raw=b'{"a":-Infinity}')
@example(raw=b'{"a":"\\ud83d"}')
@example(raw=b"\xff")
@example(raw=b"9" * 10_000)
def test_any_bytes_are_an_object_or_a_400(raw: bytes) -> None:
    status = 400
    try:
        assert isinstance(parse(raw), dict)
    except ApiError as error:
        status = error.status
    assert status == 400


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(sorted(set(ChatFields.model_fields) - {"messages"})))
def test_null_is_absence_for_every_optional_field(scripted: ScriptedEngine, field: str) -> None:
    assert plan(scripted, user(**{field: None})) == plan(scripted, user())


def test_fields_reach_the_engine(scripted: ScriptedEngine) -> None:
    fields = {
        "temperature": 0.5, "top_p": 0.8, "top_k": 7, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1.5,
        "repetition_penalty": 1.1, "logit_bias": {"5": 200, "6": -3}, "seed": 2**64 + 3, "stop": ["a", "", "b"],
        "max_tokens": 5.0, "ignore_eos": True, "min_tokens": 3, "logprobs": True,
        "top_logprobs": 4,
    }  # fmt: skip
    (request,) = plan(scripted, user(**fields)).requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.8, 7, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.0, -1.5, 1.1)
    assert sampling.logit_bias == ((5, 100.0), (6, -3.0))
    assert (request.seed, request.stop, request.max_tokens) == (3, ("a", "b"), 5)
    assert (request.ignore_eos, request.min_tokens, request.logprobs) == (True, 3, 4)


def test_absent_fields_are_the_models_own_settings(scripted: ScriptedEngine) -> None:
    (request,) = plan(scripted, user()).requests
    assert request.sampling == scripted.model.sampling
    assert (request.max_tokens, request.seed, request.stop, request.logprobs) == (None, None, (), None)


@pytest.mark.parametrize(("given", "used"), [(1e-9, 0.0), (0, 0.0), (2, 2.0), (0.01, 0.01)])
def test_temperature_near_nought_is_greedy(scripted: ScriptedEngine, given: float, used: float) -> None:
    assert plan(scripted, user(temperature=given)).requests[0].sampling.temperature == used


def test_max_completion_tokens_outranks_max_tokens_and_both_are_clamped(scripted: ScriptedEngine) -> None:
    assert plan(scripted, user(max_tokens=3, max_completion_tokens=4)).requests[0].max_tokens == 4
    (request,) = plan(scripted, user(max_tokens=128_000, min_tokens=127_000)).requests
    assert request.max_tokens == request.min_tokens == CONTEXT - len(request.prompt)


def test_what_changes_nothing_within_a_field_is_listed(scripted: ScriptedEngine) -> None:
    fields = {"thinking": {"type": "enabled", "budget_tokens": 2048}, "stream_options": {"x": 1}}
    assert plan(scripted, user(**fields)).ignored == ("stream_options.x", "thinking.budget_tokens")


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": None}}, True),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "high"}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}, "reasoning_effort": "none"}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "enabled"}, "chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_thinking_is_switched_by_any_of_its_fields(scripted: ScriptedEngine, fields: dict, thinking: bool) -> None:
    rendered = scripted.chat.render([{"role": "user", "content": "hi"}], thinking=thinking)
    assert plan(scripted, user(**fields)).requests[0].prompt == rendered


def test_tools_that_must_not_be_called_are_shown_to_the_model(scripted: ScriptedEngine) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "x-own": [1]}}}
    (request,) = plan(scripted, user(tools=[tool], tool_choice="none")).requests
    assert '"x-own": [1]' in scripted.chat.decode(request.prompt)
