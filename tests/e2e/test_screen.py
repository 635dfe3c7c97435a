"""The real program in a real terminal, with the bundled model: what a person sees, and what is left when it ends."""

import json
import os
import re
import signal
import sqlite3
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from pseudoterminal import Pty, alive, children, wait_until

from mtplx_tui.store import MessageRow, Store

PROGRAM = str(Path(sys.executable).with_name("mtplx-tui"))
SETTINGS = json.dumps({"options": {}, "ascii": False})

FAULTY = """
import sys
from pathlib import Path
from mtplx_tui import guard, paths
sys.exit(guard.run([sys.executable, "-P", "-c", sys.argv[1], sys.argv[2]], paths.log_file()))
"""

WITH_TURNS = """
import os, signal, sys, time
from engine.runner import Runner
from mtplx_tui.commands import screen
turn, turns = Runner.turn, 0
def counted(self):
    global turns
    turns += 1
    {fault}
    time.sleep(0.1)
    turn(self)
Runner.turn = counted
screen.main()
"""


def saved(home: Path) -> list[MessageRow]:
    """The messages of the only conversation."""
    (file,) = home.rglob("sessions.db")
    store = Store(file)
    (session,) = store.sessions()
    messages = store.messages(session.id)
    store.close()
    return messages


def log(home: Path) -> str:
    (file,) = home.rglob("mtplx-tui.log")
    return file.read_text()


def context(pty: Pty) -> int:
    """Tokens in the context, as the status line says."""
    shown = re.search(r"\bctx (\d+)/", pty.text)
    return int(shown[1]) if shown else 0


def answered(pty: Pty) -> bool:
    """An answer is there, whatever it says: the chat samples."""
    return "READY" in pty.text and context(pty) > 25


def ask_for_a_story(pty: Pty) -> None:
    """Ask, and wait until the answer is well under way but has seconds to go."""
    pty.send("Tell me a long story about a fox\r")
    pty.wait_for(lambda: "DECODE" in pty.text and context(pty) > 60)


@pytest.fixture
def screen(start: Callable[..., Pty]) -> Callable[..., Pty]:
    """The screen over an engine that takes its time, with a fault in its thread."""

    def run(fault: str = "pass", size: tuple[int, int] = (40, 120)) -> Pty:
        pty = start(sys.executable, "-c", FAULTY, WITH_TURNS.format(fault=fault), SETTINGS, size=size)
        pty.wait_for("READY")
        return pty

    return run


def test_a_first_chat(start: Callable[..., Pty], home: Path) -> None:
    pty = start(PROGRAM)
    pty.wait_for("READY")
    pty.send("What is 47 + 85?\r")
    pty.wait_for(lambda: answered(pty))

    pty.wait_for(lambda: re.search(r"127\.0\.0\.1:\d+", pty.text) is not None)
    address = re.search(r"127\.0\.0\.1:\d+", pty.text)
    assert address is not None
    with urllib.request.urlopen(f"http://{address[0]}/v1/models", timeout=10) as answer:
        assert json.load(answer)["data"][0]["id"] == "demo-13m"

    pty.send("\x11")
    assert pty.ended() == 0
    pty.assert_sane()
    assert "Traceback" not in pty.raw.decode()
    question, reply = saved(home)
    assert (question.role, question.content) == ("user", "What is 47 + 85?")
    assert (reply.role, reply.finish_reason) == ("assistant", "stop")
    assert reply.content
    assert all(word in pty.text for word in reply.content.split())
    assert log(home) == ""


def test_escape_keeps_what_came_and_ctrl_q_leaves_at_80x24(screen: Callable[..., Pty], home: Path) -> None:
    pty = screen(size=(24, 80))
    ask_for_a_story(pty)
    pty.send("\x1b")
    pty.wait_for("READY")
    pty.send("\x11")
    assert pty.ended() == 0
    pty.assert_sane()
    reply = saved(home)[1]
    assert reply.finish_reason == "cancelled"
    assert len(reply.content + reply.reasoning) > 20


@pytest.mark.slow
def test_options_reach_the_screen(start: Callable[..., Pty]) -> None:
    pty = start(PROGRAM, "--ascii", "--mode", "ar")
    pty.wait_for("READY")
    pty.send("What is 3 + 4?\r")
    pty.wait_for(lambda: answered(pty))
    assert pty.text.isascii()
    pty.send("\x11")
    assert pty.ended() == 0


@pytest.mark.slow
@pytest.mark.slow
def test_what_is_kept_holds_and_the_command_line_wins(start: Callable[..., Pty], home: Path) -> None:
    file = home / ".config" / "mtplx-tui" / "settings.toml"
    file.parent.mkdir(parents=True)
    file.write_text('[sampling]\ntemperature = 0.11\n[engine]\ndepth = 2\nprofile = "exact"\n'
                    '[display]\nglyphs = "ascii"\n[server]\nport = "no"\n')  # fmt: skip
    pty = start(PROGRAM, "--profile", "burst", size=(24, 80))
    pty.wait_for("READY")
    assert "server.port is 'no'" in pty.unwrapped
    assert "─" not in pty.text
    pty.send("\x1b[18~")  # F7
    pty.wait_for(lambda: re.search(r"temperature +0\.11 +file", pty.text) is not None)
    pty.send("\x1b[C")
    pty.wait_for(lambda: re.search(r"profile +burst +command line, next start: exact", pty.text) is not None)
    assert re.search(r"depth +2 +file", pty.text)
    pty.send("\x1b[C\x1b[C\r")
    pty.wait_for("theme, now auto")
    pty.send("mtplx-l\r")
    pty.wait_for(lambda: re.search(r"theme +mtplx-light +file", pty.text) is not None)
    assert 'theme = "mtplx-light"' in file.read_text()
    pty.send("\x11")
    assert pty.ended() == 0
    pty.assert_sane()


