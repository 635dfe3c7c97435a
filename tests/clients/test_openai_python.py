"""The real `openai` package against the shared engine."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import openai
import pytest

from engine.collect import complete
from engine.events import Event, FinishEvent
from engine.handle import EngineHandle
from engine.request import Request

SUM = [{"role": "user", "content": "What is 47 + 85?"}]
STORY = [{"role": "user", "content": "Tell me a short story about a fox."}]


@pytest.fixture
def client(api: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=api, api_key="none", max_retries=0, timeout=60, http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


def test_lists_and_gets_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo-13m"]
    assert client.models.retrieve("demo-13m").owned_by == "mtplx-tui"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt/4")


def test_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="demo-13m", messages=SUM, temperature=0)
    assert answer.choices[0].finish_reason == "stop"
    assert "132" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.reasoning_content
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_stream_beside_the_screens_chat_leaves_both_as_they_are_alone(
    client: openai.OpenAI, demo_engine: EngineHandle
) -> None:
    chat = Request(
        demo_engine.chat.render(STORY),
        replace(demo_engine.model.sampling, temperature=1.0),
        120,
        seed=11,
        source="chat",
    )
    alone = complete(demo_engine, chat)
    solo = client.chat.completions.create(model="demo-13m", messages=SUM, temperature=1, seed=7)

    begun, events = threading.Event(), []

    def hear(event: Event) -> None:
        events.append(event)
        begun.set()

    beside: list[object] = []
    screen = threading.Thread(target=lambda: beside.append(complete(demo_engine, replace(chat, id="beside"))))
    unlisten = demo_engine.listen(hear)
    screen.start()
    begun.wait(10)
    text = reasoning = ""
    stream = client.chat.completions.create(
        model="demo-13m", messages=SUM, temperature=1, seed=7, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
        if chunk.usage is not None:
            usage = chunk.usage
    screen.join(60)
    unlisten()
    (row,) = beside
    assert (row.text, row.reasoning) == (alone.text, alone.reasoning)
    assert (text, reasoning) == (solo.choices[0].message.content, solo.choices[0].message.reasoning_content)
    assert usage.completion_tokens == solo.usage.completion_tokens
    assert "132" in text
    assert {event.request_id for event in events if isinstance(event, FinishEvent)} >= {"beside"}


def test_streaming_helper_sees_one_finished_answer(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="demo-13m", messages=SUM, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert kinds.count("content.done") == 1
    assert "132" in (final.choices[0].message.content or "")


def test_several_choices_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo-13m", messages=STORY, n=2, seed=1, max_tokens=10, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert len(choice.logprobs.content) == 10
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_streamed_tool_call_and_the_turn_after_it(client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    with client.chat.completions.stream(
        model="demo-13m", messages=[question], tools=[WEATHER], temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        (choice,) = stream.get_final_completion().choices
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":"Paris"}')
    assert choice.message.content in (None, "")

    whole = client.chat.completions.create(model="demo-13m", messages=[question], tools=[WEATHER], temperature=0)
    (same,) = whole.choices[0].message.tool_calls or []
    assert (same.type, same.function) == (
        "function",
        type(same.function)(name="get_weather", arguments='{"city":"Paris"}'),
    )
    turns = [
        question,
        whole.choices[0].message,
        {"role": "tool", "tool_call_id": same.id, "content": "12 degrees, sunny"},
    ]
    answer = client.chat.completions.create(model="demo-13m", messages=turns, tools=[WEATHER], temperature=0)
    assert "12 degrees" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=SUM)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="demo-13m", messages=SUM, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as full:
        client.chat.completions.create(model="demo-13m", messages=[{"role": "user", "content": "word " * 5000}])
    assert full.value.code == "context_length_exceeded"


def test_closed_stream_frees_the_row(client: openai.OpenAI, demo_engine: EngineHandle) -> None:
    finished, reasons = threading.Event(), []

    def hear(event: Event) -> None:
        if isinstance(event, FinishEvent):
            reasons.append(event.reason)
            finished.set()

    unlisten = demo_engine.listen(hear)
    stream = client.chat.completions.create(
        model="demo-13m", messages=STORY, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert finished.wait(10)
    unlisten()
    assert reasons == ["cancelled"]


def test_async_client_runs_many_at_once(api: str) -> None:
    import asyncio

    async def run() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=api, api_key="none", timeout=60, http_client=httpx.AsyncClient(trust_env=False)
        ) as client:
            answers = await asyncio.gather(
                *(client.chat.completions.create(model="demo-13m", messages=SUM, temperature=0) for _ in range(10))
            )
        return [answer.choices[0].message.content or "" for answer in answers]

    answers = asyncio.run(run())
    assert len(set(answers)) == 1
    assert "132" in answers[0]
