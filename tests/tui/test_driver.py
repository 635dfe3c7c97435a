"""The way to the terminal: whether what was drawn was taken, and seen."""

import os
import pty
import select
import sys
from collections.abc import Callable, Iterator

import pytest
from helpers import until
from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.messages import TerminalSupportsSynchronizedOutput

from mtplx_tui.driver import QUESTION, WINDOW, TerminalDriver

pytestmark = pytest.mark.anyio
FRAME = "x" * WINDOW


class End:
    """The other end of a driver's terminal, with nothing but its writing thread running."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.master, slave = pty.openpty()
        self._slave = os.fdopen(slave, "w", encoding="utf-8")
        patch.setattr(sys, "__stderr__", self._slave)
        self.driver = TerminalDriver(App())
        self.driver._writer_thread = self._writing = WriterThread(self.driver._file)  # type: ignore[arg-type]
        self._writing.start()
        self.text = ""

    def draw(self, text: str) -> None:
        self.driver.write(text)
        self.driver.flush()

    def read(self) -> None:
        """Take what came, if anything did."""
        while select.select([self.master], [], [], 0)[0]:
            self.text += os.read(self.master, 65536).decode()

    def answer(self) -> None:
        self.driver.process_message(TerminalSupportsSynchronizedOutput())

    def close(self) -> None:
        self._writing._queue.put(None)
        while self._writing.is_alive():
            self.read()
        self._slave.close()
        os.close(self.master)


@pytest.fixture
async def end(monkeypatch: pytest.MonkeyPatch) -> "Iterator[End]":  # type: ignore[misc]  async, as the driver wants a loop
    end = End(monkeypatch)
    yield end
    end.close()


async def read_until(end: End, true: Callable[[], bool]) -> None:
    def read() -> bool:
        end.read()
        return true()

    await until(None, read)  # type: ignore[arg-type]


async def test_it_is_behind_until_the_terminal_took_everything(end: End) -> None:
    end.draw(FRAME * 8)
    assert end.driver.behind()
    await read_until(end, lambda: not end.driver.behind())
    assert end.text == FRAME * 8


async def test_a_terminal_that_never_answered_is_never_asked(end: End) -> None:
    for _ in range(4):
        end.draw(FRAME)
        await read_until(end, lambda: not end.driver.behind())
    assert QUESTION not in end.text


async def test_what_was_taken_but_not_seen_holds_back_until_the_answer(end: End) -> None:
    end.answer()
    end.draw(FRAME)
    end.draw(FRAME)
    await read_until(end, lambda: end.text.count("x") == 2 * WINDOW)
    assert end.driver.behind()
    end.answer()  # to the question behind the first frame: the second one is not behind it
    await read_until(end, lambda: end.text.count(QUESTION) >= 1)
    assert end.driver._given - end.driver._seen <= WINDOW + 2 * len(QUESTION)
    end.driver.behind()
    await read_until(end, lambda: end.text.count(QUESTION) == 2)
    end.answer()
    await read_until(end, lambda: not end.driver.behind())


async def test_small_changes_are_drawn_without_waiting_for_answers(end: End) -> None:
    end.answer()
    end.draw("x" * (WINDOW // 2))
    await read_until(end, lambda: QUESTION in end.text)
    await read_until(end, lambda: not end.driver.behind())


async def test_a_terminal_that_answers_no_more_is_drawn_on_all_the_same(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    end.answer()
    end.draw(FRAME + "x")
    assert end.driver.behind()
    monkeypatch.setattr("mtplx_tui.driver.LOST_S", 0.0)
    await read_until(end, lambda: not end.driver.behind())
    end.draw(FRAME * 2)
    await read_until(end, lambda: not end.driver.behind())
