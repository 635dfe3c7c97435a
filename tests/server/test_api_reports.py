"""What was reported of other servers, request by request: each gets here what it should have got there."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic_events import parsed
from apis import APIS, body
from http_helpers import frames
from scripted_engine import ScriptedEngine, ScriptedRow

CASES = json.loads((Path(__file__).parent / "cases" / "api_reports.json").read_text())
BY_ID = {case["id"]: case for case in CASES}
FINISHES = {"stop", "length", "tool_calls", "content_filter"}


def send(client: httpx.Client, case: dict[str, Any], index: int = 0, **fields: Any) -> httpx.Response:
    request = case["requests"][index]
    if "raw_ascii" in request:
        content = request["raw_ascii"].encode("ascii")
    elif "raw_latin1" in request:
        content = request["raw_latin1"].encode("latin-1")
    else:
        content = json.dumps(_expanded(request) | fields).encode()
    content = content.replace(b"local-model", b"demo-13m")
    return client.post(case["path"], content=content, headers={"content-type": "application/json"})


def _expanded(value: Any) -> Any:
    """With texts that stand here as {"$repeat": [text, times]} at their length."""
    if isinstance(value, dict):
        if "$repeat" in value:
            text, times = value["$repeat"]
            return text * times
        return {key: _expanded(each) for key, each in value.items()}
    return [_expanded(each) for each in value] if isinstance(value, list) else value


def alive(client: httpx.Client) -> int:
    """The process of a server that is well and answers."""
    assert client.get("/health").status_code == 200
    hi = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=hi, timeout=60).status_code == 200
    return int(client.get("/v1/mtplx/server").json()["pid"])


def streamed(response: httpx.Response) -> tuple[str, list[str], dict[str, Any]]:
    """The text of a chat's stream, how it finished, and what it counted."""
    assert response.status_code == 200, response.text
    *chunks, done = frames(response)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return text, [choice["finish_reason"] for choice in choices if choice["finish_reason"]], *(usage or [{}])


def commits(scripted: ScriptedEngine, *blocks: Sequence[int]) -> None:
    """The engine says these blocks of tokens, behind its thinking."""
    assert scripted.chat.think_ids is not None
    closed = [scripted.chat.think_ids[1]]
    scripted.script = lambda row: row.commit(scripted.chat, closed, *blocks)


