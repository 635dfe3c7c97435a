"""A chat's question: taken in at once, answered whoever stays, and its answer told again to whoever missed some."""

import threading
from typing import Any

import httpx
import pytest
from http_helpers import Connect, until
from pydantic import TypeAdapter
from scripted_engine import ScriptedEngine, ScriptedRow
from speaker import Speaker, atoms

from engine.chat import ChatFormat
from engine.events import FinishEvent
from engine.request import Sampling
from server.facts import AnswerFacts

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]


def asked(client: httpx.Client, request_id: str = "r1", **fields: Any) -> httpx.Response:
    return client.post("/v1/mtplx/ask", json={"id": request_id, "messages": MESSAGES, **fields})


def answer(client: httpx.Client, request_id: str = "r1") -> AnswerFacts:
    response = client.get(f"/v1/mtplx/requests/{request_id}/answer")
    assert response.status_code == 200, response.text
    return TypeAdapter(AnswerFacts).validate_json(response.content)


def test_a_question_is_taken_in_at_once_as_the_chat_asks_it(client: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()
    scripted.script = lambda row: (row.wait(gate), row.finish())
    sampling = {"temperature": 0.3, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "presence_penalty": 0.5}
    response = asked(client, thinking=False, max_tokens=7, seed=-3, logprobs=2, logit_bias={"5": 1}, frob=1, **sampling)
    assert (response.status_code, response.json()) == (202, {"id": "r1"})
    assert response.headers["x-mtplx-ignored-fields"] == "frob"
    (row,) = scripted.rows
    assert row.request.id == "r1"
    assert row.request.source == "chat"
    assert row.request.prompt == scripted.chat.render(MESSAGES, thinking=False)
    assert (row.request.max_tokens, row.request.seed, row.request.logprobs) == (7, 2**64 - 3, 2)
    assert row.request.sampling == Sampling(
        temperature=0.3, top_k=5, top_p=0.9, min_p=0.1, presence_penalty=0.5, logit_bias=((5, 1.0),)
    )
    gate.set()


def test_it_runs_on_when_the_asker_has_gone(connect: Connect, scripted: ScriptedEngine) -> None:
    client, gate = connect(), threading.Event()
    scripted.script = lambda row: (row.wait(gate), row.finish())
    asked(client)
    client.close()
    with httpx.Client(base_url=client.base_url, trust_env=False) as another:
        assert answer(another).finish is None
        assert not scripted.rows[0].cancelled.is_set()
        gate.set()
        until(lambda: answer(another).finish is not None)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"id": "no spaces"}, 400, "id"),
        ({"id": 5}, 400, "id"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ({"n": 2}, 400, "n"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"logprobs": 21}, 400, "logprobs"),
        ({"temperature": 3}, 400, "temperature"),
        ({"logit_bias": {"6144": 1}}, 400, "logit_bias.6144"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].function"),
        ({"messages": [{"role": "user", "content": "hi " * 3000}]}, 400, "messages"),
    ],
)
def test_what_can_not_be_run_is_refused_with_its_path(
    client: httpx.Client, scripted: ScriptedEngine, fields: dict[str, Any], status: int, param: str
) -> None:
    response = client.post("/v1/mtplx/ask", json={"id": "r1", "messages": MESSAGES, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert scripted.rows == []


def test_an_id_is_taken_once(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect()
    assert asked(client).status_code == 202
    again = asked(client)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "id_taken")
    assert len(scripted.rows) == 1


def test_the_answer_so_far_is_the_text_of_its_events_at_every_moment(
    connect: Connect, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    client = connect()
    think, call = chat_format.think_ids, chat_format.tool_ids
    assert think is not None
    assert call is not None
    pieces = [
        list(chat_format.encode("I am thinking")), [think[1]], list(chat_format.encode("\n\nIt is ")),
        *([byte] for byte in chat_format.encode("🦊 naïve END")),
        [call[0]], list(chat_format.encode("<function=f>")), [call[1]], list(chat_format.encode("and EN")),
    ]  # fmt: skip
    gates = [threading.Event() for _ in [*pieces, None]]
    spoken: list[Speaker] = []

    def script(row: ScriptedRow) -> None:
        spoken.append(Speaker(chat_format, row))
        for piece, gate in zip(pieces, gates, strict=False):
            row.wait(gate)
            spoken[0].say(piece)
        row.wait(gates[-1])
        spoken[0].finish()

    scripted.script = script
    asked(client, stop=["END!"])
    told = 0
    for piece, gate in zip(pieces, gates, strict=False):
        gate.set()
        told += len(piece)
        until(lambda told=told: len(answer(client).ids) == told)
        so_far = answer(client)
        assert so_far.finish is None
        assert atoms(so_far.spans) == atoms(tuple(spoken[0].heard))
    gates[-1].set()
    until(lambda: answer(client).finish is not None)
    whole = answer(client)
    assert isinstance(whole.finish, FinishEvent)
    assert atoms(whole.spans) == atoms(tuple(spoken[0].heard))
    assert "".join(span.text for span in whole.spans if span.kind == "text").endswith("EN")  # what was held back


def test_an_answer_that_is_not_known_is_a_404(client: httpx.Client) -> None:
    response = client.get("/v1/mtplx/requests/nope/answer")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "request_not_found")


def test_the_real_engine_tells_the_same_answer_twice(demo: httpx.Client) -> None:
    assert asked(demo, "real", seed=5, max_tokens=40).status_code == 202
    until(lambda: answer(demo, "real").finish is not None, 60)
    whole = answer(demo, "real")
    fields = {"messages": MESSAGES, "seed": 5, "max_tokens": 40}
    reply = demo.post("/v1/chat/completions", json=fields).json()["choices"][0]["message"]
    heard = ["".join(span.text for span in whole.spans if span.kind == kind) for kind in ("reasoning", "text")]
    assert heard == [reply.get("reasoning_content") or "", reply["content"] or ""]
    assert whole.finish is not None
    assert whole.finish.usage.completion_tokens == len(whole.ids)
