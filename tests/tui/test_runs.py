"""Measurements beside the screens: their process, what is kept of them, and the rooms that show them."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import ask, until
from scripted_handle import ScriptedHandle
from textual.pilot import Pilot

from engine.bench.receipts import Receipts
from engine.bench.report import Report, Table, as_dict, as_markdown
from engine.bench.stats import Spread
from engine.tuned import DepthRow, Range, Tuning
from mtplx_tui import paths
from mtplx_tui.app import MtplxApp
from mtplx_tui.glyphs import ASCII, UNICODE, Glyphs
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.runs.bench_page import BenchView, bench_page
from mtplx_tui.runs.document import document_lines
from mtplx_tui.runs.failure import failure_lines
from mtplx_tui.runs.history import Kept, compare, results
from mtplx_tui.runs.job import Job
from mtplx_tui.runs.tune_page import GUARDS, tune_page
from mtplx_tui.screens.bench import BenchScreen
from mtplx_tui.screens.tune import TuneScreen
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]


def spread(median: float, half: float = 1.0) -> dict[str, float]:
    return {"median": median, "q1": median - half, "q3": median + half}


def speed(best: float, date: str = "2026-11-30T10:00:00+00:00", half: float = 1.0) -> dict[str, Any]:
    rows = [
        {"engine": "mlx-lm", "mode": "ar", "depth": 0, "tokens_per_step": 1.0, "decode_tok_s": spread(48.0)},
        {"engine": "mtplx", "mode": "mtp", "depth": 3, "tokens_per_step": 2.9, "decode_tok_s": spread(best, half)},
    ]
    return {"rows": rows, "receipts": {"benchmark": "speed", "model": {"name": "demo-13m"}, "date": date}}


def keep(name: str, result: dict[str, Any]) -> None:
    folder = paths.benchmarks_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result))
    (folder / f"{name}.md").write_text(f"# Speed of {name}\n\n| engine | tok/s |\n|---|---:|\n| mlx-lm | 48 |\n")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def tuning(best: int) -> dict[str, Any]:
    rows = tuple(
        DepthRow(
            d, Range(40.0 + 10 * d, 39.0 + 10 * d, 42.0 + 10 * d), 0.02, 1.0 + d / 2, 0.7 if d else None, (), d < 3
        )
        for d in range(4)
    )
    found = Tuning("demo-13m", "f", "cpu", {}, "turbo", None, 1, rows, best, best > 0, f"depth {best} makes 60 tok/s")
    whole: dict[str, Any] = as_dict(found)
    return whole


class TestJob:
    def test_it_gives_the_json_that_the_command_prints(self) -> None:
        job = Job(["cache", "list"])
        assert job.wait(60)
        assert job.state == "done"
        assert job.result is not None
        assert job.result["entries"] == []

    def test_a_failure_is_told_in_the_commands_own_words(self) -> None:
        job = Job(["inspect", "no-such-model"])
        assert job.wait(60)
        assert job.state == "failed"
        assert "no-such-model" in job.error

    def test_stopping_ends_all_that_it_started(self) -> None:
        job = Job(["tune"])
        job.stop()
        assert job.wait(30)
        assert job.state == "stopped"
        assert job.result is None
        with pytest.raises(ProcessLookupError):
            os.killpg(job._process.pid, 0)


class TestHistory:
    def test_what_is_none_of_ours_is_left_out(self, empty: None) -> None:
        keep("a", speed(96, "2026-11-29T10:00:00+00:00"))
        keep("b", speed(98))
        folder = paths.benchmarks_folder()
        for name, text in (("c", "{"), ("d", "[]"), ("e", '{"receipts": 5}'), ("f", '{"receipts": {"model": "x"}}')):
            (folder / f"{name}.json").write_text(text)
        assert [kept.stem.name for kept in results()] == ["b", "a"]

    @pytest.mark.parametrize(("now", "half", "verdict"), [(120, 1, "faster"), (80, 1, "slower"), (97, 5, "same")])
    def test_a_change_counts_where_the_middle_halves_are_apart(
        self, empty: None, now: float, half: float, verdict: str
    ) -> None:
        keep("a", speed(96, "2026-11-29T10:00:00+00:00", half))
        keep("b", speed(now, half=half))
        newer, older = results()
        peer, ours = compare(newer, older)
        assert (peer.verdict, ours.verdict) == ("same", verdict)
        assert ours.share == pytest.approx(now / 96 - 1)

    def test_results_of_different_kinds_have_nothing_in_common(self, empty: None) -> None:
        keep("a", speed(96))
        (kept,) = results()
        assert compare(kept, Kept(kept.stem, "load", "demo-13m", "", {"rows": []})) == []


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_of_both_pages_fits(empty: None, width: int) -> None:
    keep("a", speed(96))
    keep("a very long name of a model with \x1b[31m colours" * 3, speed(98, "2026-11-29T10:00:00+00:00"))
    job = Job(["cache", "list"])
    job.wait(60)
    job.result = tuning(2)
    views = [BenchView(()), BenchView(tuple(results())), BenchView(tuple(results())).with_base().choosing(1)]
    pages = [tune_page(each, None, width, 21, UNICODE) for each in (None, job)]
    pages += [bench_page(view, each, width, 21, UNICODE) for view in views for each in (None, job)]
    for page in pages:
        assert len(page) == 21
        assert {width_of(line) for line in page} == {width}
        assert not any("\x1b" in plain(line) for line in page)


TABLES = (
    ("engine", "mode", "depth", "tok/step", "tok/s", "min to max"),
    ("depth", "draft", "verify", "accept", "advance", "read", "busy", "wall", "idle share"),
    ("tokens", "engine", "prefill tok/s", "TTFT s", "decode tok/s", "memory MB", "prefill / mlx-lm"),
    ("clients", "server", "tok/s", "TTFT p50", "p95", "token p50", "token p95", "frame p50", "frame p95", "requests",
     "failed"),
    ("kind", "prompts", "tokens", "best D", "auto / best D", "auto / AR", "a|b"),
)  # fmt: skip


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [44, 84, 160])
@pytest.mark.parametrize("columns", TABLES, ids=lambda columns: columns[0])
def test_no_name_and_no_figure_of_a_result_is_cut_or_folded(
    columns: tuple[str, ...], width: int, glyphs: Glyphs
) -> None:
    rows = tuple(
        tuple(Spread.of([10.0 + n + row, 99.5, 1000.0 + n]) if n > 2 else f"word{n}{row}" for n in range(len(columns)))
        for row in range(3)
    )
    facts = Receipts(
        "speed", "2026-11-30", {"name": "m"}, {"profile": {"name": "turbo"}, "acceptance": None}, {}, (), 0
    )
    text = as_markdown(Report("Title", facts, (Table("t", "A table", columns, rows),), ("A note.",)))
    lines = document_lines(text, width, glyphs)
    assert all(width_of(line) <= width for line in lines)
    drawn = [plain(line) for line in lines]
    wanted = [*columns, *(shown for row in _rows_of(text) for shown in row)]
    assert [word for word in wanted if not any(word in line for line in drawn)] == []
    assert {"A table", "A note."} <= {line.strip("\u2022* ") for line in drawn}


def _rows_of(text: str) -> list[list[str]]:
    return [re.split(r" \| ", line.strip("| ")) for line in text.split("\n") if line.startswith("| word")]


def test_a_table_that_fits_stays_one() -> None:
    drawn = [plain(line).split() for line in document_lines("| a | b |\n|---|---:|\n| x | 1 |\n", 44, UNICODE)]
    assert drawn[0] == ["a", "│", "b"]
    assert drawn[2] == ["x", "│", "1"]


@pytest.mark.parametrize("room", [(76, 4), (76, 1), (116, 2)])
def test_why_a_run_failed_is_told_as_far_as_there_is_room(room: tuple[int, int]) -> None:
    width, rows = room
    short = [plain(line) for line in failure_lines("The disk is full.", width, rows, UNICODE)]
    assert short == ["failed: The disk is full."]
    long = [plain(line) for line in failure_lines("word " * 200, width, rows, UNICODE)]
    assert len(long) == rows
    assert long[-1].endswith("word…")
    assert max(map(len, long)) <= width


def test_the_guards_are_whole_or_not_there() -> None:
    for height in range(8, 40):
        text = " ".join(plain(line) for line in tune_page(None, None, 80, height, UNICODE)).replace("│", " ")
        words = " ".join(text.split())
        for _, guard in GUARDS:
            assert guard in words or guard[:20] not in words


def test_the_tune_page_marks_what_is_kept_and_what_differs() -> None:
    job = Job(["cache", "list"])
    job.wait(60)
    job.result = tuning(2)
    text = [plain(line) for line in tune_page(job, None, 120, 30, UNICODE)]
    (kept,) = [line for line in text if " kept" in line and "%" in line]
    assert kept.split()[1] == "2"
    assert any("DIFFERENT" in line for line in text)
    assert any("depth 2 makes 60 tok/s" in line for line in text)


def page(app: MtplxApp) -> str:
    return app.screen.query_one("#page", Lines).text


async def enter(pilot: Pilot[None], key: str, room: type) -> Any:
    await pilot.press(key)
    await until(pilot, lambda: isinstance(pilot.app.screen, room))
    return pilot.app.screen


async def test_tune_starts_says_what_it_does_and_stops(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        room = await enter(pilot, "f5", TuneScreen)
        await until(pilot, lambda: "s starts" in page(app))
        await pilot.press("s")
        await until(pilot, lambda: room.job is not None)
        await until(pilot, lambda: room.job.lines, "the first line of its progress")
        await pilot.press("x")
        await until(pilot, lambda: "nothing is saved" in page(app))


async def test_nothing_is_measured_while_the_engine_answers(make_app: MakeApp, handle: ScriptedHandle) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, handle, "hello")
        room = await enter(pilot, "f6", BenchScreen)
        await pilot.press("s")
        await until(pilot, lambda: any("worth nothing" in note.message for note in app._notifications))
        assert room.job is None


async def test_bench_shows_kept_results_and_compares(make_app: MakeApp, empty: None) -> None:
    keep("older", speed(96, "2026-11-29T10:00:00+00:00"))
    keep("newer", speed(120))
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        await enter(pilot, "f6", BenchScreen)
        await until(pilot, lambda: "Speed of newer" in page(app))
        await pilot.press("down")
        await until(pilot, lambda: "Speed of older" in page(app))
        await pilot.press("b", "up")
        await until(pilot, lambda: "+25.0%" in page(app))
        await pilot.press("right", "right")
        await until(pilot, lambda: "[context]" in page(app))
