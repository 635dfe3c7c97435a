"""Reads a message's stream as Anthropic's clients do."""

import json
from typing import Any

import httpx


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream; each has its name twice, and nothing stands between them."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return parsed(response.text)


def parsed(body: str) -> list[dict[str, Any]]:
    """The events of a stream's body."""
    assert body.endswith("\n\n")
    read = []
    for frame in body.removesuffix("\n\n").split("\n\n"):
        name, data = frame.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells, and that its events come in their order and no block is empty."""
    stream = [event for event in stream if event["type"] != "ping"]
    assert [stream[0]["type"], *(event["type"] for event in stream[-2:])] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    message = dict(stream[0]["message"])
    content: list[dict[str, Any]] = []
    open_block: int | None = None
    for event in stream[1:-2]:
        match event["type"], event.get("delta", {}):
            case "content_block_start", _:
                assert open_block is None
                assert event["index"] == len(content)
                open_block = event["index"]
                content.append(dict(event["content_block"]))
                written = ""
            case "content_block_delta", {"type": "input_json_delta", "partial_json": more}:
                written += more
            case "content_block_delta", {"type": "signature_delta", "signature": signature}:
                content[-1]["signature"] += signature
            case "content_block_delta", {"type": "thinking_delta" | "text_delta"} as delta:
                key = delta["type"].removesuffix("_delta")
                assert delta[key]
                content[-1][key] += delta[key]
            case "content_block_stop", _:
                open_block = None
                if written:
                    content[-1]["input"] = json.loads(written)
                assert any(content[-1].get(key) for key in ("text", "thinking", "signature", "name"))
            case other:
                raise AssertionError(other)
        assert event["index"] == len(content) - 1
    assert open_block is None
    return {**message, "content": content, **stream[-2]["delta"], "usage": stream[-2]["usage"]}
