"""The application in terminals that are slow, stalled, or far away, over an engine of 200 tokens a second."""

from collections.abc import Iterator

import pytest

from mtplx_tui.bench_ui.measure import paced, stall, streaming
from mtplx_tui.bench_ui.result import SLOW
from mtplx_tui.bench_ui.terminal import Terminal, Wire
from mtplx_tui.bench_ui.typist import Typist

pytestmark = pytest.mark.slow

FRAME = 16_000
"""Bytes of a whole screen, at most."""
KERNEL = 20_000
"""Bytes that a pseudo-terminal keeps, at most."""

Stream = tuple[Terminal, Wire, Typist]


@pytest.fixture(scope="module")
def stream() -> Iterator[Stream]:
    with paced(None) as (terminal, wire):
        yield terminal, wire, streaming(terminal)


def test_after_a_stall_the_terminal_is_soon_up_to_date_and_the_engine_never_waited(stream: Stream) -> None:
    told = stall(*stream, 4.0)
    assert told.tok_s > 150
    assert told.backlog_bytes < KERNEL + 2 * FRAME


def test_on_a_slow_line_no_backlog_grows(stream: Stream) -> None:
    terminal, _, typist = stream
    terminal.rate = SLOW / 4  # less than is drawn where the line takes it
    try:
        typed = typist.type(12)
    finally:
        terminal.rate = None
    assert max(typed.bytes[-4:]) < KERNEL + 2 * FRAME


def test_a_line_that_takes_all_but_shows_nothing_gets_no_more_than_a_frame_or_two(stream: Stream) -> None:
    terminal, _, typist = stream
    terminal.pump(1.0)
    terminal.answers = False
    try:
        terminal.pump(1.0)  # what was asked before is answered, and drawn upon
        before = terminal.taken
        terminal.pump(3.0)
        assert terminal.taken - before < FRAME
    finally:
        terminal.answers = True
        terminal.answer()
    typist.type(2)
