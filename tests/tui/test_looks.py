"""What every room looks like, as SVG, in every way to draw and at both sizes. After `pytest tests/tui
--snapshot-update`, look at each picture.

An app is started once for a way to draw, and walks through the rooms: starts are what costs time.
"""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ask, chat, composer, shown, until
from pytest_textual_snapshot import SVGImageExtension
from rich.segment import Segment
from scripted_handle import Play, ScriptedHandle
from syrupy.assertion import SnapshotAssertion
from test_models import COMING, OTHER, ROWS
from test_runs import keep, speed, tuning
from textual.pilot import Pilot
from textual.strip import Strip

from engine.events import SpanKind
from mtplx_tui.app import MtplxApp
from mtplx_tui.glyphs import ASCII, mask
from mtplx_tui.layout.spans import width_of
from mtplx_tui.machine import Machine
from mtplx_tui.models_page.downloads import Download
from mtplx_tui.rooms import TABS
from mtplx_tui.runs.job import Job
from mtplx_tui.screens import dashboard, models
from mtplx_tui.screens.bench import BenchScreen
from mtplx_tui.screens.chat import ChatScreen
from mtplx_tui.screens.models import ModelsScreen
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.screens.page_room import PageRoom
from mtplx_tui.screens.room import Room
from mtplx_tui.screens.settings import SettingsScreen
from mtplx_tui.screens.tune import TuneScreen
from mtplx_tui.widgets.lines import Lines

MakeApp = Callable[..., MtplxApp]
Scene = Callable[[Pilot[None], MtplxApp, ScriptedHandle], Awaitable[None]]
SIZES = ((120, 40), (80, 24))
SHAPES = [(5, 4), (3, 4), (1, 4), (5, 4), (2, 4), (4, 4), (1, 2), (3, 2), (2, 1), (1, 0)]
"""Tokens that a step gave, of how many drafted."""
DEEP = [(9, 8), (4, 8), (1, 8), (7, 8), (2, 8)]

slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same ids, machine, models and measurements in every run."""
    monkeypatch.setattr("engine.request.secrets.token_hex", lambda _: "0412000000000000")
    one = Machine(9_800_000_000, 24_000_000_000, 13_000_000_000, 0, "normal")
    monkeypatch.setattr(dashboard, "look", lambda: one)
    monkeypatch.setattr(models, "shelf", lambda: list(ROWS))
    monkeypatch.setattr(models, "_disk", lambda: "disk: 212.0 GB of 494.0 GB free")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/me/.config")  # it is shown, and nothing is there
    keep("older", speed(96, "2026-11-29T10:00:00+00:00"))
    keep("newer", speed(120))


def page(app: MtplxApp) -> str:
    return app.screen.query_one("#page", Lines).text


def decode(play: Play, steps: int, shapes: list[tuple[int, int]], kind: SpanKind = "text") -> None:
    for n in range(steps):
        tokens, drafted = shapes[(n * 7 + n // 3) % len(shapes)]
        seconds = 0.010 + 0.0045 * drafted + (0.02 if n % 41 == 40 else 0.0)
        play.say(*(" so" for _ in range(tokens)), drafted=drafted, refused=" other" if tokens <= drafted else None,
                 seconds=seconds, kind=kind)  # fmt: skip


async def in_chat(pilot: Pilot[None], app: MtplxApp, handle: ScriptedHandle) -> None:
    """An answer in the middle of its text, and three requests from outside."""
    play = (await ask(pilot, handle, "Why does the verifier emit one extra token per step?")).prefill(seconds=0.38)
    play.say("The user asks", " about", " the bonus token.", kind="reasoning")
    decode(play, 150, SHAPES, "reasoning")
    play.say("A step", " scores", " **K+1** positions", " in one pass.\n\n", refused=" other")
    play.say("1. accepted", " drafts", "\n2. and", " one", " more\n\n")
    play.say("```python\n", "def verify(draft, target):\n", "    return draft == target\n```\n\n", refused="x")
    play.say("So a step", " that accepts", " 3 drafts", " gives", " `4`")
    Play.outside(handle, "r0411aa", source="api:codex", prompt_tokens=512).prefill().say("ok").finish()
    Play.outside(handle, "r0413aa", source="api:claude-cli", prompt_tokens=1200).prefill(744, seconds=0.0)
    Play.outside(handle, "r0414aa", source="api")
    composer(app).insert("and with temperature > 0?")
    await shown(pilot, "3 drafts gives 4")
    await until(pilot, lambda: app.services.bridge.state.active == 3, "all have come")
    await until(pilot, lambda: app.services.recorder.saved_at is not None, "the turn is saved")
    chat(app).figures.draw()


async def in_help(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("f1")
    await until(pilot, lambda: isinstance(app.screen, PageScreen))


async def in_dashboard(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("escape", "f3")
    await until(pilot, lambda: "api:cl" in page(app))


async def in_models(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen._view.every is not None)
    assert isinstance(app.screen, ModelsScreen)
    app.screen.downloads.items += [COMING, Download(OTHER, "queued")]
    await pilot.press("down", "down")
    await until(pilot, lambda: "queued" in page(app))


async def in_tune(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("f5")
    await until(pilot, lambda: isinstance(app.screen, TuneScreen))
    assert isinstance(app.screen, TuneScreen)
    job = Job(["cache", "list"])
    assert job.wait(60)
    job.result, job._took, job.arguments = tuning(2), 74.0, ("tune",)
    app.screen.job = job
    await until(pilot, lambda: " kept" in page(app))


async def in_bench(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("f6")
    await until(pilot, lambda: isinstance(app.screen, BenchScreen) and "Speed of newer" in page(app))


async def in_settings(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and "temperature" in page(app))
    await pilot.press("down", "down")


async def in_display(pilot: Pilot[None], app: MtplxApp, _: ScriptedHandle) -> None:
    await pilot.press("left", "left")
    await until(pilot, lambda: "thinking" in page(app))


ROOMS: dict[str, Scene] = {
    "chat": in_chat, "help": in_help, "dashboard": in_dashboard, "models": in_models, "tune": in_tune,
    "bench": in_bench, "settings": in_settings, "display": in_display,
}  # fmt: skip


ROOMY = (250, 90)
"""A terminal in which nothing is cut."""
WORD = re.compile(r"[^\W\d_]{2,}")
SHORT = {tab.short for tab in TABS}
"""Words that are others' beginnings by intent."""


