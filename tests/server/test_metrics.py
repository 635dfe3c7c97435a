"""GET /metrics: the names that dashboards know, and figures that add up to what the requests themselves report."""

import threading
from collections.abc import Iterator

import httpx
import pytest
from http_helpers import Connect, ask, until
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import ScriptedEngine, ScriptedRow

from engine.events import Event, FinishEvent, StepEvent
from engine.handle import EngineHandle
from engine.request import Request
from server.metrics import MOST_NAMES

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(client: httpx.Client) -> Figures:
    """Every sample by its name and labels."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def figure(figures: Figures, name: str, **labels: str) -> float:
    """The sum of all samples of a name that have these labels."""
    return sum(value for (other, have), value in figures.items() if other == name and have >= labels.items())


def settled(client: httpx.Client, name: str, value: float, **labels: str) -> Figures:
    """The figures once one of them is what it should be: an answer may reach its client before it is counted."""
    seen: list[Figures] = []

    def reached() -> bool:
        seen[:] = [scrape(client)]
        return figure(seen[0], name, **labels) == value

    until(reached)
    return seen[0]


@pytest.fixture
def fresh(connect: Connect) -> httpx.Client:
    """A client on a server that has counted nothing yet."""
    return connect()


def test_every_answer_is_counted_by_route_and_status(fresh: httpx.Client) -> None:
    ask(fresh)
    ask(fresh, stream=True)
    ask(fresh, temperature=9)
    fresh.get("/v1//models/")
    fresh.get("/v1/models/some/other")
    fresh.get("/secret/path")
    fresh.delete("/v1/chat/completions")
    fresh.request("BREW", "/v1/models")
    fresh.get("/v1/models", headers={"host": "evil.example"})
    counted = {
        tuple(dict(labels)[name] for name in ("handler", "method", "status")): value
        for (name, labels), value in scrape(fresh).items()
        if name == "mtplx_http_requests_total"
    }
    assert counted == {
        ("/v1/chat/completions", "POST", "200"): 2,
        ("/v1/chat/completions", "POST", "400"): 1,
        ("/v1/chat/completions", "DELETE", "405"): 1,
        ("/v1/models", "GET", "200"): 1,
        ("/v1/models", "other", "405"): 1,
        ("/v1/models/{name:path}", "GET", "404"): 1,
        ("none", "GET", "404"): 1,
        ("none", "GET", "403"): 1,
    }


def test_drafts_are_counted_by_source_and_place(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.step(3, 3)
        row.say("abcd", tokens=4)
        row.step(3, 1)
        row.say("ef", tokens=2)
        row.step(4, 0, source="copy")
        row.say("g")
        row.step(0, 0, source="none")
        row.say("h")
        row.step(3, 2, taken=1)  # the answer ended with its first draft: the others were judged on nothing
        row.say("i")
        row.finish()

    scripted.script = script
    ask(fresh)
    figures = settled(fresh, "mtplx_request_success_total", 1, finished_reason="stop")
    total = "mtplx_spec_decode_num"
    assert figure(figures, f"{total}_drafts_total", source="mtp") == 3
    assert figure(figures, f"{total}_draft_tokens_total", source="mtp") == 9
    assert figure(figures, f"{total}_accepted_tokens_total", source="mtp") == 5
    accepted = [figure(figures, f"{total}_accepted_tokens_per_pos_total", position=str(p)) for p in range(4)]
    assert accepted == [3, 1, 1, 0]
    rejected = {
        tuple(sorted(labels)): value
        for (name, labels), value in figures.items()
        if name == f"{total}_rejected_tokens_per_pos_total"
    }
    assert rejected == {(("position", "1"), ("source", "mtp")): 1, (("position", "0"), ("source", "copy")): 1}
    assert figure(figures, "mtplx_generation_tokens_total") == 9
    assert figure(figures, "mtplx_time_to_first_token_seconds_count") == 1
    assert figure(figures, "mtplx_inter_token_latency_seconds_count") == 5, "one for each token after the first step"
    assert figure(figures, "mtplx_e2e_request_latency_seconds_count") == 1


def test_requests_are_counted_where_they_are_and_where_they_were_cancelled(
    fresh: httpx.Client, scripted: ScriptedEngine
) -> None:
    def script(row: ScriptedRow) -> None:
        phase = row.request.id
        if phase != "waiting":
            row.prefill(1)
        if phase == "decode":
            row.say("a")
        row.wait()

    scripted.script = script
    phases = ("waiting", "prefill", "decode")
    for phase in phases:
        scripted.submit(Request((5,) * 9, id=phase), lambda event: None)
    settled(fresh, "mtplx_num_requests_running", 2)
    settled(fresh, "mtplx_num_requests_waiting", 1)
    for phase in phases:
        scripted.cancel(phase)
        settled(fresh, "mtplx_requests_cancelled_total", 1, phase=phase)
    figures = scrape(fresh)
    assert figure(figures, "mtplx_num_requests_running") == figure(figures, "mtplx_num_requests_waiting") == 0
    assert figure(figures, "mtplx_request_success_total") == 0
    assert figure(figures, "mtplx_prompt_tokens_total") == 18, "the one that waited was never begun"


def test_failed_requests_are_not_successes(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: row.finish("error", error="it broke")
    assert ask(fresh).status_code == 500
    figures = settled(fresh, "mtplx_request_errors_total", 1)
    assert figure(figures, "mtplx_request_success_total") == 0


def test_cache_hits_and_what_is_missing_are_counted(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.keep(3, evicted=2)

    def read(cached: int, miss: str) -> None:
        def script(row: ScriptedRow) -> None:
            row.prefill(len(row.request.prompt) - 1, cached, miss)
            row.finish()

        scripted.script = script
        scripted.submit(Request((5,) * 101), lambda event: None)

    read(0, "nothing cached yet")
    read(60, "no checkpoint further on: prompts part at token 75, after the last one at 60")
    read(20, "no checkpoint further on: prompts part at token 33, after the last one at 20")
    read(100, "everything cached on this way was used")
    figures = settled(fresh, "mtplx_request_success_total", 4)
    assert figure(figures, "mtplx_prefix_cache_queries_total") == 400
    assert figure(figures, "mtplx_prefix_cache_hits_total") == 180
    assert figure(figures, "mtplx_prefix_cache_lookups_total", result="hit") == 3
    assert figure(figures, "mtplx_prefix_cache_lookups_total", result="miss") == 1
    reason = "no checkpoint further on: prompts part at token N, after the last one at N"
    assert figure(figures, "mtplx_prefix_cache_misses_total", reason=reason) == 2
    assert figure(figures, "mtplx_prefix_cache_misses_total") == 3
    assert figure(figures, "mtplx_prefix_cache_bytes") == 300_000
    assert figure(figures, "mtplx_prefix_cache_entries") == 3
    assert figure(figures, "mtplx_prefix_cache_evictions_total") == 2


def test_unknown_fields_are_counted_by_a_bounded_number_of_names(fresh: httpx.Client) -> None:
    ask(fresh, wizard=1, **{'ev"il\n{name}': 2})
    ask(fresh, wizard=None)
    figures = scrape(fresh)
    assert figure(figures, "mtplx_unknown_fields_total", field="wizard") == 2
    assert figure(figures, "mtplx_unknown_fields_total", field="ev?il??name?") == 1
    for batch in range(MOST_NAMES // 10):
        ask(fresh, **{f"field_{batch}_{number}": 1 for number in range(15)})
    names = [labels for (name, labels) in scrape(fresh) if name == "mtplx_unknown_fields_total"]
    assert len(names) == MOST_NAMES + 1
    assert frozenset({("field", "other")}) in names


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_unknown_fields_are_counted_in_every_api(fresh: httpx.Client, path: str, body: dict[str, object]) -> None:
    assert fresh.post(path, json={**body, "wizard": 1}).status_code == 200
    assert figure(scrape(fresh), "mtplx_unknown_fields_total", field="wizard") == 1


def test_the_engine_and_its_model_are_described(
    fresh: httpx.Client, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.age = 2.5
    figures = scrape(fresh)
    assert figure(figures, "mtplx_engine_up") == 1
    assert figure(figures, "mtplx_engine_heartbeat_age_seconds") == 2.5
    assert figure(figures, "mtplx_engine_restarts_total") == 0
    assert figure(figures, "mtplx_model_info", model_name="demo-13m", mode="mtp", head="mtp") == 1
    monkeypatch.setattr(scripted, "restarts", 2, raising=False)
    assert figure(scrape(fresh), "mtplx_engine_restarts_total") == 2
    scripted.fail("it broke at /home/me")
    response = fresh.get("/metrics")
    assert "mtplx_engine_up 0.0" in response.text
    assert "/home" not in response.text


def test_two_servers_of_one_process_count_for_themselves(connect: Connect) -> None:
    one, other = connect(), connect()
    ask(one, wizard=1)
    assert figure(scrape(one), "mtplx_unknown_fields_total") == 1
    assert figure(scrape(other), "mtplx_unknown_fields_total") == 0
    assert figure(scrape(other), "mtplx_http_requests_total", handler="/v1/chat/completions") == 0


@pytest.fixture
def ended(demo_engine: EngineHandle) -> Iterator[list[Event]]:
    """What the real engine tells during a test."""
    heard: list[Event] = []
    unlisten = demo_engine.listen(heard.append)
    yield heard
    unlisten()


def test_the_real_engines_figures_are_those_of_its_requests(demo: httpx.Client, ended: list[Event]) -> None:
    before = scrape(demo)
    answers = [
        ask(demo, "Tell me a short story about a fox.", seed=3, temperature=1, max_tokens=60),
        ask(demo, "Tell me a short story about a fox.", seed=4, temperature=1, max_tokens=60),
        ask(demo, "Count to 30.", max_tokens=40, wizard=True),
    ]
    usages = [answer.json()["usage"] for answer in answers]
    settled(demo, "mtplx_request_success_total", figure(before, "mtplx_request_success_total") + 3)
    after = scrape(demo)

    def gained(name: str, **labels: str) -> float:
        return figure(after, name, **labels) - figure(before, name, **labels)

    until(lambda: sum(isinstance(event, FinishEvent) for event in ended) == 3)
    stats = [event.stats for event in ended if isinstance(event, FinishEvent)]
    steps = [event for event in ended if isinstance(event, StepEvent)]
    assert gained("mtplx_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
    assert gained("mtplx_generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
    assert gained("mtplx_prefix_cache_hits_total") == sum(
        usage["prompt_tokens_details"]["cached_tokens"] for usage in usages
    )
    assert gained("mtplx_spec_decode_num_draft_tokens_total") == sum(step.drafted for step in steps)
    assert gained("mtplx_spec_decode_num_drafts_total") == sum(step.drafted > 0 for step in steps)
    for place in range(16):
        accepted = sum(stat.accepted_by_depth[place] for stat in stats if place < len(stat.accepted_by_depth))
        judged = sum(stat.drafted_by_depth[place] for stat in stats if place < len(stat.drafted_by_depth))
        position = str(place)
        assert gained("mtplx_spec_decode_num_accepted_tokens_per_pos_total", position=position) == accepted
        rejected = gained("mtplx_spec_decode_num_rejected_tokens_per_pos_total", position=position)
        assert accepted + rejected == judged
    assert gained("mtplx_request_queue_time_seconds_count") == 3
    assert gained("mtplx_time_to_first_token_seconds_count") == 3
    assert gained("mtplx_unknown_fields_total", field="wizard") == 1
    assert figure(after, "mtplx_prefix_cache_limit_bytes") == 1 << 30


def test_a_scrape_never_waits_for_the_engine(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()
    scripted.script = lambda row: (row.say("a"), row.wait(gate), row.finish())
    scripted.submit(Request((5,) * 9, id="stuck"), lambda event: None)
    settled(fresh, "mtplx_num_requests_running", 1)
    gate.set()
    settled(fresh, "mtplx_num_requests_running", 0)


VLLM = [
    "num_requests_running",
    "num_requests_waiting",
    "request_queue_time_seconds_bucket",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
]


def test_names_are_those_of_vllm_with_another_prefix(fresh: httpx.Client, scripted: ScriptedEngine) -> None:
    scripted.script = lambda row: (row.prefill(1), row.step(2, 1), row.say("a", tokens=2), row.finish())
    ask(fresh)
    names = {name for name, _ in settled(fresh, "mtplx_request_success_total", 1)}
    assert {f"mtplx_{name}" for name in VLLM} <= names
