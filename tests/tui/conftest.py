"""What the screen's tests share: an app over a scripted engine, a real store, and clocks that stand still."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_handle import Clock, ScriptedHandle
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from mtplx_tui.app import MtplxApp
from mtplx_tui.glyphs import GlyphName
from mtplx_tui.link import LocalLink
from mtplx_tui.server_settings import LocalSettings
from mtplx_tui.store import Store
from mtplx_tui.themes import DARK

SERVER = "http://127.0.0.1:8000/v1"


@pytest.fixture(scope="session", autouse=True)
def styles_parsed_once() -> Iterator[None]:
    """What Textual parses of a style sheet is kept for the next app, as Textual keeps it for the next screen.

    An app parses all of it four times until it is up, which is a quarter of what a short test costs.
    """
    parse, parsed = Stylesheet._parse_rules, dict[Any, list[RuleSet]]()

    def parse_once(sheet: Stylesheet, css: str, *args: Any, **kwargs: Any) -> list[RuleSet]:
        key = (css, args, tuple(kwargs.items()), tuple(sheet._variables.items()))
        if key not in parsed:
            parsed[key] = parse(sheet, css, *args, **kwargs)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def keys_follow_soon() -> Iterator[None]:
    """Behind a key the app has to be idle for 2 ms; Textual's 40 of the whole process are most of a test's time.

    `pilot.pause` waits as ever.
    """

    async def idle(_: float) -> None:
        busy = True
        while busy:
            used = time.thread_time()
            await asyncio.sleep(0.002)
            busy = time.thread_time() - used > 0.0005

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("textual.app.wait_for_idle", idle)
        yield


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def handle(clock: Clock) -> ScriptedHandle:
    return ScriptedHandle(clock)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "sessions.db")
    yield store
    store.close()


@pytest.fixture
def make_app(handle: ScriptedHandle, store: Store, clock: Clock) -> Callable[..., MtplxApp]:
    def make(glyphs: GlyphName = "unicode", **more: Any) -> MtplxApp:
        settings = LocalSettings({}, handle)
        app = MtplxApp(
            LocalLink(handle, settings), store, lambda: SERVER, glyphs, clock=clock,
            wall=lambda: datetime(2026, 1, 5, 16, 2), settings=settings, **more,
        )  # fmt: skip
        app.theme = DARK.name  # whatever the terminal is that the tests run in
        return app

    return make
