"""A completion's answer for exact event scripts: split characters, failures, and clients that leave."""

from typing import Any

import httpx
import pytest
from http_helpers import frames, until
from scripted_engine import ScriptedEngine, ScriptedRow, stays_in

from engine.events import TokenLogprob


def send(client: httpx.Client, prompt: object = "hi", **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": prompt, **fields})


def text(chunks: list[Any]) -> str:
    return "".join(choice["text"] for chunk in chunks if "choices" in chunk for choice in chunk["choices"])


def test_tags_reach_the_engine_as_text_and_ids_as_they_are(client: httpx.Client, scripted: ScriptedEngine) -> None:
    assert send(client, [[7, 8], [9]], n=2, seed=-1).status_code == 200
    requests = [row.request for row in scripted.rows]
    assert [request.prompt for request in requests] == [(7, 8), (7, 8), (9,), (9,)]
    assert [request.seed for request in requests] == [2**64 - 1, 0, 2**64 - 1, 0]
    assert all(request.raw for request in requests)
    assert {request.prompt_logprobs for request in requests} == {None}
    assert len({request.id for request in requests}) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_token_that_is_half_a_character_is_told_as_bytes(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool
) -> None:
    smile = "\U0001f600".encode()
    first = TokenLogprob(5, smile[:2], -0.5, ((5, smile[:2], -0.5), (6, b"\n", float("-inf"))))

    def script(row: ScriptedRow) -> None:
        row.say("a", logprobs=[TokenLogprob(4, b"a", -0.25, ((3, b"a", -0.125),))])
        row.spans([], 1, [first])  # held back: half a character
        row.say("\U0001f600!", tokens=2, logprobs=[TokenLogprob(6, smile[2:], -1.0), TokenLogprob(7, b"!", -2.0)])
        row.finish()

    scripted.script = script
    response = send(client, stream=stream, logprobs=2)
    choices = [chunk["choices"][0] for chunk in frames(response)[:-1]] if stream else response.json()["choices"]
    tables = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    table = {key: [entry for each in tables for entry in each[key]] for key in tables[0]}
    assert "".join(choice["text"] for choice in choices) == "a\U0001f600!"
    assert table == {
        "tokens": ["a", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "!"],
        "token_logprobs": [-0.25, -0.5, -1.0, -2.0],
        "top_logprobs": [
            {"a": -0.125},  # two tokens of one text: the likelier one's number
            {"bytes:\\xf0\\x9f": -0.5, "\n": -9999.0},
            {"bytes:\\x98\\x80": -1.0},
            {"!": -2.0},
        ],
        "text_offset": [0, 1, 1, 2],
    }


def test_error_after_some_text_ends_the_stream_with_an_error_frame(
    client: httpx.Client, scripted: ScriptedEngine
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("one two")
        row.finish("error", error="Broken.")

    scripted.script = script
    got = frames(send(client, stream=True))
    assert text(got[:-2]) == "one two"
    assert got[-2]["error"]["message"] == "Broken."
    assert got[-1] == "[DONE]"
    assert not any(choice["finish_reason"] for chunk in got[:-2] for choice in chunk["choices"])
    whole = send(client)
    assert (whole.status_code, whole.json()["error"]) == (500, got[-2]["error"])


def test_a_prompt_whose_reading_failed_is_not_echoed(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: row.finish("error", error="Broken.")
    got = frames(send(client, stream=True, echo=True, logprobs=1))
    assert [("error" in frame) for frame in got[:-1]] == [True]


def test_failure_of_one_answer_frees_the_others(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        if row.request.prompt == (8,):
            row.finish("error", error="broken")
        row.wait()

    scripted.script = script
    assert send(client, [[7], [8]]).status_code == 500
    until(scripted.rows[0].finished.is_set)
    assert frames(send(client, [[7], [8]], stream=True))[-1] == "[DONE]"
    until(scripted.rows[2].finished.is_set)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_client_that_leaves_frees_all_its_rows(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool, phase: str
) -> None:
    scripted.script = stays_in(phase)
    body = {"prompt": ["a", "b"], "n": 2, "stream": stream}
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.2))
    until(lambda: len(scripted.rows) == 4)
    for row in scripted.rows:
        until(row.finished.is_set, 2)
    scripted.script = lambda row: row.finish()
    assert send(client).status_code == 200


def test_while_the_model_loads_nothing_is_looked_at(client: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.load()
    response = send(client, "")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")


@pytest.mark.parametrize(("raw", "status"), [('{"prompt":"\\ud800"}', 400), ('{"prompt":NaN}', 400), ("[]", 400)])
def test_bodies_that_are_no_json_object_are_refused(client: httpx.Client, raw: str, status: int) -> None:
    response = client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
