"""Whatever ends the screen's process, the terminal is left as it was, somebody says why, and no process stays."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pseudoterminal import Pty, alive, children, wait_until

GUARD = """
import sys
from pathlib import Path
from mtplx_tui import guard
sys.exit(guard.run([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], Path(sys.argv[2])))
"""

SCREEN = r"""
import asyncio, os, sys, time, tty
from pathlib import Path
from mtplx_tui import guarded

asked = []
guarded.enter(int(sys.argv[-1]), Path(sys.argv[1]))
guarded.stop_on_signals({on_signal})
tty.setraw(0)
sys.__stderr__.write("\x1b[?1049h\x1b[?1000h\x1b[?1003h\x1b[?1006h\x1b[?1004h\x1b[>1u\x1b[?2004h\x1b[?7l\x1b[?25l\x1b[2J")
sys.__stderr__.write("\x1b[Hon screen, size %dx%d" % os.get_terminal_size(sys.__stdout__.fileno()))
sys.__stderr__.flush()
os.write(1, b"native noise on 1\n")
os.write(2, b"native noise on 2\n")
print("python noise")
{then}
"""

WAIT = "time.sleep(60)"
IGNORE = "lambda number: None"
OBEY = {"then": "while not asked: time.sleep(0.01)\nsys.exit(128 + asked[0])", "on_signal": "asked.append"}


def screen(then: str = WAIT, on_signal: str = IGNORE) -> str:
    return SCREEN.format(then=then, on_signal=on_signal)


@pytest.fixture
def log(home: Path) -> Path:
    return home / "logs" / "test.log"


@pytest.fixture
def guarded(start: Callable[..., Pty], log: Path) -> Callable[[str], Pty]:
    def run(program: str) -> Pty:
        return start(sys.executable, "-c", GUARD, program, str(log))

    return run


def test_a_native_crash_leaves_the_terminal_sane_and_says_so(guarded: Callable[[str], Pty], log: Path) -> None:
    pty = guarded(screen("sys.stdin.read(1); os.abort()"))
    pty.wait_for("on screen, size 120x40")
    assert {1049, 1003, 2004} <= pty.modes
    assert pty.kitty == 1
    pty.send("x")
    assert pty.ended() == 128 + signal.SIGABRT
    pty.assert_sane()
    assert "crashed in native code (SIGABRT). Your chats are kept" in pty.unwrapped
    assert str(log) in pty.unwrapped
    assert "noise" not in pty.raw.decode()
    written = log.read_text()
    assert "native noise on 1" in written
    assert "native noise on 2" in written
    assert "python noise" in written or "Fatal Python error: Aborted" in written
    assert "Traceback" not in pty.text


def test_kill_9_leaves_the_terminal_sane_and_says_so(guarded: Callable[[str], Pty]) -> None:
    pty = guarded(screen())
    pty.wait_for("on screen")
    (child,) = children(pty.pid)
    os.kill(child, signal.SIGKILL)
    assert pty.ended() == 128 + signal.SIGKILL
    pty.assert_sane()
    assert "was killed, by hand or because memory ran out. Your chats are kept" in pty.unwrapped


@pytest.mark.parametrize("code", [0, 3])
def test_a_clean_end_is_passed_on_without_a_word(guarded: Callable[[str], Pty], code: int) -> None:
    pty = guarded(f"import sys; sys.stdout.write('bye'); sys.exit({code})")
    assert pty.ended() == code
    pty.assert_sane()
    assert pty.text.strip() == "bye"


def test_an_uncaught_python_error_is_one_plain_line(guarded: Callable[[str], Pty], log: Path) -> None:
    pty = guarded("import sys; sys.exit(70)")
    assert pty.ended() == 70
    assert "met an error of its own" in pty.unwrapped
    assert str(log) in pty.unwrapped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_screen_which_may_end_by_itself(guarded: Callable[[str], Pty], number: int) -> None:
    pty = guarded(screen(**OBEY))
    pty.wait_for("on screen")
    os.kill(pty.pid, number)
    assert pty.ended(timeout=3) == 128 + number
    pty.assert_sane()
    assert "Your chats" not in pty.text


def test_a_screen_that_ignores_a_signal_is_ended_all_the_same(guarded: Callable[[str], Pty]) -> None:
    pty = guarded(screen("while True: time.sleep(1)"))
    pty.wait_for("on screen")
    (child,) = children(pty.pid)
    os.kill(pty.pid, signal.SIGTERM)
    assert pty.ended(timeout=10) == 128 + signal.SIGTERM
    assert not alive(child)
    pty.assert_sane()


def test_a_signal_in_the_first_moment_is_not_lost(guarded: Callable[[str], Pty]) -> None:
    pty = guarded(screen(**OBEY))
    wait_until(lambda: bool(children(pty.pid)))
    (child,) = children(pty.pid)
    os.kill(pty.pid, signal.SIGTERM)
    assert pty.ended(timeout=5) == 128 + signal.SIGTERM
    assert not alive(child)
    pty.assert_sane()


def test_when_the_guard_is_killed_the_screen_ends_and_cleans_up(guarded: Callable[[str], Pty]) -> None:
    pty = guarded(screen())
    pty.wait_for("on screen")
    (child,) = children(pty.pid)
    os.kill(pty.pid, signal.SIGKILL)
    wait_until(lambda: not alive(child), timeout=8)
    pty.ended()
    assert 1049 not in pty.modes


def test_a_closed_terminal_ends_everything(guarded: Callable[[str], Pty]) -> None:
    pty = guarded(screen("while True: sys.__stderr__.write('x'); sys.__stderr__.flush(); time.sleep(0.01)"))
    pty.wait_for("on screen")
    processes = [pty.pid, *children(pty.pid)]
    pty.hang_up()
    wait_until(lambda: not any(alive(pid) for pid in processes), timeout=8)