def mid_conversation_system(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    """With a template that refuses such a turn: test_anthropic_messages."""
    assert send(client, case).status_code == 200
    messages = [turn for turn in case["requests"][0]["messages"] if turn["role"] != "system"]
    assert send(client, case, messages=messages).status_code == 200
    told, untold = (row.request.prompt for row in scripted.rows)
    said = scripted.chat.decode(told)
    assert said.index("hello") < said.index("extra context") < said.index("ok<")
    shared = scripted.chat.encode(said[: said.index("hello")] + "hello<|im_end|>\n")
    assert told[: len(shared)] == untold[: len(shared)] == shared


def billing_header(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    """What the cache has of it: test_anthropic_messages."""
    quote = [{"role": "user", "content": "x-anthropic-billing-header: cc_version=1"}]
    for answer in (send(client, case, 0), send(client, case, 1), send(client, case, 1, messages=quote)):
        assert answer.status_code == 200
    first, second, quoting = (row.request.prompt for row in scripted.rows)
    said = [scripted.chat.decode(prompt) for prompt in (first, second, quoting)]
    assert not any("cch=" in each for each in said)
    assert quote[0]["content"] in said[2]
    head = scripted.chat.encode(said[0][: said[0].index("<|im_end|>")])
    assert first[: len(head)] == second[: len(head)] == head


def stop_over_tokens(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    pieces = [scripted.chat.encode(piece) for piece in (" al", "pha be", "ta gam", "ma del", "ta")]
    commits(scripted, *pieces)
    text, finishes, usage = streamed(send(client, case, stream_options={"include_usage": True}))
    assert (text, finishes) == (" alpha ", ["stop"])
    assert usage["completion_tokens"] <= 1 + sum(map(len, pieces[:4])), "the thinking's end, and up to the match"
    whole = send(client, case, stream=False).json()
    assert whole["choices"][0]["message"]["content"] == text
    assert whole["usage"] == usage


def block_over_the_end(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    """The token that ends the answer is not counted."""
    a, b, c, x, y, z = (scripted.chat.encode(letter)[0] for letter in "ABCXYZ")
    eos = min(scripted.chat.eos_ids)
    for block, text, finish, count in (
        ([a, b, eos, x, y, z], "AB", "stop", 3),
        ([a, b, c, x, y, z], "ABCX", "length", 5),
    ):
        commits(scripted, block)
        said, finishes, usage = streamed(send(client, case))
        assert (said, finishes, usage["completion_tokens"]) == (text, [finish], count)  # one ended the thinking
        details = usage["completion_tokens_details"]
        assert max(details["accepted_prediction_tokens"], details["reasoning_tokens"]) <= count


def character_over_tokens(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    emoji = scripted.chat.encode("\U0001f600")
    assert len(emoji) > 1
    eos = [min(scripted.chat.eos_ids)]
    for blocks in ([emoji[:1], emoji[1:]], [emoji]):
        commits(scripted, *blocks, eos)
        answer = send(client, case, logprobs=True)
        assert "\ufffd" not in answer.text.replace("\\ufffd", "\ufffd").partition('"logprobs"')[0]
        assert streamed(answer)[0] == "\U0001f600"
        raw = [token["bytes"] for frame in frames(answer)[:-1] for choice in frame["choices"]
               for token in (choice["logprobs"] or {"content": []})["content"]]  # fmt: skip
        assert bytes(byte for token in raw[1:] for byte in token) == "\U0001f600".encode()
    commits(scripted, emoji[:-1], eos)
    assert streamed(send(client, case))[0] == "\ufffd"


def broken_text(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    for index in range(len(case["requests"])):
        answer = send(client, case, index)
        assert answer.status_code == 400
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert scripted.rows == []


def always_terminated(case: dict[str, Any], client: httpx.Client, scripted: ScriptedEngine) -> None:
    _, finishes, _ = streamed(send(client, case))
    assert len(finishes) == 1
    assert set(finishes) <= FINISHES

    def breaks(row: ScriptedRow) -> None:
        row.say("one", " two", " three", tokens=3)
        row.finish("error", error="it broke")

    scripted.script = breaks
    *_, last, done = frames(send(client, case))
    assert (set(last), done) == ({"error"}, "[DONE]")
    for path in APIS:
        answer = client.post(path, json=body(path, stream=True))
        assert answer.status_code == 200
        if path == "/v1/messages":
            assert parsed(answer.text)[-1]["error"]["type"] == "api_error"
        elif path == "/v1/responses":
            assert parsed(answer.text)[-1]["type"] == "response.failed"
        else:
            assert answer.text.endswith("data: [DONE]\n\n")
            assert '"error":{' in answer.text


Check = Callable[[dict[str, Any], httpx.Client, ScriptedEngine], None]
TOLD: dict[str, Check] = {
    "anthropic-mid-conversation-system": mid_conversation_system,
    "anthropic-billing-header-prefix": billing_header,
    "stop-split-over-tokens": stop_over_tokens,
    "mtp-block-crosses-stop-and-cap": block_over_the_end,
    "utf8-split-over-tokens": character_over_tokens,
    "lone-surrogate-and-invalid-utf8": broken_text,
    "stream-always-terminates": always_terminated,
}
REAL: dict[str, Sequence[int]] = {
    "engine-survives-bad-params": [200, 400, 400, 400, 400, 200],
    "completion-prompt-forms": [200, 200, 200, 400, 400],
    "null-means-default": [200],
}
"""Those that are put to the real engine, with the status of each request."""


def test_every_report_is_here() -> None:
    assert TOLD.keys() | REAL.keys() == BY_ID.keys()


@pytest.mark.parametrize("name", TOLD)
def test_report_is_none_of_this_server(
    client: httpx.Client, scripted: ScriptedEngine, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "server"):
        TOLD[name](BY_ID[name], client, scripted)
    assert all(line.isprintable() for record in caplog.records for line in record.getMessage().splitlines())
    scripted.reset()
    alive(client)


@pytest.mark.parametrize("name", REAL)
def test_the_engine_outlives_it(demo: httpx.Client, name: str) -> None:
    case, process = BY_ID[name], alive(demo)
    for index, status in enumerate(REAL[name]):
        answer = send(demo, case, index)
        assert answer.status_code == status, answer.text
        if status == 400:
            error = answer.json()["error"]
            assert error["param"] or "column" in error["message"], "where it is no JSON there are no fields yet"
        elif "prompt" in case["requests"][index]:
            wanted = {0: [0, 1], 1: [0], 2: [0, 1]}[index]
            assert [choice["index"] for choice in answer.json()["choices"]] == wanted
        assert alive(demo) == process
