"""What the chat screen looks like, as SVG. After `pytest tests/tui --snapshot-update`, look at each picture."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from helpers import ask, chat, composer, lines, shown, transcript, until
from scripted_handle import Play, ScriptedHandle
from textual.pilot import Pilot

from mtplx_tui.app import MtplxApp
from mtplx_tui.themes import LIGHT

WIDE, NARROW = (120, 40), (80, 24)
MakeApp = Callable[..., MtplxApp]
Scene = Callable[[Pilot[None]], Awaitable[None]]

QUESTION = "Why does the verifier emit one extra token per step?"
THINKING = (
    ("The user asks", " about", " the bonus token."), (" In speculative", " decoding", " the target scores"),
    (" K+1 positions", " in one pass,"), (" so position", " K+1", " is free when", " all drafts hold.\n"),
    ("When", " draft j", " is refused"), (" the target's", " own token", " replaces it."),
)  # fmt: skip
ANSWER = (
    ("The target model", " scores", " **K+1** positions", " in one forward pass.", " The last one"),
    (" is a *real sample*", " from the target,"), (" so",), (" it is", " always kept:\n\n"),
    ("1. accepted", " = first mismatch", " or K\n2. emitted", " = accepted", " + 1\n\n"),
    ("```python\n", "def verify(draft, target):\n"), ("    for d, pair", " in enumerate(zip(draft, target)):\n"),
    ("        if pair[0]", " != pair[1]:\n", "            return d\n```\n\n"),
    ("So a step", " with 3 accepted", " drafts gives", " `4`", " tokens"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def fixed_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.request.secrets.token_hex", lambda _: "0412000000000000")


@pytest.fixture
def decoding(handle: ScriptedHandle) -> Scene:
    """An answer in the middle of its text, with two requests from outside."""

    async def scene(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, MtplxApp)
        play = (await ask(pilot, handle, QUESTION)).prefill(seconds=0.38)
        for tokens in THINKING:
            play.say(*tokens, kind="reasoning", refused=None if len(tokens) == 5 else " other")
        for _ in range(2):  # long enough for the figures to be steady
            for tokens in ANSWER[:4]:
                play.say(*(" so" for _ in tokens), kind="reasoning", refused=None if len(tokens) == 5 else " other")
        for tokens in ANSWER:
            play.say(*tokens, refused=None if len(tokens) == 5 else " other", seconds=0.041)
        Play.outside(handle, "r0413aa", prompt_tokens=1200).prefill(744, seconds=0.0)
        Play.outside(handle, "r0414aa")
        composer(app).insert("and with temperature > 0?")
        await shown(pilot, "drafts gives 4 tokens")
        await until(pilot, lambda: app.services.recorder.saved_at is not None, "the turn is saved")
        chat(app).figures.draw()
        await pilot.pause()

    return scene


@pytest.mark.slow
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["120x40", "80x24"])
class TestLooks:
    """What the chat does beside an answer under way, which test_looks.py draws in every way."""

    def test_thinking_expanded(
        self, snap_compare: Any, make_app: MakeApp, decoding: Scene, size: tuple[int, int]
    ) -> None:
        async def scene(pilot: Pilot[None]) -> None:
            await decoding(pilot)
            app = pilot.app
            assert isinstance(app, MtplxApp)
            await pilot.press("ctrl+t")
            if transcript(app).max_scroll_y:
                transcript(app).scroll_rows(-100)
                await until(pilot, lambda: "^End follows" in lines(app, "status"))

        assert snap_compare(make_app(), terminal_size=size, run_before=scene)

    def test_a_light_theme(self, snap_compare: Any, make_app: MakeApp, decoding: Scene, size: tuple[int, int]) -> None:
        app = make_app()
        app.theme = LIGHT.name
        assert snap_compare(app, terminal_size=size, run_before=decoding)

    def test_an_empty_chat(self, snap_compare: Any, make_app: MakeApp, size: tuple[int, int]) -> None:
        async def scene(pilot: Pilot[None]) -> None:
            await shown(pilot, "Ask something")

        assert snap_compare(make_app(), terminal_size=size, run_before=scene)

    def test_a_failed_load(
        self, snap_compare: Any, make_app: MakeApp, handle: ScriptedHandle, size: tuple[int, int]
    ) -> None:
        async def scene(pilot: Pilot[None]) -> None:
            await shown(pilot, "No model is running")

        handle.state = "failed"
        assert snap_compare(make_app(), terminal_size=size, run_before=scene)


def test_ascii_and_no_colour_say_as_much_as_shapes_and_colours_do() -> None:
    """Pictures are compared; here the shapes themselves: no two fates look alike."""
    from mtplx_tui.glyphs import ASCII, UNICODE

    for glyphs in (ASCII, UNICODE):
        assert len({glyphs.accepted, glyphs.refused, glyphs.unused, glyphs.bonus}) == 4


def test_ascii_draws_nothing_but_ascii(make_app: MakeApp, handle: ScriptedHandle, decoding: Scene) -> None:
    import asyncio

    async def run() -> None:
        app = make_app("ascii")
        async with app.run_test(size=WIDE) as pilot:
            await decoding(pilot)
            for key in ("ctrl+t", "ctrl+n", "f1"):  # ctrl+n: a notice, for an answer is being written
                await pilot.press(key)
                await pilot.pause()
                drawn = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
                assert {c for c in drawn if not c.isascii()} == set()
            assert "v thought" in transcript(app).text
            assert "#" in lines(app, "panel")

    asyncio.run(run())
