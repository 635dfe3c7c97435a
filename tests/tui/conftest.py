"""What the screen's tests share: an app over a scripted engine, a real store, and clocks that stand still."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from scripted_handle import Clock, ScriptedHandle

from mtplx_tui.app import MtplxApp
from mtplx_tui.glyphs import GlyphName
from mtplx_tui.link import LocalLink
from mtplx_tui.server_settings import LocalSettings
from mtplx_tui.store import Store
from mtplx_tui.themes import DARK

SERVER = "http://127.0.0.1:8000/v1"


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
