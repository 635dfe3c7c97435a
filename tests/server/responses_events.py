"""Reads the stream of a response, and holds it to what every such stream must be."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import httpx
from openai.types.responses import Response, ResponseStreamEvent

from engine.chat import ChatFormat
from engine.events import Span
from engine.text import TextStream

Event = dict[str, Any]

_CLASSES = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(ResponseStreamEvent)[0])
}
_ITEM_CLASSES = {
    "message": "ResponseOutputMessage",
    "reasoning": "ResponseReasoningItem",
    "function_call": "ResponseFunctionToolCall",
    "custom_tool_call": "ResponseCustomToolCall",
}
_DELTAS = {
    "response.output_text.delta": ("response.output_text.done", "text"),
    "response.reasoning_summary_text.delta": ("response.reasoning_summary_text.done", "text"),
    "response.function_call_arguments.delta": ("response.function_call_arguments.done", "arguments"),
    "response.custom_tool_call_input.delta": ("response.custom_tool_call_input.done", "input"),
}
_PARTS = {
    "message": ("response.content_part.added", "response.output_text", "response.content_part.done"),
    "reasoning": (
        "response.reasoning_summary_part.added", "response.reasoning_summary_text",
        "response.reasoning_summary_part.done",
    ),
    "function_call": (None, "response.function_call_arguments", None),
    "custom_tool_call": (None, "response.custom_tool_call_input", None),
}  # fmt: skip
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def events(response: httpx.Response) -> list[Event]:
    """The checked events of a streamed response."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.text.endswith("\n\n")
    got = []
    for frame in response.text.removesuffix("\n\n").split("\n\n"):
        kind, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        got.append(event)
    check(got)
    return got


def check(got: list[Event]) -> None:
    """The SDK's own types take each event, and the events tell one story without gaps."""
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    for event in got:
        typed = _CLASSES[event["type"]].model_validate(event)
        if "item" in event:
            assert type(typed.item).__name__ == _ITEM_CLASSES[event["item"]["type"]]
    kinds = [event["type"] for event in got]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in kinds if kind in _ENDS] == kinds[-1:]
    final = got[-1]["response"]
    heads = [event["response"] for event in got if "response" in event]
    changing = {"status", "output", "usage", "completed_at", "error", "incomplete_details"}
    for head in heads[1:]:
        assert {key: head[key] for key in head.keys() - changing} == {
            key: final[key] for key in final.keys() - changing
        }
    story = [event for event in got if "response" not in event]
    indexes = [event["output_index"] for event in story]
    assert indexes == sorted(indexes)
    assert set(indexes) == set(range(len(final["output"])))
    for index, item in enumerate(final["output"]):
        _check_item([event for event in story if event["output_index"] == index], item)


def _check_item(story: list[Event], item: dict[str, Any]) -> None:
    added, text, done = _PARTS[item["type"]]
    first, *rest = story
    assert first["type"] == "response.output_item.added"
    assert first["item"]["status"] == "in_progress"
    assert {first["item"][key] for key in ("id", "type")} == {item[key] for key in ("id", "type")}
    assert all(event["item_id"] == item["id"] for event in rest if "item_id" in event)
    kinds = [event["type"] for event in rest]
    deltas = [event for event in rest if event["type"] == f"{text}.delta"]
    said = "".join(event["delta"] for event in deltas)
    assert all(event["delta"] for event in deltas)
    told = {
        "message": lambda: item["content"][0]["text"],
        "reasoning": lambda: item["summary"][0]["text"],
        "function_call": lambda: item["arguments"],
        "custom_tool_call": lambda: item["input"],
    }[item["type"]]()
    assert said == told
    cut_call = item["status"] == "incomplete" and item["type"].endswith("_call")
    closing = (
        [] if cut_call or rest[-1]["type"] == f"{text}.delta" else [f"{text}.done", done, "response.output_item.done"]
    )
    assert kinds == [kind for kind in [added, *[f"{text}.delta"] * len(deltas), *closing] if kind]
    if closing:
        assert rest[-1]["item"] == item
        _, key = _DELTAS[f"{text}.delta"]
        assert next(event for event in rest if event["type"] == f"{text}.done")[key] == told


def same(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one making of it to the next: ids and times."""
    Response.model_validate(response)
    output = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]
    ]
    return {**response, "output": output, "id": None, "created_at": None, "completed_at": None}


def spans_of(chat: ChatFormat, text: str) -> Iterator[tuple[Span, ...]]:
    """What an engine tells of each token where its model goes on from `<think>` with `text`; tags in it are tokens."""
    stream = TextStream(chat, kind="reasoning")
    for token in chat.encode(text):
        yield tuple(stream.push(token))
    yield tuple(stream.finish())
