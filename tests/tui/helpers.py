"""Steps that the screen's tests are made of. Each waits for what it asked for, none for a length of time."""

import asyncio
import time
from collections.abc import Callable

from scripted_handle import Play, ScriptedHandle
from textual.pilot import Pilot

from mtplx_tui.app import MtplxApp
from mtplx_tui.conversation import Phase
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.widgets.composer import Composer
from mtplx_tui.widgets.lines import Lines
from mtplx_tui.widgets.transcript import Transcript

PATIENCE_S = 20.0


async def until(_: Pilot[None], true: Callable[[], object], what: str = "") -> None:
    """Let the app run until the condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what or true}")
        await asyncio.sleep(0.01)  # not pilot.pause, which waits for the whole process, engine included, to be idle


def chat(app: MtplxApp) -> ChatScreen:
    return app.chat


def transcript(app: MtplxApp) -> Transcript:
    return chat(app).query_one(Transcript)


def composer(app: MtplxApp) -> Composer:
    return chat(app).query_one(Composer)


def lines(app: MtplxApp, name: str) -> str:
    return chat(app).query_one(f"#{name}", Lines).text


async def write(pilot: Pilot[None], text: str) -> None:
    """Type, key by key."""
    await pilot.press(*("space" if c == " " else c for c in text))


async def ask(pilot: Pilot[None], handle: ScriptedHandle, text: str) -> Play:
    """Type a message, send it, and wait until the engine has it and the chat knows."""
    app = pilot.app
    assert isinstance(app, MtplxApp)
    sent = len(handle.requests)
    composer(app).insert(text)
    await pilot.press("enter")
    await until(pilot, lambda: len(handle.requests) > sent, "the request reaches the engine")
    await until(pilot, lambda: app.chat.talk.phase not in (Phase.LOADING, Phase.RENDERING), "the chat knows of it")
    return Play.of(handle, handle.requests[-1])


async def shown(pilot: Pilot[None], text: str) -> None:
    """Wait until the transcript shows this."""
    app = pilot.app
    assert isinstance(app, MtplxApp)
    await until(pilot, lambda: text in transcript(app).text, f"the transcript shows {text!r}")
