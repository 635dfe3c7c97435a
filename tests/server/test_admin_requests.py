"""Who runs, what was sent to the model token by token, and cancel."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_helpers import Connect, ask, frames, until
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.chat import ChatFormat
from engine.events import FinishEvent, QueuedEvent, ReadyEvent, Stats, TokenEvent, Usage
from engine.handle import EngineHandle
from engine.request import Request
from server.journal import KEPT, KEPT_TOKENS, Journal


@pytest.fixture
def fresh(connect: Connect) -> httpx.Client:
    """A client on a server that knows of no request yet."""
    return connect()


def listed(client: httpx.Client) -> list[dict[str, Any]]:
    response = client.get("/v1/mtplx/requests")
    assert response.status_code == 200
    return response.json()["requests"]


def states(client: httpx.Client) -> dict[str, str]:
    return {request["id"]: request["state"] for request in listed(client)}


def detail(client: httpx.Client, request_id: str, query: str = "") -> dict[str, Any]:
    response = client.get(f"/v1/mtplx/requests/{request_id}{query}")
    assert response.status_code == 200, response.text
    return response.json()


def test_a_request_is_followed_from_its_arrival_to_its_end(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    gates = {name: threading.Event() for name in ("waiting", "prefill", "decode")}

    def script(row: ScriptedRow) -> None:
        row.wait(gates["waiting"])
        row.prefill(3, cached=2, miss="prompts part at token 2")
        row.wait(gates["prefill"])
        row.step(3, 1)
        row.say("ab", tokens=2)
        row.wait(gates["decode"])
        row.finish()

    scripted.script = script
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, fresh, "hello", seed=5, temperature=0.5, max_tokens=9, stop="##")
        until(lambda: listed(fresh))
        (request,) = listed(fresh)
        assert request["id"].startswith("chatcmpl-")
        assert (request["state"], request["place"], request["source"]) == ("waiting", 1, "api:python-httpx")
        assert (request["prompt_tokens"], request["completion_tokens"], request["usage"]) == (
            len(scripted.rows[0].request.prompt), 0, None,
        )  # fmt: skip
        for phase, then in (("waiting", "prefill"), ("prefill", "decode")):
            gates[phase].set()
            until(lambda then=then: then in states(fresh).values())
        (request,) = listed(fresh)
        assert (request["cached_tokens"], request["read_tokens"], request["miss"]) == (2, 3, "prompts part at token 2")
        assert (request["completion_tokens"], request["steps"], request["drafted"], request["accepted"]) == (2, 1, 3, 1)
        assert request["ttft_s"] > 0
        gates["decode"].set()
        assert answer.result().json()["id"] == request["id"]
    until(lambda: "done" in states(fresh).values())
    done = detail(fresh, request["id"])
    assert (done["finish_reason"], done["error"], done["usage"]["completion_tokens"]) == ("stop", None, 2)
    assert done["asked"]["sampling"]["temperature"] == 0.5
    assert (done["asked"]["seed"], done["asked"]["max_tokens"], done["asked"]["stop"]) == (1, 9, ["##"])
    assert done["cache"] == {
        "prompt_tokens": done["prompt_tokens"], "cached_tokens": 2, "why": "prompts part at token 2",
    }  # fmt: skip
    assert [token["id"] for token in done["answer"]["tokens"]] == [7, 7]


def test_every_answer_of_a_request_has_its_row(fresh: httpx.Client) -> None:
    completion = ask(fresh, n=3).json()["id"]
    until(lambda: list(states(fresh).values()) == ["done"] * 3)
    assert set(states(fresh)) == {completion, f"{completion}-1", f"{completion}-2"}
    prompts = [detail(fresh, request_id)["prompt"]["tokens"] for request_id in states(fresh)]
    assert prompts[0] == prompts[1] == prompts[2] != []


def test_the_prompt_is_told_token_by_token(
    fresh: httpx.Client, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    scripted.script = lambda row: (row.prefill(9, cached=6), row.finish())
    content = "Zażółć 🦊 <|im_end|> \u0301"
    request_id = ask(fresh, content).json()["id"]
    ids = scripted.rows[0].request.prompt
    tokens = detail(fresh, request_id)["prompt"]["tokens"]
    assert tuple(token["id"] for token in tokens) == ids
    assert [token["cached"] for token in tokens] == [place < 6 for place in range(len(ids))]
    assert {token["id"] for token in tokens if token["special"]} == set(ids) & chat_format.special_ids
    raw = b"".join(
        base64.urlsafe_b64decode(token["bytes"]) if "bytes" in token else token["text"].encode() for token in tokens
    )
    assert raw.decode() == chat_format.decode(ids)
    assert content in raw.decode()
    assert any("bytes" in token for token in tokens), "the fox is more than one token, and none of them is a text"


def test_a_part_of_a_long_prompt_can_be_asked_for(fresh: httpx.Client) -> None:
    request_id = ask(fresh, "hello " * 50).json()["id"]
    whole = detail(fresh, request_id)["prompt"]
    part = detail(fresh, request_id, "?prompt_start=10&prompt_count=5&answer_count=0")
    assert part["prompt"] == {**whole, "start": 10, "tokens": whole["tokens"][10:15]}
    assert part["answer"]["tokens"] == []
    assert detail(fresh, request_id, "?prompt_start=99999")["prompt"]["tokens"] == []
    for bad in ("-1", "x", "1.5", "", "9999999999", "١"):
        response = fresh.get(f"/v1/mtplx/requests/{request_id}", params={"prompt_start": bad})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_start")
    assert len(fresh.get("/v1/mtplx/requests", params={"limit": 0}).json()["requests"]) == 0
    assert fresh.get("/v1/mtplx/requests", params={"limit": "all"}).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_cancel_ends_a_request_in_every_phase_and_its_client_is_told(
    fresh: httpx.Client, scripted: ScriptedEngine, phase: str, stream: bool
) -> None:
    def script(row: ScriptedRow) -> None:
        if phase != "waiting":
            row.prefill(1)
        if phase == "decode":
            row.say("a")
        row.wait()

    scripted.script = script
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, fresh, stream=stream)
        until(lambda: phase in states(fresh).values())
        (request_id,) = states(fresh)
        for _ in range(2):
            response = fresh.post(f"/v1/mtplx/requests/{request_id}/cancel")
            assert (response.status_code, response.json()["id"]) == (200, request_id)
        told = answer.result()
    error = frames(told)[-2]["error"] if stream else told.json()["error"]
    assert error["code"] == "cancelled"
    until(lambda: states(fresh) == {request_id: "done"})
    assert detail(fresh, request_id)["finish_reason"] == "cancelled"
    assert fresh.post(f"/v1/mtplx/requests/{request_id}/cancel").json()["state"] == "done", "and once more is no error"


def test_cancel_of_one_answer_ends_them_all(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: (row.say("a"), row.wait())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, fresh, n=3)
        until(lambda: list(states(fresh).values()) == ["decode"] * 3)
        fresh.post(f"/v1/mtplx/requests/{list(states(fresh))[1]}/cancel")
        assert answer.result().json()["error"]["code"] == "cancelled"
    until(lambda: set(states(fresh).values()) == {"done"})


@pytest.mark.parametrize("request_id", ["nobody", "chatcmpl-", "..", "%2e%2e%2f", "a" * 500, "%00", "é"])
def test_unknown_requests_are_404(fresh: httpx.Client, request_id: str) -> None:
    for response in (
        fresh.get(f"/v1/mtplx/requests/{request_id}"),
        fresh.post(f"/v1/mtplx/requests/{request_id}/cancel"),
    ):
        assert response.status_code in (404, 405), response.text
        assert response.json()["error"]["type"] in ("not_found_error", "invalid_request_error")


def test_requests_from_elsewhere_are_listed_without_their_prompt(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.submit(Request((5,) * 9, source="chat", id="own"), lambda event: None)
    until(lambda: states(fresh) == {"own": "done"})
    told = detail(fresh, "own")
    assert (told["source"], told["prompt_tokens"], told["asked"], told["prompt"]["tokens"]) == ("chat", 9, None, None)
    assert "did not come through this server" in told["prompt"]["why"]
    assert told["answer"]["total"] == 4


def test_a_failed_engine_still_shows_what_it_ran(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    request_id = ask(fresh).json()["id"]
    scripted.fail("it broke")
    tokens = detail(fresh, request_id)["prompt"]["tokens"]
    assert tokens[0]["text"] is None
    assert [token["id"] for token in tokens] == list(scripted.rows[0].request.prompt)


def test_refused_requests_leave_nothing(fresh: httpx.Client) -> None:
    assert ask(fresh, temperature=9).status_code == 400
    assert ask(fresh, "word " * 3000).status_code == 400
    assert listed(fresh) == []


def run(journal: Journal, request: Request, made: int = 1) -> None:
    """What a journal hears of a request."""
    queued = QueuedEvent(request.id, 1.0, "api", len(request.prompt), 9, 1)
    for event in (
        queued,
        TokenEvent(request.id, 2.0, (7,) * made, ()),
        FinishEvent(request.id, 3.0, "stop", Usage(), Stats()),
    ):
        journal.hear(event)
        if event is queued:
            journal.submitted([request])


def test_so_many_ended_requests_are_kept_and_all_that_run() -> None:
    journal = Journal()
    journal.hear(QueuedEvent("runs", 1.0, "api", 3, 9, 1))
    for number in range(2 * KEPT):
        run(journal, Request((5, 6), id=f"r{number}"))
    assert [entry.id for entry in journal.entries()] == ["runs", *(f"r{number}" for number in range(KEPT, 2 * KEPT))]
    assert journal.find("r0") is None


def test_tokens_of_long_prompts_are_let_go_and_their_figures_stay() -> None:
    journal = Journal()
    prompt = (5,) * (KEPT_TOKENS // 4)
    for number in range(6):
        run(journal, Request(prompt, id=f"r{number}"))
    kept = [entry.prompt is not None for entry in journal.entries()]
    assert kept == [False, False, False, True, True, True]
    assert sum(entry.kept_tokens for entry in journal.entries()) <= KEPT_TOKENS
    assert all(facts.prompt_tokens == len(prompt) for facts in journal.facts())


def test_an_id_that_comes_again_is_a_new_request() -> None:
    journal = Journal()
    run(journal, Request((5, 6), id="same"))
    journal.hear(QueuedEvent("same", 4.0, "ask", 3, 9, 1))
    entry = journal.find("same")
    assert entry is not None
    assert (entry.made, entry.finish) == (0, None)
    for number in range(KEPT):
        run(journal, Request((5, 6), id=f"r{number}"))
    assert journal.find("same") is entry, "the first one's end takes only itself away"


def test_tokens_of_a_model_are_let_go_when_another_is_loaded_and_not_when_it_comes_again() -> None:
    journal = Journal()
    for model, kept in (("demo", None), ("demo", True), ("other", False)):
        journal.hear(ReadyEvent(0.0, model))
        assert [entry.prompt is not None for entry in journal.entries()] == ([] if kept is None else [kept])
        run(journal, Request((5, 6), id="one"))
    assert [facts.prompt_tokens for facts in journal.facts()] == [2]


def test_the_real_engine_tells_what_it_was_sent_and_why_it_was_cached(
    demo: httpx.Client, demo_engine: EngineHandle
) -> None:
    question = "Mia the cat took 12 things and a lamp to Ben. " * 6 + "Who took the lamp?"
    first, second = (ask(demo, question, seed=1, max_tokens=12).json() for _ in range(2))
    until(lambda: all(detail(demo, answer["id"])["state"] == "done" for answer in (first, second)))
    told = detail(demo, second["id"])
    tokens = told["prompt"]["tokens"]
    assert tuple(token["id"] for token in tokens) == demo_engine.chat.render([{"role": "user", "content": question}])
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert sum(token["cached"] for token in tokens) == told["cached_tokens"] == cached > 32
    assert told["miss"]
    answer = "".join(token["text"] for token in told["answer"]["tokens"])
    assert len(told["answer"]["tokens"]) == second["usage"]["completion_tokens"] == 12
    message = second["choices"][0]["message"]
    assert answer.replace("<think>", "").strip().startswith((message.get("reasoning_content") or "").strip()[:20])
    assert told["usage"]["completion_tokens"] == 12
    assert told["stats"]["queue_s"] >= 0
