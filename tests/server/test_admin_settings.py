"""Settings that are changed while the server runs: all or nothing, checked, and of effect with the next request."""

import logging
import threading
from typing import Any

import httpx
import hypothesis
import pytest
from http_helpers import Connect, ask, frames, until
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from scripted_engine import CONTEXT, ScriptedEngine, ScriptedRow

from engine.request import Sampling
from server.errors import ApiError
from server.settings import LiveSettings, Settings, describe

ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
}


@pytest.fixture
def fresh(connect: Connect) -> httpx.Client:
    return connect()


def settings(client: httpx.Client) -> dict[str, dict[str, Any]]:
    response = client.get("/v1/mtplx/settings")
    assert response.status_code == 200
    return {setting["name"]: setting for setting in response.json()["settings"]}


def change(client: httpx.Client, **changes: Any) -> httpx.Response:
    return client.patch("/v1/mtplx/settings", json=changes)


def test_each_setting_says_what_it_is(fresh: httpx.Client) -> None:
    told = settings(fresh)
    assert set(told) == set(Settings.model_fields)
    for setting in told.values():
        assert setting["type"] in ("number", "integer", "boolean", "choice", "list")
        assert setting["help"].endswith(".")
        assert setting["value"] == setting["default"]
    assert (told["temperature"]["value"], told["temperature"]["effective"], told["temperature"]["null"]) == (
        None, 0.6, True,
    )  # fmt: skip
    assert (told["temperature"]["minimum"], told["temperature"]["maximum"]) == (0, 2)
    assert told["depth"]["choices"] == ["auto", 0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert told["keep_alive_s"]["effective"] == 10


@pytest.mark.parametrize("path", ENDPOINTS)
def test_set_sampling_and_depth_are_where_requests_begin(
    fresh: httpx.Client, scripted: ScriptedEngine, path: str
) -> None:
    assert change(fresh, temperature=1.5, top_k=7, min_p=0.25, repetition_penalty=1.1, depth=2).status_code == 200
    assert fresh.post(path, json=ENDPOINTS[path]).status_code == 200
    assert fresh.post(path, json={**ENDPOINTS[path], "temperature": 0.5}).status_code == 200
    plain, given = (row.request for row in scripted.rows)
    assert plain.sampling == Sampling(temperature=1.5, top_k=7, top_p=0.95, min_p=0.25, repetition_penalty=1.1)
    assert given.sampling.temperature == 0.5
    assert plain.depth == given.depth == 2
    assert change(fresh, temperature=None, top_k=None, min_p=None, repetition_penalty=None, depth=None).is_success
    fresh.post(path, json=ENDPOINTS[path])
    assert scripted.rows[-1].request.sampling == scripted.model.sampling
    assert scripted.rows[-1].request.depth is None


def test_the_most_tokens_are_for_answers_whose_request_names_none(
    fresh: httpx.Client, scripted: ScriptedEngine
) -> None:
    change(fresh, max_tokens=5)
    for path in ("/v1/chat/completions", "/v1/responses"):
        fresh.post(path, json=ENDPOINTS[path])
        assert scripted.rows[-1].request.max_tokens == 5
    ask(fresh, max_tokens=7)
    assert scripted.rows[-1].request.max_tokens == 7
    change(fresh, max_tokens=10**6)
    ask(fresh)
    request = scripted.rows[-1].request
    assert request.max_tokens == CONTEXT - len(request.prompt), "more than fits is cut to what does"

    def cut(row: ScriptedRow) -> None:
        row.say("a", tokens=5)
        row.finish("length")

    scripted.script = cut
    change(fresh, max_tokens=5)
    answer = fresh.post("/v1/messages", json={"messages": ENDPOINTS["/v1/messages"]["messages"]}).json()
    assert answer["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_aliases_and_any_name_are_served_everywhere(fresh: httpx.Client, path: str) -> None:
    def status(name: str) -> int:
        return fresh.post(path, json={**ENDPOINTS[path], "model": name}).status_code

    assert (status("demo-13m"), status("claude-haiku"), status("gpt-9")) == (200, 404, 404)
    change(fresh, aliases=["claude-haiku", "demo-13m"])
    assert (status("demo-13m"), status("claude-haiku"), status("gpt-9")) == (200, 200, 404)
    change(fresh, serve_any_name=True)
    assert status("gpt-9") == 200
    change(fresh, aliases=None, serve_any_name=None)
    assert (status("demo-13m"), status("claude-haiku"), status("gpt-9")) == (200, 404, 404)


def test_aliases_are_listed_as_models(fresh: httpx.Client) -> None:
    change(fresh, aliases=["org/alias", "other"])
    listed = fresh.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["demo-13m", "org/alias", "other"]
    assert {model["root"] for model in listed["data"]} == {"demo-13m"}
    assert (listed["first_id"], listed["last_id"]) == ("demo-13m", "other")
    assert fresh.get("/v1/models/org/alias").json()["id"] == "org/alias"
    refused = fresh.get("/v1/models/org/nobody")
    assert refused.status_code == 404
    assert "org/alias" in refused.json()["error"]["message"], "the error says what there is"
    change(fresh, serve_any_name=True)
    assert fresh.get("/v1/models/org/nobody").json()["id"] == "org/nobody"


def test_a_silence_is_broken_as_soon_as_is_set(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()

    def script(row: ScriptedRow) -> None:
        row.say("a")
        row.wait(gate)
        row.finish()

    scripted.script = script
    assert change(fresh, keep_alive_s=0.02).status_code == 200
    with fresh.stream("POST", "/v1/chat/completions", json={**ENDPOINTS["/v1/chat/completions"], "stream": True}) as r:
        lines = r.iter_lines()
        assert next(line for line in lines if line.startswith(":")) == ": waiting"
        gate.set()
        assert "data: [DONE]" in lines


def test_the_log_says_as_much_as_is_set(fresh: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "/v1/models" in record.getMessage()]

    fresh.get("/v1/models")
    assert lines() == []
    change(fresh, log_level="info")
    assert logging.getLogger("server").level == logging.INFO
    fresh.get("/v1/models/a-name-that-a-client-chose")
    until(lines)
    assert lines()[0].startswith("GET /v1/models/{name:path} 404 in ")
    change(fresh, log_level=None)
    assert logging.getLogger("server").level == logging.WARNING


BAD = [
    ("temperature", -0.1), ("temperature", 2.5), ("temperature", "1"), ("temperature", True), ("temperature", [1]),
    ("top_p", 0), ("top_k", -1), ("top_k", 1.5), ("top_k", 2**40), ("repetition_penalty", 0),
    ("depth", 9), ("depth", -1), ("depth", "many"), ("depth", True), ("depth", 1.5), ("aliases", "name"),
    ("aliases", {"a": "b"}), ("aliases", ["a", "a"]), ("aliases[1]", ["a", ""]), ("aliases[0]", ["x" * 300]),
    ("aliases[0]", ["a\nb"]), ("aliases[0]", [1]), ("aliases", [str(n) for n in range(101)]), ("serve_any_name", 1),
    ("serve_any_name", "yes"), ("keep_alive_s", 0), ("keep_alive_s", 1e9), ("log_level", "loud"), ("wizard", 1),
    ("__class__", 1), ("model_config", {}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD)
def test_one_bad_value_changes_nothing_and_is_named(client: httpx.Client, path: str, value: object) -> None:
    before = settings(client)
    for body in ({path.partition("[")[0]: value, "min_p": 0.125}, {"min_p": 0.125, path.partition("[")[0]: value}):
        response = client.patch("/v1/mtplx/settings", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, path), response.text
    assert settings(client) == before


@pytest.mark.parametrize("body", ["", "[]", "null", "{", '{"temperature": NaN}', '{"temperature": 1e999}', '"x"'])
def test_what_is_no_object_of_settings_is_refused(client: httpx.Client, body: str) -> None:
    headers = {"content-type": "application/json"}
    assert client.patch("/v1/mtplx/settings", content=body, headers=headers).status_code == 400


def test_post_changes_as_patch_does_and_both_answer_with_what_holds(fresh: httpx.Client) -> None:
    answer = fresh.post("/v1/mtplx/settings", json={"top_p": 0.5})
    assert {s["name"]: s["value"] for s in answer.json()["settings"]}["top_p"] == 0.5
    assert settings(fresh)["top_p"]["effective"] == 0.5
    assert change(fresh).status_code == 200, "nothing to change is no error"


def test_settings_given_at_the_start_hold(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(temperature=0.0, aliases=("mine",), depth=0)
    assert ask(client, model="mine").status_code == 200
    assert scripted.rows[0].request.sampling.temperature == 0
    assert scripted.rows[0].request.depth == 0
    assert settings(client)["aliases"]["value"] == ["mine"]


def test_drafts_are_refused_where_the_model_has_none(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.mode = "ar"
    refused = change(fresh, depth=3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "depth")
    assert "without drafts" in refused.json()["error"]["message"]
    assert change(fresh, depth=0).status_code == change(fresh, depth="auto").status_code == 200


def test_a_depth_that_another_model_was_given_harms_no_request(connect: Connect, scripted: ScriptedEngine) -> None:
    scripted.mode = "ar"
    assert ask(connect(depth=3)).status_code == 200
    assert scripted.rows[0].request.depth is None


def test_settings_can_be_read_and_set_while_the_model_loads(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.load()
    assert settings(fresh)["temperature"]["effective"] is None
    assert change(fresh, temperature=1, depth=2).status_code == 200


def test_set_values_show_in_the_stream_of_a_seeded_answer(demo: httpx.Client) -> None:
    asked: dict[str, Any] = {"seed": 5, "max_tokens": 16, "stream": True}
    own = frames(ask(demo, "Tell me a short story about a fox.", **asked))
    try:
        assert change(demo, temperature=0.0, depth=3).status_code == 200
        greedy = frames(ask(demo, "Tell me a short story about a fox.", **asked))
        given = frames(ask(demo, "Tell me a short story about a fox.", temperature=0, **asked))
    finally:
        change(demo, temperature=None, depth=None)
    again = frames(ask(demo, "Tell me a short story about a fox.", **asked))

    def text(chunks: list[Any]) -> str:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk != "[DONE]"]
        return "".join(delta.get("content", "") + delta.get("reasoning_content", "") for delta in deltas)

    assert text(greedy) == text(given)
    assert text(own) == text(again)


@hypothesis.settings(suppress_health_check=[HealthCheck.too_slow])  # the first text takes a second to draw
@given(st.dictionaries(st.sampled_from([*Settings.model_fields, "x"]), st.none() | st.booleans() | st.integers(-3, 12)
       | st.floats() | st.text(max_size=3) | st.lists(st.text(max_size=2), max_size=2), max_size=4))  # fmt: skip
def test_any_change_is_whole_or_refused(changes: dict[str, Any]) -> None:
    live = LiveSettings(Settings(min_p=0.5))
    heard: list[Settings] = []
    live.listen(heard.append)
    before = live.value
    refused = None
    try:
        after = live.set(changes)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert (refused.status, refused.param in changes or (refused.param or "").startswith("aliases[")) == (400, True)
        assert live.value is before
        assert heard == [before]
    else:
        assert heard == [before, after]
        assert live.value is after
        for name in set(Settings.model_fields) - set(changes):
            assert getattr(after, name) == getattr(before, name)
        for name, value in changes.items():
            assert value is not None or getattr(after, name) == Settings.model_fields[name].default
        after.sampling(Sampling()).check(100)
        assert {setting["name"] for setting in describe(after, None)} == set(Settings.model_fields)


def test_who_has_stopped_listening_hears_no_more() -> None:
    live, heard = LiveSettings(), list[Settings]()
    live.listen(heard.append)()
    live.set({"top_k": 3})
    assert heard == [Settings()]
