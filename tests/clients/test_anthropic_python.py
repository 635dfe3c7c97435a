"""The real `anthropic` package against the shared engine."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import pytest
from pydantic import BaseModel

SUM: list[Any] = [{"role": "user", "content": "What is 47 + 85?"}]
THINK: Any = {"type": "adaptive"}
GREEDY = {"temperature": 0.0}
CLOCK: Any = {
    "name": "clock",
    "description": "Tells the time in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(api: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=api.removesuffix("/v1"),
        api_key="none",
        max_retries=0,
        timeout=60,
        http_client=anthropic.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def test_lists_and_gets_the_model(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, model.lifecycle) == ("demo-13m", "model", "active")
    assert model.max_input_tokens
    assert client.models.retrieve("demo-13m").created_at == model.created_at
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-none")


def test_whole_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="demo-13m", max_tokens=300, messages=SUM, thinking=THINK, extra_body=GREEDY)
    thinking, text = message.content
    assert thinking.type == "thinking"
    assert thinking.thinking
    assert thinking.signature
    assert text.type == "text"
    assert "132" in text.text
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    assert message._request_id is not None
    counted = client.messages.count_tokens(model="demo-13m", messages=SUM, thinking=THINK).input_tokens
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == counted
    assert message.usage.output_tokens_details is not None
    assert 0 < message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_text_comes_first_where_thinking_was_not_asked_for(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="demo-13m", max_tokens=5, messages=SUM, system="You are kind.")
    assert message.content[0].type == "text"


def test_stream_helper_gathers_the_same_message(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {
        "model": "demo-13m", "max_tokens": 300, "messages": SUM, "thinking": THINK, "extra_body": GREEDY,
    }  # fmt: skip
    whole = client.messages.create(**fields)
    with client.messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason
    for kind in ("message_start", "thinking", "signature", "text", "content_block_stop", "message_stop"):
        assert kind in kinds
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
    assert text == "".join(block.text for block in whole.content if block.type == "text")


def test_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "demo-13m", "max_tokens": 60, "messages": SUM, "extra_body": GREEDY}
    (block,) = client.messages.create(**fields).content
    assert block.type == "text"
    stop = block.text[3:7]
    message = client.messages.create(**fields, stop_sequences=["never said", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == block.text[: block.text.index(stop)]  # type: ignore[union-attr]


def test_tool_round_trip(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "What time is it in Oslo?"}]
    fields: dict[str, Any] = {"model": "demo-13m", "max_tokens": 200, "tools": [CLOCK], "extra_body": GREEDY}
    with client.messages.stream(**fields, messages=messages, tool_choice={"type": "tool", "name": "clock"}) as stream:
        deltas = [event.partial_json for event in stream if event.type == "input_json"]
        answer = stream.get_final_message()
    (call,) = (block for block in answer.content if block.type == "tool_use")
    assert answer.stop_reason == "tool_use"
    assert (call.name, list(call.input)) == ("clock", ["city"])
    assert json.loads("".join(deltas)) == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12:00"}
    messages += [answer.to_param(), {"role": "user", "content": [result, {"type": "text", "text": "Thanks."}]}]
    before = client.messages.count_tokens(model="demo-13m", messages=messages[:1], tools=[CLOCK]).input_tokens
    after = client.messages.create(**fields, messages=messages)
    assert (after.usage.cache_read_input_tokens or 0) > 0.5 * before
    assert after.stop_reason in ("end_turn", "tool_use", "max_tokens")


class Verdict(BaseModel):
    right: bool
    mood: Literal["good", "bad"]


def test_parse_gives_the_object_that_was_asked_for(client: anthropic.Anthropic) -> None:
    messages: list[Any] = [{"role": "user", "content": "Is 47 + 85 = 132?"}]
    fields: dict[str, Any] = {"model": "demo-13m", "max_tokens": 100, "messages": messages, "extra_body": GREEDY}
    message = client.messages.parse(**fields, output_format=Verdict)
    assert isinstance(message.parsed_output, Verdict)
    with client.messages.stream(**fields, output_format=Verdict) as stream:
        assert stream.get_final_message().parsed_output == message.parsed_output


def test_errors_arrive_as_the_clients_own(client: anthropic.Anthropic) -> None:
    fields: dict[str, Any] = {"model": "demo-13m", "max_tokens": 5, "messages": SUM}
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**fields, "model": "claude-none"})
    with pytest.raises(anthropic.BadRequestError, match="temperature: ") as bad:
        client.messages.create(**fields, extra_body={"temperature": 3})
    assert bad.value.request_id is not None
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(**{**fields, "messages": [{"role": "user", "content": "word " * 5000}]})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(**{**fields, "messages": [{"role": "user", "content": [image]}]})


def test_async_client_runs_many_at_once(api: str) -> None:
    import asyncio

    async def run() -> set[str]:
        async with anthropic.AsyncAnthropic(
            base_url=api.removesuffix("/v1"),
            api_key="none",
            timeout=60,
            http_client=anthropic.DefaultAsyncHttpxClient(trust_env=False),
        ) as client:
            answers = await asyncio.gather(
                *(
                    client.messages.create(model="demo-13m", max_tokens=20, messages=SUM, extra_body=GREEDY)
                    for _ in range(8)
                )
            )
        return {json.dumps([block.to_dict() for block in answer.content]) for answer in answers}

    assert len(asyncio.run(run())) == 1
