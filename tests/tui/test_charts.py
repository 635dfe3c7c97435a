"""Charts: figures in, text out, in unicode and in ascii."""

import pytest
from rich.cells import cell_len

from engine.events import StepEvent
from mtplx_tui.charts.bars import DepthRate, bar, columns, depth_bars, meter
from mtplx_tui.charts.numbers import count, nice_top, percent, rate, seconds, size
from mtplx_tui.charts.waterfall import header, row, said, shape
from mtplx_tui.glyphs import ASCII, UNICODE


def step(
    drafted: int, accepted: int, tokens: tuple[str, ...], refused: str | None = None, number: int = 7
) -> StepEvent:
    return StepEvent("r1", 0.0, number, drafted, accepted, tokens, refused, 0.0402, 1, 100)


@pytest.mark.parametrize(
    ("drafted", "accepted", "unicode", "ascii_"),
    [(4, 4, "■■■■+", "####+"), (4, 2, "■■x··", "##x.."), (4, 0, "x····", "x...."), (4, 3, "■■■x·", "###x."),
     (2, 2, "■■+  ", "##+  "), (2, 1, "■x·  ", "#x.  "), (0, 0, "+    ", "+    ")],
)  # fmt: skip
def test_the_shape_of_a_step_reads_without_colour(drafted: int, accepted: int, unicode: str, ascii_: str) -> None:
    assert shape(drafted, accepted, 4, UNICODE) == unicode
    assert shape(drafted, accepted, 4, ASCII) == ascii_


def test_a_refused_draft_stands_beside_what_took_its_place() -> None:
    assert said(step(4, 2, (" a", " step", " with"), " without"), UNICODE) == "a step [without→with]"
    assert said(step(4, 0, (" So",), " Thus"), ASCII) == "[Thus->So]"
    assert said(step(2, 2, (" gives", " 4", "\n\n")), UNICODE) == "gives 4⏎⏎"
    assert said(step(1, 1, ("\x1b[2J", "[/x]")), UNICODE) == "␛[2J[/x]"


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_rows_are_exactly_as_wide_as_asked_and_stand_under_their_header(width: int) -> None:
    text = row(step(4, 2, (" 日本語", " step", " with a long tail"), "x", 1841), 4, width, UNICODE)
    assert cell_len(text) == width
    head = header(4)
    assert text[head.index("1") : head.index("1") + 5] == "■■x··"
    assert text[head.index("out")] == "3"
    if width > 30:
        assert text[: head.index("text") - 1].endswith("40.2")


def test_bars_start_at_zero_and_are_full_at_one() -> None:
    assert bar(0.0, 8, UNICODE) == " " * 8
    assert bar(1.0, 8, UNICODE) == "█" * 8
    assert bar(0.5, 4, UNICODE) == "██  "
    assert bar(0.55, 4, ASCII) == "##  "
    assert bar(1.7, 4, UNICODE) == "████"


def test_depth_bars_carry_their_numbers() -> None:
    rates = [DepthRate(1, 0.914, 0.914, 256, 256), DepthRate(2, 0.8, 0.875, 250, 234), DepthRate(3, 0.0, None, 4, 0)]
    lines = depth_bars(rates, 40, UNICODE)
    assert all(len(line) == 40 for line in lines)
    assert lines[1].startswith("d1 █")
    assert lines[1].endswith(".91   .91  256")
    assert lines[3].endswith(".00   n/a    4")


def test_a_meter_shows_any_use_at_all() -> None:
    assert meter(0.0, 6, UNICODE) == "░░░░░░"
    assert meter(0.001, 6, UNICODE) == "▓░░░░░"
    assert meter(1.4, 6, ASCII) == "######"


def test_columns_start_at_zero_and_keep_the_newest() -> None:
    assert columns([0, 50, 100], 100, 5, UNICODE) == "   ▅█"
    assert columns([198, 202], 300, 2, UNICODE) == "▆▆"  # a wobble looks like one, not like a crash
    assert columns([1, 2, 3, 4], 4, 2, ASCII) == "*#"


def test_numbers_are_short_and_unknown_is_not_zero() -> None:
    assert [count(n) for n in (0, 999, 1000, 3104, 9960, 128_000, 1_240_000)] == [
        "0", "999", "1.0k", "3.1k", "10k", "128k", "1.2M",
    ]  # fmt: skip
    assert [rate(None), rate(9.94), rate(96.2)] == ["n/a", "9.9", "96"]
    assert [seconds(None), seconds(0.384), seconds(4.11), seconds(72), seconds(185)] == [
        "n/a", "0.38s", "4.1s", "72s", "3:05",
    ]  # fmt: skip
    assert [percent(None), percent(0.714)] == ["n/a", "71%"]
    assert [size(12), size(5200), size(1_048_576)] == ["12 B", "5.2 KB", "1.0 MB"]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.7, 0.8), (96, 100), (101, 120), (220, 300), (999, 1000)])
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert nice_top(value) == pytest.approx(top)
