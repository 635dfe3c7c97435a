"""The chat screen over the real engine with the bundled model."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import composer, lines, transcript, until, write

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.events import Event, FinishEvent, TokenEvent
from engine.handle import EventSink
from engine.request import Request
from mtplx_tui.app import MtplxApp
from mtplx_tui.link import LocalLink
from mtplx_tui.store import Store
from server.tool_grammar import answer_grammar
from server.tools import Tool, Tools

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    yield engine
    engine.close()


class Forcing:
    """The engine, but the first answer must be a call of the calculator: the small model makes none by itself."""

    def __init__(self, engine: ThreadEngine) -> None:
        self._engine = engine
        self.prompts: list[tuple[int, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request, on_event: EventSink) -> None:
        self.prompts.append(request.prompt)
        grammar = None
        if len(self.prompts) == 1:
            expression = {"type": "string", "enum": ["47 + 85"]}
            schema = {"type": "object", "properties": {"expression": expression}, "required": ["expression"]}
            tool = Tool("calculator", {}, schema)
            model = self._engine.model
            grammar = answer_grammar(self._engine.chat, model.vocab_size, Tools((tool,), "required"), None)
        self._engine.submit(replace(request, grammar=grammar, max_tokens=60, seed=1), on_event)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "sessions.db")
    yield store
    store.close()


@pytest.fixture
def app(engine: ThreadEngine, store: Store) -> MtplxApp:
    return MtplxApp(LocalLink(engine), store, lambda: "http://127.0.0.1:8000/v1")


async def test_it_thinks_answers_shows_its_steps_and_is_stored(app: MtplxApp, store: Store) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "READY" in lines(app, "top"))
        await write(pilot, "What is 47 + 85?")
        await pilot.press("enter")
        await until(pilot, lambda: "READY" in lines(app, "top") and "tokens a step" in lines(app, "panel"))
        assert "▸ thought" in transcript(app).text
        assert "d1 █" in lines(app, "panel")
        assert "tokens a step" in lines(app, "panel")
        assert "/step" in lines(app, "status")
        text = " ".join(transcript(app).text.split())
    rows = store.messages(store.sessions()[0].id)
    assert [row.role for row in rows] == ["user", "assistant"]
    assert rows[1].finish_reason == "stop"
    assert rows[1].content.strip() in text
    assert rows[1].stats is not None
    assert rows[1].stats["mode"] == "mtp"


async def test_escape_stops_it_within_a_step_and_keeps_the_text(app: MtplxApp, store: Store) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "READY" in lines(app, "top"))
        composer(app).insert("Tell me a story about a fox and a bear.")
        await pilot.press("enter")
        await until(pilot, lambda: "thinking" in transcript(app).text or "thought" in transcript(app).text)
        await pilot.press("escape")
        await until(pilot, lambda: "READY" in lines(app, "top"))
        text = transcript(app).text
    answer = store.messages(store.sessions()[0].id)[1]
    if answer.finish_reason == "cancelled":  # the other case: it was done before Esc came
        assert "stopped; what came is kept" in text
    assert answer.reasoning or answer.content


async def test_a_request_from_outside_is_shown_while_it_runs(app: MtplxApp, engine: ThreadEngine) -> None:
    done = threading.Event()
    tokens: list[int] = []

    def sink(event: Event) -> None:
        if isinstance(event, TokenEvent):
            tokens.extend(event.ids)
        elif isinstance(event, FinishEvent):
            done.set()

    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "READY" in lines(app, "top"))
        prompt = engine.chat.render([{"role": "user", "content": "Count to 50."}])
        request = Request(prompt=prompt, max_tokens=400, ignore_eos=True, source="api")
        engine.submit(request, sink)
        await until(pilot, lambda: f"api   {request.id[:5]} DECODE" in lines(app, "panel"))
        await until(pilot, lambda: "READY +1 outside" in lines(app, "top"))
        engine.cancel(request.id)
        await until(pilot, done.is_set)
        await until(pilot, lambda: "0 running" in lines(app, "panel"))
        assert tokens


async def test_a_tool_call_that_is_forced_goes_round_and_its_steps_and_probabilities_are_seen(
    engine: ThreadEngine, store: Store
) -> None:
    forced = Forcing(engine)
    app = MtplxApp(LocalLink(forced), store, lambda: "http://127.0.0.1:8000/v1")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "READY" in lines(app, "top"))
        composer(app).insert("/think off")
        await pilot.press("enter")
        composer(app).insert("/tools /")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.talk.toolbox is not None)
        app.chat.talk.logprobs = 3
        composer(app).insert("What is 47 + 85?")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat.calls.waiting, "the call waits")
        await pilot.press("escape")
        await until(pilot, lambda: transcript(app).decides)
        await pilot.press("a")
        await until(pilot, lambda: len(forced.prompts) == 2 and app.chat.talk.turn is None, "the model went on")
        assert "tool calculator" in transcript(app).text
        told = engine.chat.decode(forced.prompts[1])
        assert "<function=calculator>" in told
        assert "<tool_response>\n132\n</tool_response>" in told
        answers = [said for said in app.chat.talk.conversation.said if said.role == "assistant"]
        trace = app.chat.talk.traces.of(answers[0].ref)
        assert trace is not None
        assert all(len(known.top) == 3 for traced in trace.steps for known in traced.logprobs)
        assert sum(len(traced.logprobs) for traced in trace.steps) == sum(len(traced.ids) for traced in trace.steps)
    rows = store.messages(store.sessions()[0].id)
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert (rows[1].stats or {})["calls"][0]["name"] == "calculator"
