"""The chat screen over the real engine with the bundled model."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import composer, lines, transcript, until, write

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.events import Event, FinishEvent, TokenEvent
from engine.request import Request
from mtplx_tui.app import MtplxApp
from mtplx_tui.link import LocalLink
from mtplx_tui.store import Store

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine() -> Iterator[ThreadEngine]:
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    yield engine
    engine.close()


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
