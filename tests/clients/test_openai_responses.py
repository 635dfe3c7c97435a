"""The Responses API of the real `openai` package against the shared engine."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import BaseModel, Field

SUM = "What is 47 + 85?"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Result(BaseModel):
    answer: int = Field(ge=0, le=999)
    sure: bool


@pytest.fixture
def client(api: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=api, api_key="none", max_retries=0, timeout=60, http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


def test_create(client: openai.OpenAI) -> None:
    response = client.responses.create(model="demo-13m", input=SUM, temperature=0)
    thought, message = response.output
    assert isinstance(thought, ResponseReasoningItem)
    assert "132" in thought.summary[0].text
    assert isinstance(message, ResponseOutputMessage)
    assert response.output_text == message.content[0].text  # type: ignore[union-attr]
    assert "132" in response.output_text
    assert response.status == "completed"
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    chat = client.chat.completions.create(model="demo-13m", temperature=0, messages=[{"role": "user", "content": SUM}])
    assert response.output_text == chat.choices[0].message.content, "the same answer through each API"


def test_stream_has_typed_events_and_the_same_seeded_answer(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo-13m", "input": SUM, "temperature": 1, "extra_body": {"seed": 7}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output] == ["reasoning", "message"]
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_tools_round_with_everything_sent_back_is_read_from_the_cache(client: openai.OpenAI) -> None:
    asked: Any = {"model": "demo-13m", "tools": [WEATHER], "temperature": 0, "store": False}
    conversation: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    with client.responses.stream(input=conversation, **asked) as stream:
        arguments = "".join(event.delta for event in stream if event.type == "response.function_call_arguments.delta")
        first = stream.get_final_response()
    call = first.output[-1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.arguments) == ("get_weather", '{"city":"Paris"}')
    assert arguments == call.arguments
    conversation += [item.to_dict() for item in first.output]
    conversation.append({"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 21 degrees."})
    second = client.responses.create(input=conversation, max_output_tokens=60, **asked)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens / 2
    assert second.output


def test_a_custom_tools_text_is_held_to_its_grammar(client: openai.OpenAI) -> None:
    code: Any = {
        "type": "custom",
        "name": "code",
        "description": "Takes a code.",
        "format": {"type": "grammar", "syntax": "regex", "definition": "[A-C]{2}-[0-9]{3}"},
    }
    asked: Any = {"model": "demo-13m", "input": "Give me a code.", "temperature": 1, "extra_body": {"seed": 3}}
    asked |= {"tools": [{"type": "web_search"}, code], "tool_choice": {"type": "custom", "name": "code"}}
    asked |= {"parallel_tool_calls": False}
    whole = client.responses.create(**asked).output[-1]
    assert isinstance(whole, ResponseCustomToolCall)
    assert re.fullmatch("[A-C]{2}-[0-9]{3}", whole.input)
    with client.responses.stream(**asked) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.custom_tool_call_input.delta")
        last = stream.get_final_response().output[-1]
    assert isinstance(last, ResponseCustomToolCall)
    assert text == last.input == whole.input


@pytest.mark.parametrize("streamed", [False, True])
def test_parse_holds_the_answer_to_a_model(client: openai.OpenAI, streamed: bool) -> None:
    asked: Any = {"model": "demo-13m", "input": SUM, "temperature": 0, "text_format": Result}
    if streamed:
        with client.responses.stream(**asked) as stream:
            result = stream.get_final_response().output_parsed
    else:
        result = client.responses.parse(**asked).output_parsed
    assert isinstance(result, Result)
    assert result.answer == 132


def test_a_cut_answer_and_refusals_are_the_clients_own(client: openai.OpenAI) -> None:
    cut = client.responses.create(model="demo-13m", input=SUM, temperature=0, max_output_tokens=3)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="demo-13m", input=SUM, previous_response_id="resp_1")
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="gpt-9", input=SUM)
    with pytest.raises(openai.BadRequestError) as full:
        client.responses.create(model="demo-13m", input="word " * 5000)
    assert full.value.code == "context_length_exceeded"
    bad: Any = {"type": "json_schema", "name": "n", "schema": {"properties": {"a": {"pattern": "("}}}}
    with pytest.raises(openai.BadRequestError) as schema:
        client.responses.create(model="demo-13m", input=SUM, text={"format": bad})
    assert schema.value.param == "text.format"
