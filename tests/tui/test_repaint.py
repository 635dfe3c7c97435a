"""What is painted anew, and what is not."""

from collections.abc import Callable

import pytest
from helpers import chat, until
from rich.style import Style

from mtplx_tui.app import MtplxApp
from mtplx_tui.themes import DARK, LIGHT
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio


def styles(app: MtplxApp) -> set[Style | None]:
    foot = chat(app).query_one("#foot", Lines)
    return {segment.style for strip in foot.render_lines(foot.size.region) for segment in strip}


async def test_another_theme_repaints_what_was_kept(make_app: Callable[..., MtplxApp]) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "quit" in chat(app).query_one("#foot", Lines).text)
        dark = styles(app)
        app.theme = LIGHT.name
        await until(pilot, lambda: not styles(app) & dark, "no colour of the other theme is left")
        app.theme = DARK.name
        await until(pilot, lambda: styles(app) == dark)


async def test_a_change_of_focus_paints_who_has_it_and_not_the_screen(
    make_app: Callable[..., MtplxApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        painted: list[object] = []
        whole = type(app.screen).refresh
        monkeypatch.setattr(
            type(app.screen), "refresh", lambda self, *a, **k: (painted.append(self), whole(self, *a, **k))[1]
        )
        await pilot.press("shift+tab")
        await until(pilot, lambda: chat(app).transcript.has_focus)
        await until(pilot, lambda: "redo" in chat(app).query_one("#foot", Lines).text)
        assert not painted
