"""What the rooms look like, as SVG. After `pytest tests/tui --snapshot-update`, look at each picture."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ask, until
from scripted_handle import Play, ScriptedHandle
from test_runs import keep, speed, tuning
from textual.pilot import Pilot

from mtplx_tui.app import MtplxApp
from mtplx_tui.machine import Machine
from mtplx_tui.runs.job import Job
from mtplx_tui.screens import dashboard
from mtplx_tui.screens.job_room import JobRoom
from mtplx_tui.widgets.lines import Lines

MakeApp = Callable[..., MtplxApp]
SIZES = [(120, 40), (80, 24)]
SHAPES = [(5, 4), (3, 4), (1, 4), (5, 4), (2, 4), (4, 4), (1, 2), (3, 2), (2, 1), (1, 0)]
"""Tokens that a step gave, of how many drafted."""


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ids and the same machine in every run."""
    monkeypatch.setattr("engine.request.secrets.token_hex", lambda _: "0412000000000000")
    one = Machine(9_800_000_000, 24_000_000_000, 13_000_000_000, 0, "normal")
    monkeypatch.setattr(dashboard, "look", lambda: one)


async def busy(pilot: Pilot[None], handle: ScriptedHandle) -> None:
    """A chat that has run for a while, and three requests from outside."""
    play = (await ask(pilot, handle, "Why does the verifier emit one extra token per step?")).prefill(seconds=0.38)
    for n in range(150):
        tokens, drafted = SHAPES[(n * 7 + n // 3) % len(SHAPES)]
        seconds = 0.010 + 0.0045 * drafted + (0.02 if n % 41 == 40 else 0.0)
        refused = " other" if tokens <= drafted else None
        play.say(*(" so" for _ in range(tokens)), drafted=drafted, refused=refused, seconds=seconds)
    Play.outside(handle, "r0411aa", source="api:codex", prompt_tokens=512).prefill().say("ok").finish()
    Play.outside(handle, "r0413aa", source="api:claude-cli", prompt_tokens=1200).prefill(744, seconds=0.0)
    Play.outside(handle, "r0414aa", source="api")


@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
def test_dashboard(snap_compare: Any, make_app: MakeApp, handle: ScriptedHandle, size: Any, glyphs: str) -> None:
    async def scene(pilot: Pilot[None]) -> None:
        await busy(pilot, handle)
        app = pilot.app
        assert isinstance(app, MtplxApp)
        await until(pilot, lambda: app.services.bridge.state.active == 3, "all have come")
        await pilot.press("f3")
        await until(pilot, lambda: "api:claude" in app.screen.query_one("#page", Lines).text)
        await pilot.pause()

    assert snap_compare(make_app(glyphs), terminal_size=size, run_before=scene)


@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
@pytest.mark.parametrize("room", ["tune", "bench"])
def test_measurements(
    snap_compare: Any,
    make_app: MakeApp,
    room: str,
    size: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    keep("older", speed(96, "2026-11-29T10:00:00+00:00"))
    keep("newer", speed(120))

    async def scene(pilot: Pilot[None]) -> None:
        await pilot.press({"tune": "f5", "bench": "f6"}[room])
        await until(pilot, lambda: isinstance(pilot.app.screen, JobRoom))
        screen = pilot.app.screen
        assert isinstance(screen, JobRoom)
        if room == "tune":
            job = Job(["cache", "list"])
            job.wait(60)
            job.result, job._took, job.arguments = tuning(2), 74.0, ("tune",)
            screen.job = job
            await until(pilot, lambda: " kept" in screen.query_one("#page", Lines).text)
        await pilot.pause()

    assert snap_compare(make_app(), terminal_size=size, run_before=scene)