def test_a_model_that_is_not_here_is_said_on_the_screen(start: Callable[..., Pty]) -> None:
    pty = start(PROGRAM, "--model", "nowhere-7b")
    pty.wait_for("No model 'nowhere-7b' is here")
    pty.send("\x11")
    pty.ended()
    pty.assert_sane()


@pytest.mark.parametrize(
    ("fault", "number", "said"),
    [
        ("turns < 20 or os.abort()", signal.SIGABRT, "crashed in native code (SIGABRT)"),
        pytest.param(
            "turns < 20 or os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL, "was killed", marks=pytest.mark.slow
        ),
    ],
)
def test_a_crash_in_the_engines_thread_loses_at_most_half_a_second(
    screen: Callable[..., Pty], home: Path, fault: str, number: int, said: str
) -> None:
    pty = screen(fault)
    pty.send("Tell me a long story about a fox\r")
    assert pty.ended(timeout=30) == 128 + number
    pty.assert_sane()
    assert said in pty.unwrapped
    question, reply = saved(home)
    assert question.content == "Tell me a long story about a fox"
    assert len(reply.content + reply.reasoning) > 20


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_ends_it_cleanly_with_the_answer_so_far(screen: Callable[..., Pty], home: Path, number: int) -> None:
    pty = screen()
    ask_for_a_story(pty)
    os.kill(pty.pid, number)
    assert pty.ended() == 128 + number
    pty.assert_sane()
    assert len(saved(home)[1].content + saved(home)[1].reasoning) > 20


@pytest.mark.slow
def test_a_closed_terminal_leaves_no_process_and_the_chat_saved(screen: Callable[..., Pty], home: Path) -> None:
    pty = screen()
    ask_for_a_story(pty)
    processes = [pty.pid, *children(pty.pid)]
    pty.hang_up()
    wait_until(lambda: not any(alive(pid) for pid in processes))
    assert len(saved(home)[1].content + saved(home)[1].reasoning) > 20


@pytest.mark.slow
def test_when_the_guard_is_killed_the_screen_saves_and_ends(screen: Callable[..., Pty], home: Path) -> None:
    pty = screen()
    ask_for_a_story(pty)
    (child,) = children(pty.pid)
    os.kill(pty.pid, signal.SIGKILL)
    wait_until(lambda: not alive(child))
    assert len(saved(home)[1].content + saved(home)[1].reasoning) > 20


@pytest.mark.slow
def test_what_native_code_prints_goes_to_the_log(screen: Callable[..., Pty], home: Path) -> None:
    pty = screen('os.write(1, b"noise on one\\n"); os.write(2, b"noise on two\\n")')
    pty.send("What is 3 + 4?\r")
    pty.wait_for(lambda: answered(pty))
    pty.send("\x11")
    assert pty.ended() == 0
    assert "noise" not in pty.raw.decode()
    assert "noise on one" in log(home)
    assert "noise on two" in log(home)


def test_an_error_in_the_screens_own_code_is_one_plain_line(start: Callable[..., Pty], home: Path) -> None:
    program = """
from mtplx_tui.screens.chat import ChatScreen
def broken(self): raise ZeroDivisionError("a bug")
ChatScreen.on_mount = broken
from mtplx_tui.commands import screen
screen.main()
"""
    pty = start(sys.executable, "-c", FAULTY, program, SETTINGS)
    assert pty.ended(timeout=30) == 70
    pty.assert_sane()
    assert "met an error of its own" in pty.unwrapped
    assert "Traceback" not in pty.raw.decode()
    assert "a bug" in log(home)


@pytest.fixture
def file(start: Callable[..., Pty], home: Path) -> Path:
    """The saved chats of a program that was started once and left."""
    pty = start(PROGRAM)
    pty.wait_for("READY")
    pty.send("\x11")
    assert pty.ended() == 0
    (file,) = home.rglob("sessions.db")
    return file


@pytest.mark.slow
def test_saved_chats_that_can_not_be_opened_are_said_before_the_screen(start: Callable[..., Pty], file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    pty = start(PROGRAM)
    assert pty.ended(timeout=30) == 3
    pty.assert_sane()
    assert "was written by a newer mtplx-tui" in pty.unwrapped


@pytest.mark.slow
def test_damaged_chats_are_set_aside_and_the_screen_says_so(start: Callable[..., Pty], file: Path) -> None:
    file.write_bytes(b"damaged" * 2000)
    pty = start(PROGRAM)
    pty.wait_for("damaged")
    assert len(list(file.parent.glob("sessions.damaged-*.db"))) == 1
