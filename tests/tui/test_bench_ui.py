"""What the screen costs and how long its user waits: the measurement itself, at its smallest."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from engine.bench.report import as_dict, as_text
from mtplx_tui.bench_ui.measure import Effort, bench_ui
from mtplx_tui.bench_ui.result import ROOMS, ui_report
from mtplx_tui.bench_ui.terminal import BenchFailedError, Terminal
from mtplx_tui.bench_ui.typist import Typist, letters

LINES = "import sys\nwhile True: sys.stdout.write('x' * 99 + chr(10)); sys.stdout.flush()"
ECHO = """
import os, tty
tty.setraw(0)
os.write(1, b"ready")
while True: os.write(1, b"." * 5000 + os.read(0, 100))
"""


@contextmanager
def running(program: str) -> Iterator[Terminal]:
    terminal = Terminal([sys.executable, "-c", program], os.environ)
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_model_that_is_not_here_is_said_plainly() -> None:
    with pytest.raises(BenchFailedError, match="nowhere-7b"):
        bench_ui("nowhere-7b", effort=Effort(starts=0))


def test_a_line_takes_no_more_than_its_rate_and_a_stalled_one_nothing() -> None:
    with running(LINES) as terminal:
        terminal.seen("xxx")
        terminal.rate = 20_000.0
        before = terminal.taken
        assert not terminal.pump(0.5)
        assert 0 < terminal.taken - before <= 0.5 * 20_000 + 20_000 * 0.02
        terminal.rate = 0.0
        before = terminal.taken
        terminal.pump(0.1)
        assert terminal.taken == before


def test_an_echo_is_known_from_what_was_drawn_before_it() -> None:
    with running(ECHO) as terminal:
        terminal.seen("ready")
        typed = Typist(terminal).type(3)
        assert [count // 5000 for count in typed.bytes] == [1, 1, 1]
        assert all(delay > 0 for delay in typed.delays)


def test_the_end_of_a_program_is_told_with_its_last_words() -> None:
    with running("print('out of luck')") as terminal, pytest.raises(BenchFailedError, match="out of luck"):
        terminal.seen("never")


def test_no_letter_comes_twice() -> None:
    every = list(letters())
    assert len(set(every)) == len(every) > 400


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_everything_is_measured() -> None:
    said: list[str] = []
    say: Callable[[str], None] = said.append
    effort = Effort(rounds=1, tokens=32, keys=6, opens=1, focus=1, idle_s=1.0, stall_s=2.0, starts=1)
    result = bench_ui(None, say, effort)
    assert list(result.rooms.tok_s) == list(ROOMS)
    assert all(spread.median > 0 for spread in result.rooms.tok_s.values())
    assert result.echo_ms.values == 6
    assert 0 < result.echo_ms.p50 <= result.echo_ms.p95 <= result.echo_ms.max
    assert result.slow.line_bytes_s < 64_000 * 1.1
    assert result.stall.tok_s > 150  # of 200: nothing waits for the terminal
    assert result.stall.backlog_bytes < 64_000  # less than a second's worth
    assert as_dict(result)["open_long_s"]["values"] == 1
    assert "terminal stalled" in "\n".join(as_text(ui_report(result)))
    assert said