def drawn(app: MtplxApp) -> list[str]:
    """The lines of what is uppermost: of a box its own, without the room behind it."""
    lines = [strip.text for strip in app.screen._compositor.render_strips()]
    for box in app.screen.query("#box"):
        x, y, width, height = box.region
        lines = [Strip([Segment(line)]).crop(x, x + width).text for line in lines[y : y + height]]
    return lines


def cut_words(narrow: list[str], roomy: list[str], ellipsis: str) -> list[str]:
    """Lines with a word that is the beginning of one in the roomy terminal, and that no ellipsis follows."""
    whole = set(WORD.findall("\n".join(roomy))) | SHORT
    return [
        f"{word[0]!r} in {line!r}"
        for line in narrow
        for word in WORD.finditer(line)
        if word[0] not in whole
        and not line.startswith(ellipsis, word.end())
        and any(other.startswith(word[0]) for other in whole)
    ]


def test_a_cut_word_is_found_and_one_with_an_ellipsis_is_none() -> None:
    roomy = ["acceptance of drafts by depth"]
    assert cut_words(["│acceptanc│", "acceptance"], roomy, "…") == ["'acceptanc' in '│acceptanc│'"]
    assert cut_words(["acceptanc… of", "acceptance by"], roomy, "…") == []


async def redrawn(pilot: Pilot[None], app: MtplxApp, size: tuple[int, int]) -> None:
    """Have the rooms below what is uppermost drawn too, which they else are at some later beat."""
    for room in app._background_screens:
        if isinstance(room, Room):
            await until(pilot, lambda room=room: room.query_one("#top").size.width == size[0])  # type: ignore[misc]
            room.draw_top()
            if isinstance(room, PageRoom):
                room.draw()
            elif isinstance(room, ChatScreen):
                room.figures.draw()
    await pilot.pause()


async def pictures(app: MtplxApp, handle: ScriptedHandle, rooms: dict[str, Scene]) -> dict[str, str]:
    """A walk through rooms and what opens above them: the picture of each at both sizes.

    Nothing is cut without an ellipsis, and what others wrote does not reach the terminal as it is.
    """
    glyphs = app.services.glyphs
    taken = {}
    async with app.run_test(size=SIZES[0]) as pilot:
        for room, scene in rooms.items():
            await scene(pilot, app, handle)
            await pilot.resize_terminal(*ROOMY)
            await pilot.pause()
            roomy = drawn(app)
            for size in SIZES:
                await pilot.resize_terminal(*size)
                await pilot.pause()
                await redrawn(pilot, app, size)
                now = drawn(app)
                cut = cut_words(now, roomy, glyphs.ellipsis)
                assert not cut, f"{room} {size}: {cut[:3]}"
                assert now == [mask(line) for line in now], f"{room} {size}: what others wrote"
                odd = [] if glyphs is not ASCII else [line for line in now if not line.isascii()]
                assert not odd, f"{room} {size}: {odd}"
                for lines in app.screen.query(Lines):
                    wide = [line for line in lines._lines if width_of(line) > max(lines.size.width, 0)]
                    assert not lines.size.width or not wide, f"{room} {size}: {wide[:3]}"
                taken[f"{room}-{size[0]}x{size[1]}"] = app.export_screenshot()
            await pilot.resize_terminal(*SIZES[0])
    return taken


def different(taken: dict[str, str], snapshot: SnapshotAssertion) -> list[str]:
    """Names of the pictures that are not the approved ones."""
    approved = snapshot.use_extension(SVGImageExtension)
    return [name for name, picture in taken.items() if approved(name=name) != picture]


in_every_way = pytest.mark.parametrize(
    "way", ["unicode", *(pytest.param(way, marks=slow) for way in ("ascii", "ansi", "no-colour"))]
)


def app_in(way: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> MtplxApp:
    """The app with these glyphs or colours."""
    if way == "no-colour":
        monkeypatch.setenv("NO_COLOR", "1")
    app = make_app("ascii" if way == "ascii" else "unicode")
    if way == "ansi":
        app.theme = "ansi-dark"
    return app


@pytest.mark.anyio
@in_every_way
async def test_rooms(
    way: str, snapshot: SnapshotAssertion, make_app: MakeApp, handle: ScriptedHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = await pictures(app_in(way, make_app, monkeypatch), handle, ROOMS)
    assert not different(taken, snapshot)


@pytest.mark.anyio
@slow
async def test_a_dashboard_of_deep_drafts(
    snapshot: SnapshotAssertion, make_app: MakeApp, handle: ScriptedHandle
) -> None:
    async def deep(pilot: Pilot[None], app: MtplxApp, handle: ScriptedHandle) -> None:
        decode((await ask(pilot, handle, "hello")).prefill(), 150, DEEP)
        await pilot.press("f3")
        await until(pilot, lambda: "150 steps" in page(app))

    taken: dict[str, Any] = await pictures(make_app(), handle, {"deep": deep})
    assert not different(taken, snapshot)
