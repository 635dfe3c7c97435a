"""The first run's three hints: each is there until its thing was done once, and never in the way."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import ask, composer, lines, until, write
from scripted_handle import ScriptedHandle

from mtplx_tui.app import MtplxApp
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.tour import HINTS, Tour

MakeApp = Callable[..., MtplxApp]


def test_a_hint_that_was_seen_to_does_not_come_again(tmp_path: Path) -> None:
    file = tmp_path / "state" / "tour"
    tour = Tour(file)
    for place, hint in enumerate(HINTS, 1):
        assert f"hint {place} of 3  {hint.keys} " in plain(tour.line())
        assert width_of(tour.line()) <= 80
        tour.done(hint.name)
        tour = Tour(file)
    assert tour.hint is None
    assert tour.line() == ()
    assert not tour.skip()


def test_state_that_is_damaged_or_out_of_reach_costs_hints_only(tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff\xfe ask\n\x00")
    assert Tour(tmp_path / "odd").hint == HINTS[1]
    assert Tour(tmp_path).hint is None  # a folder
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "tour")
    tour = Tour(tmp_path / "link")
    tour.done("ask")
    assert tour.hint == HINTS[1]


@pytest.mark.anyio
async def test_each_hint_goes_when_its_thing_is_done(make_app: MakeApp, handle: ScriptedHandle, tmp_path: Path) -> None:
    tour = Tour(tmp_path / "tour")
    app = make_app(tour=tour)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "hint 1 of 3" in lines(app, "tour"))
        await write(pilot, "so")
        assert composer(app).text == "so"  # nothing takes keys away from the message
        play = await ask(pilot, handle, " it is")
        await until(pilot, lambda: "hint 2 of 3" in lines(app, "tour"))
        play.prefill().say("Yes").finish()
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))
        await pilot.press("f2")
        await until(pilot, lambda: "hint 3 of 3" in lines(app, "tour"))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, PageScreen))
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat)
        assert not app.chat.query_one("#tour").display
    assert Tour(tmp_path / "tour").hint is None


@pytest.mark.anyio
async def test_escape_hides_a_hint_but_stops_an_answer_first(
    make_app: MakeApp, handle: ScriptedHandle, tmp_path: Path
) -> None:
    tour = Tour(tmp_path / "tour")
    app = make_app(tour=tour)
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, handle, "hello")
        await pilot.press("escape")
        await until(pilot, lambda: app.chat.talk.turn is None)
        assert tour.hint == HINTS[1]
        await pilot.press("escape")
        assert tour.hint == HINTS[2]
        await pilot.press("escape")
        assert tour.hint is None
        assert composer(app).has_focus
        assert not app.chat.query_one("#tour").display
