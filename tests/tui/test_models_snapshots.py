"""What the models room looks like, as SVG. After `pytest tests/tui --snapshot-update`, look at each picture."""

from collections.abc import Callable
from typing import Any

import pytest
from helpers import until
from test_models import COMING, OTHER, ROWS, page
from textual.pilot import Pilot

from mtplx_tui.app import MtplxApp
from mtplx_tui.models_page.downloads import Download
from mtplx_tui.screens import models
from mtplx_tui.screens.models import ModelsScreen

SIZES = [(120, 40), (80, 24)]


@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES, ids=["120x40", "80x24"])
def test_models(
    snap_compare: Any, make_app: Callable[..., MtplxApp], size: Any, glyphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "shelf", lambda: list(ROWS))
    monkeypatch.setattr(models, "_disk", lambda: "disk: 212.0 GB of 494.0 GB free")

    async def scene(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, MtplxApp)
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen._view.every is not None)
        assert isinstance(app.screen, ModelsScreen)
        app.screen.downloads.items += [COMING, Download(OTHER, "queued")]
        await pilot.press("down", "down")
        await until(pilot, lambda: "queued" in page(app))
        await pilot.pause()

    assert snap_compare(make_app(glyphs), terminal_size=size, run_before=scene)
