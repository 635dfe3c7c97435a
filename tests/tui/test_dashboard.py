"""The dashboard: what it shows of what the engine did, and what can be done there."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import ask, until
from scripted_handle import Clock, Play, ScriptedHandle
from textual.pilot import Pilot

from engine.events import (
    FinishEvent,
    PrefillEvent,
    QueuedEvent,
    Span,
    Stats,
    StepEvent,
    TokenEvent,
    Usage,
)
from engine.handle import ModelInfo
from engine.request import Sampling
from mtplx_tui.app import MtplxApp
from mtplx_tui.charts.columns import AXIS, column_chart
from mtplx_tui.charts.strip import strip
from mtplx_tui.dashboard import boxes
from mtplx_tui.dashboard.breakeven import MIN_STEPS, advice, break_even, step_seconds
from mtplx_tui.dashboard.page import page as page_of
from mtplx_tui.dashboard.view import View
from mtplx_tui.glyphs import ASCII, UNICODE, Glyphs
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.machine import Machine
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.state import EngineState, Snapshot, depth_rates
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]


def step(number: int, drafted: int, accepted: int, seconds: float = 0.04, rows: int = 1) -> StepEvent:
    refused = "was" if accepted < drafted else None
    return StepEvent("r1", number, number, drafted, accepted, ("a",) * (accepted + 1), refused, seconds, rows, 9)


def page(app: MtplxApp) -> str:
    return app.screen.query_one("#page", Lines).text


async def enter(pilot: Pilot[None]) -> DashboardScreen:
    await pilot.press("f3")
    app = pilot.app
    assert isinstance(app, MtplxApp)
    await until(pilot, lambda: isinstance(app.screen, DashboardScreen) and page(app), "the dashboard is drawn")
    assert isinstance(app.screen, DashboardScreen)
    return app.screen


class TestStrip:
    def test_a_column_is_an_unbroken_run_and_then_the_refusal(self) -> None:
        rows = [plain(line) for line in strip([step(3, 2, 0), step(2, 2, 1), step(1, 2, 2)], 12, UNICODE)]
        assert rows == ["out      321", "d2       ■x ", "d1       ■■x", "ms       ███"]

    def test_ascii_has_the_same_shape(self) -> None:
        assert plain(strip([step(1, 1, 1)], 6, ASCII)[1]) == "d1   #"

    def test_it_shows_the_newest_where_not_all_fit(self) -> None:
        steps = [step(n, 1, n % 2) for n in range(50, 0, -1)]
        assert plain(strip(steps, 14, UNICODE)[0]) == "out 1212121212"[:4] + "2121212121"

    @pytest.mark.parametrize("width", [0, 3, 4, 5, 80])
    def test_every_row_is_as_wide_as_asked(self, width: int) -> None:
        rows = strip([step(1, 3, 1)] * 9, width, UNICODE)
        assert all(width_of(row) == max(width, 4) for row in rows)

    def test_ten_tokens_and_more_are_a_plus(self) -> None:
        assert plain(strip([step(1, 9, 9)], 5, UNICODE)[0]) == "out +"


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_where_it_is_low_the_deepest_drafts_leave_and_it_says_so(glyphs: Glyphs) -> None:
    steps = tuple(step(n, 8, n % 9) for n in range(40, 0, -1))
    snapshot = Snapshot(None, steps, depth_rates(steps), 40, (), (), ())
    view = View(snapshot, steps, None, Machine(1, 2, 1, 0, "normal"), "", ())
    for height, hidden in ((9, 4), (8, 5), (12, 1), (13, 0), (20, 0)):
        text = "\n".join(plain(line) for line in boxes.waterfall(view, 80, height, glyphs))
        assert all(f" {name} " in text for name in ("out", "d1", "ms", "now")), text
        assert (f"+{hidden} deeper" in text) == (hidden > 0), text
        assert f"d{8 - hidden} " in text
        assert f"d{9 - hidden} " not in text
    for height, hidden in ((6, 5), (9, 2), (11, 0), (14, 0)):
        text = "\n".join(plain(line) for line in boxes.acceptance(view, 40, height, glyphs))
        assert (f"+{hidden} deeper" in text) == (hidden > 0), text
        assert f"d{8 - hidden} " in text
        assert f"d{9 - hidden} " not in text
        assert "break-even n/a" in text


MODEL = ModelInfo(
    name="m", path="", family="", context=32_768, vocab_size=1, mode="mtp", depth=None, head="", quantization=None,
    dtype="", device="", weight_bytes=18_000_000_000, sampling=Sampling(), kv="",
)  # fmt: skip


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("size", [(80, 21), (109, 21), (110, 37), (120, 37), (200, 60)])
@pytest.mark.parametrize("depth", [1, 3, 4, 8])
def test_no_figure_leaves_the_dashboard_where_it_is_small(size: tuple[int, int], depth: int, glyphs: Glyphs) -> None:
    state = EngineState()
    for n in range(9):
        state.apply(QueuedEvent(f"r{n}", 0.0, "api:a-client-with-a-long-name", 100_000, 9, 0))
    for event in (PrefillEvent("r8", 0.1, 9, 100_000, 5_000), TokenEvent("r8", 0.5, (1, 2, 3), (Span("text", "a"),))):
        state.apply(event)
    for n in range(40):
        state.apply(replace(step(n, depth if n % 2 else depth - 1, n % depth), request_id="r8"))
    stats = Stats(prefill_tok_s=1234.0, decode_tok_s=10.0)
    state.apply(FinishEvent("r0", 3.0, "cancelled", Usage(), stats, None))
    snapshot = state.snapshot(4.0, 99, 99)
    machine = Machine(111_400_000_000, 512_000_000_000, 400_000_000_000, 12_300_000_000, "critical")
    view = View(snapshot, snapshot.steps, MODEL, machine, "http://127.0.0.1:8000/v1", ())
    lines = [plain(line) for line in page_of(view, *size, glyphs)]
    assert len(lines) == size[1]
    assert {width_of(line) for line in page_of(view, *size, glyphs)} == {size[0]}
    text = "\n".join(lines)
    for figure in ("18.0 GB", "111.4 GB", "12.3 GB", "critical", "1234 tok/s", "0.50s", "8000/v1", "7 waiting",
                   "tok/s", "needed", "/33k", f"d{min(depth, 3)} "):  # fmt: skip
        assert figure in text, f"{figure}:\n{text}"
    assert re.search(r"112(\.0 GB)?/512", text), text
    assert "a-client-with-a-long-name" in text or re.search(r"api:[a-z-]*" + re.escape(glyphs.ellipsis), text), text
    cut = [line for line in lines if UNICODE.ellipsis in line]  # of ascii, empty meters have dots as well
    assert [line for line in cut if "api:" not in line] == [], "only names are cut"
    assert f" {glyphs.dot} r8 api" in lines[0], "its steps have the name that the list has"


def test_a_chart_starts_at_zero_and_names_its_top() -> None:
    chart = [plain(line) for line in column_chart([0, 50, 100], AXIS + 3, 4, UNICODE)]
    assert [line[-3:] for line in chart] == ["  █", "  █", " ██", " ██"]
    assert chart[0].strip().startswith("100")


class TestBreakEven:
    def test_a_depth_pays_where_what_holds_is_worth_its_time(self) -> None:
        steps = [step(n, 0, 0, 0.010) for n in range(MIN_STEPS)]
        steps += [step(n, 1, n % 2, 0.015) for n in range(10)]
        steps += [step(n, 2, 2, 0.030) for n in range(10)]
        needed = break_even(depth_rates(steps), step_seconds(steps))
        held = 15 / 20
        assert needed[1] == pytest.approx(0.5)
        assert needed[2] == pytest.approx((1 + held) * (0.030 - 0.015) / 0.015)
        assert "does not pay" in advice(depth_rates(steps), needed)

    def test_without_two_depths_it_is_not_known(self) -> None:
        steps = [step(n, 2, 1) for n in range(20)]
        assert break_even(depth_rates(steps), step_seconds(steps)) == {}
        assert "n/a" in advice(depth_rates(steps), {})

    def test_a_step_that_others_shared_tells_no_price(self) -> None:
        assert step_seconds([step(n, 1, 1, rows=3) for n in range(20)]) == {}


async def test_steps_requests_and_speed_are_shown(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        play = (await ask(pilot, handle, "hello")).prefill()
        for n in range(40):
            play.say(*("a" for _ in range(1 + n % 5)), refused=None if n % 5 == 4 else "b")
        Play.outside(handle, "r0413aa", source="api:codex").prefill(600)
        await enter(pilot)
        await until(pilot, lambda: "api:codex" in page(app))
        text = page(app)
        assert "out" in text
        assert "d4 " in text
        assert "DECODE" in text
        assert "PREFILL" in text
        assert "2 running" in text


async def test_the_chat_goes_on_while_the_dashboard_is_seen(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        play = (await ask(pilot, handle, "hello")).prefill()
        await enter(pilot)
        play.say("All", " of", " it.").finish()
        await until(pilot, lambda: app.chat.talk.turn is None, "the turn has ended")
        await pilot.press("f2")
        await until(pilot, lambda: app.screen is app.chat)
        assert "All of it." in app.chat.transcript.text


async def test_paused_it_holds_the_picture_and_steps(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        play = (await ask(pilot, handle, "hello")).prefill()
        for word in ("one", "two", "three"):
            play.say(word)
        await enter(pilot)
        await until(pilot, lambda: "3 steps" in page(app))
        await pilot.press("space")
        held = page(app)
        assert "step 3" in held
        play.say("four")
        await pilot.press("left", "left", "left", "left")
        await until(pilot, lambda: "step 1" in page(app))
        assert "one" in page(app)
        assert "four" not in page(app)
        await pilot.press("right", "space")
        await until(pilot, lambda: "4 steps" in page(app))


async def test_x_cancels_the_chosen_request_of_anybody(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        (await ask(pilot, handle, "hello")).prefill()
        Play.outside(handle, "r0413aa").prefill(10)
        await enter(pilot)
        await until(pilot, lambda: "413aa" in page(app))
        await pilot.press("down", "x")
        await until(pilot, lambda: handle.cancelled == ["r0413aa"])


async def test_enter_tells_all_of_the_chosen_request(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        Play.outside(handle, "r0413aa", source="api:pi", prompt_tokens=77).prefill()
        await enter(pilot)
        await until(pilot, lambda: "413aa" in page(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PageScreen))
        assert "77 tokens" in page(app)
        assert "did not come through this server" in page(app), "the link has seen its events only"
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, DashboardScreen))


async def test_enter_shows_what_was_sent_to_the_model_by_token_and_what_the_cache_had(
    make_app: MakeApp, handle: ScriptedHandle
) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, handle, "A\x1b[2J\nB")
        play = Play.of(handle, handle.requests[-1])
        handle.emit(PrefillEvent(play.id, handle.clock(), 14, 14, 6, "the prompt's end is new"))
        play.say("o", "k").finish()
        await enter(pilot)
        await until(pilot, lambda: "DONE" in page(app))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, PageScreen))
        shown = page(app)
        assert "6 of 14 tokens" in shown
        before, rest = shown.split("─── 6 from the cache ───\n")
        cached, read = rest.split("─── 8 read anew ───\n")
        assert "drawn      temperature 0.6, top_p 0.95" in before
        assert cached == "<│u│s│e│r│>│\n"
        assert read.startswith("|│A│␛│[│2│J│⏎│\nB│\n"), "each byte is a token here, and none reaches the terminal"


async def test_export_writes_steps_figures_and_picture(
    make_app: MakeApp, handle: ScriptedHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DOCUMENTS_DIR", str(tmp_path))
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        play = (await ask(pilot, handle, "hello")).prefill()
        for _ in range(7):
            play.say("a,", '"b"\n', refused="\x1b[31m")
        await enter(pilot)
        await until(pilot, lambda: "7 steps" in page(app))
        await pilot.press("e")
        await until(pilot, lambda: list(tmp_path.rglob("dashboard.svg")))
    (folder,) = (tmp_path / "mtplx-tui").iterdir()
    rows = list(csv.DictReader((folder / "steps.csv").open(newline="")))
    assert [row["step"] for row in rows] == [str(n) for n in range(1, 8)]
    assert rows[0]["text"] == 'a,"b"\n'
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["acceptance"][0]["drafted"] == 7
    assert figures["requests"][0]["source"] == "chat"
    assert (folder / "dashboard.svg").read_text().startswith("<svg")


async def test_a_folder_that_can_not_be_written_to_is_said(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DOCUMENTS_DIR", str(tmp_path / "file"))
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        await pilot.press("e")
        await until(pilot, lambda: any("Not written" in note.message for note in app._notifications))


async def test_the_log_is_a_page(make_app: MakeApp) -> None:
    import logging

    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await enter(pilot)
        logging.getLogger("server").warning("a line\x1b[2J of the log")
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, PageScreen))
        assert "a line" in page(app)
        assert "\x1b" not in page(app)


async def test_idle_it_stands_still(make_app: MakeApp, clock: Clock) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        dashboard = await enter(pilot)
        drawn = dashboard._drawn_at
        clock.advance(60.0)
        for _ in range(5):
            app._beat()
        assert dashboard._drawn_at == drawn
