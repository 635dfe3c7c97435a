"""What real clients sent to /v1/responses, sent again: all of it reaches the model, and a turn goes on from the last.

The recordings keep shapes and lengths; `<text 163>` stands for a text of 163 characters, which is made up again here.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from responses_events import events, spans_of
from scripted_engine import ScriptedEngine, ScriptedRow

SESSIONS: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "cases" / "responses_clients.json").read_text()
)
ALL = [(name, index) for name, bodies in SESSIONS.items() for index in range(len(bodies))]
TEXT_KEYS = ("description", "text", "content", "summary", "output", "arguments", "tools", "parameters", "properties")
FOLLOWING = [("codex_exec", 0, 1), ("codex_interactive", 0, 2), ("pi_responses", 0, 1)]


def made_up(value: Any, path: str = "") -> Any:
    """`value` with its texts. Each depends on its place alone, so what comes again in a later turn is the same."""
    if isinstance(value, dict):
        return {key: made_up(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [made_up(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str) and value.startswith("<text ") and value.endswith(">"):
        return "".join(random.Random(path).choices("abcdefghijklmnopqrstuvwxyz ,.", k=int(value[6:-1])))
    return value


def body_of(name: str, index: int) -> dict[str, Any]:
    return {**made_up(SESSIONS[name][index]), "model": "demo-13m"}


def texts(value: Any) -> Iterator[str]:
    """The texts that a model is to read, of items and of tools, in their order."""
    if isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, dict):
        for key in TEXT_KEYS:
            inner = value.get(key)
            if key == "arguments" and isinstance(inner, str) and inner.startswith("{"):
                yield from json.loads(inner).values()
            elif isinstance(inner, str):
                yield inner
            else:
                yield from texts(list(inner.values()) if key == "properties" and isinstance(inner, dict) else inner)


def never_shown(body: dict[str, Any]) -> Iterator[str]:
    """What a client says to a server, not to a model."""
    for item in body["input"]:
        yield from (item[key] for key in ("id", "call_id") if key in item)
    yield from body.get("client_metadata", {}).values()
    yield from ("x-codex", body.get("prompt_cache_key", "x-codex"))


def prompt_of(client: httpx.Client, engine: ScriptedEngine, body: dict[str, Any]) -> tuple[int, ...]:
    engine.context = 200_000
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        assert events(response)[-1]["type"] == "response.completed"
    return engine.rows[-1].request.prompt


@pytest.mark.parametrize(("name", "index"), ALL)
def test_every_text_reaches_the_model_in_order_and_nothing_else_does(
    client: httpx.Client, scripted: ScriptedEngine, name: str, index: int
) -> None:
    body = body_of(name, index)
    prompt = scripted.chat.decode(prompt_of(client, scripted, body))
    if isinstance(body["input"], str):
        body["input"] = [{"role": "user", "text": body["input"]}]
    items = body["input"]
    last_user = max(place for place, item in enumerate(items) if item.get("role") == "user")
    # Templates leave out the reasoning before the last question; that is the model's own way.
    read = [item for place, item in enumerate(items) if item.get("type") != "reasoning" or place > last_user]
    at = 0
    for text in [*texts(body.get("tools", [])), *texts(read)]:
        found = prompt.find(text, at)
        assert found >= 0, text
        at = found + len(text)
    assert not [text for text in never_shown(body) if text in prompt]


@pytest.mark.parametrize(("name", "first", "second"), FOLLOWING)
def test_a_later_turn_begins_with_the_whole_earlier_one(
    client: httpx.Client, scripted: ScriptedEngine, name: str, first: int, second: int
) -> None:
    before = prompt_of(client, scripted, body_of(name, first))
    after = prompt_of(client, scripted, body_of(name, second))
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_codex_is_told_what_was_left_out(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.context = 200_000
    headers = client.post("/v1/responses", json=body_of("codex_exec", 0)).headers
    assert headers["x-mtplx-ignored-fields"] == "client_metadata, prompt_cache_key, tools.web_search"


TOOLS = [
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "box", "description": "A box.", "tools": [{"type": "function", "name": "open"}]},
]


def call(name: str, **arguments: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        "hm\n</think>\n\n" + call("read", n="5", path='a "b"\n\\ {x}'),
        "hm\n</think>\n\nLet me read." + call("read", n="5") + call("box__open", what="\U0001f600\n\n"),
        "hm\n</think>\n\n" + call("patch", input='*** Begin\n-"\\n"\n</parameter\n*** End'),
        "\n</think>\n\nDone.",
    ],
)
def test_our_own_items_sent_back_are_what_the_model_wrote(
    client: httpx.Client, scripted: ScriptedEngine, answer: str, stream: bool
) -> None:
    def play(row: ScriptedRow) -> None:
        for spans in spans_of(scripted.chat, answer):
            row.spans(spans)
        row.finish()

    scripted.script = play
    body = {"input": [{"role": "user", "content": "go"}], "tools": TOOLS, "stream": stream}
    response = client.post("/v1/responses", json=body)
    output = events(response)[-1]["response"]["output"] if stream else response.json()["output"]
    calls = [item for item in output if "call_id" in item]
    returned = [{"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in calls]
    items = [{"role": "user", "content": "go"}, *output, *returned]
    client.post("/v1/responses", json={**body, "input": items})
    before, after = (scripted.chat.decode(row.request.prompt) for row in scripted.rows)
    assert after.startswith(f"{before}{answer}<|im_end|>")
