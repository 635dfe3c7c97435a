"""One question, one seed, one answer: alone or beside others, whole or streamed, through whichever API it came."""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from engine.handle import EngineHandle

QUESTION = "Tell me a short story about a fox."
TOKENS = 30
OTHERS = 4
SAMPLING = {"seed": 11, "temperature": 0.9, "top_p": 0.95}
TAG = "\n</think>\n\n"  # stands in a plain completion, which knows no thinking
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


def body(engine: EngineHandle, path: str, thinking: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    if path == "/v1/chat/completions":
        return {"messages": messages, "max_tokens": TOKENS, "chat_template_kwargs": {"enable_thinking": thinking}}
    if path == "/v1/completions":
        return {"prompt": engine.chat.decode(engine.chat.render(messages, thinking=thinking)), "max_tokens": TOKENS}
    if path == "/v1/messages":
        chosen = {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"}
        return {"messages": messages, "max_tokens": TOKENS, "thinking": chosen}
    return {"input": QUESTION, "max_output_tokens": TOKENS, "reasoning": {"effort": "low" if thinking else "none"}}


def told(path: str, answer: dict[str, Any]) -> str:
    """All that the model said, its thinking in front."""
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        return message.get("reasoning_content", "") + message["content"]
    if path == "/v1/completions":
        return answer["choices"][0]["text"]
    if path == "/v1/messages":
        return "".join(block.get("thinking", "") + block.get("text", "") for block in answer["content"])
    return "".join(part["text"] for item in answer["output"] for part in item.get("content") or item["summary"])


def streamed(path: str, events: list[Any]) -> str:
    texts = []
    for event in events:
        if event == "[DONE]":
            continue
        if path == "/v1/messages":
            delta = event.get("delta", {})
            texts.append(delta.get("thinking", "") + delta.get("text", ""))
        elif path == "/v1/responses":
            texts.append(event["delta"] if event["type"].endswith("text.delta") else "")
        else:
            for choice in event["choices"]:
                delta = choice.get("delta", {})
                texts.append(choice.get("text", "") + delta.get("reasoning_content", "") + delta.get("content", ""))
    return "".join(texts)


def said(client: httpx.Client, engine: EngineHandle, path: str, thinking: bool, stream: bool) -> str:
    asked = {"model": "demo-13m", **SAMPLING, **body(engine, path, thinking), "stream": stream}
    response = client.post(path, json=asked)
    assert response.status_code == 200, response.text
    if not stream:
        return told(path, response.json()).replace(TAG, "")
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return streamed(path, [line if line == "[DONE]" else json.loads(line) for line in lines]).replace(TAG, "")


@contextmanager
def others(client: httpx.Client) -> Iterator[None]:
    """So many more clients have the server answer, one request after the other, and each has begun."""
    over, begun = threading.Event(), threading.Barrier(OTHERS + 1)

    def ask(number: int) -> None:
        for count in itertools.count():
            text = f"Tell story {number} of a fox, part {count}."
            asked = {"messages": [{"role": "user", "content": text}], "seed": count, "max_tokens": 60}
            with client.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as response:
                lines = response.iter_lines()
                next(lines)
                if not count:
                    begun.wait(60)
                for _ in lines:
                    pass
            if over.is_set():
                return

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(OTHERS)]
    for thread in threads:
        thread.start()
    begun.wait(60)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def answers(client: httpx.Client, engine: EngineHandle, thinking: bool) -> list[str]:
    return [said(client, engine, path, thinking, stream) for path in PATHS for stream in (False, True)]


def test_the_answer_is_the_same_through_every_api_streamed_or_not(
    demo: httpx.Client, demo_engine: EngineHandle
) -> None:
    first, *rest = answers(demo, demo_engine, thinking=False)
    assert len(first) > 40
    assert rest == [first] * len(rest)


@pytest.mark.slow
def test_it_is_the_same_beside_four_other_clients(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    for thinking in (True, False):
        alone = answers(demo, demo_engine, thinking)
        with others(demo):
            beside = answers(demo, demo_engine, thinking)
        assert len(set(alone + beside)) == 1, (alone, beside)
