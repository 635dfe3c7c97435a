"""What a user does while it is timed: typing, opening chats, going from the message to the transcript and back."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from engine.bench.stats import percentile
from mtplx_tui.bench_ui.terminal import BenchFailedError, Terminal

MS = 1000.0
GAPS_S = (0.09, 0.25)
"""Between two keys of a person who types."""
STARTING_GAP_S = 0.1
PAUSE_S = 0.3
CTRL_END, CTRL_O, DOWN, ENTER, SHIFT_TAB = "\x1b[1;5F", "\x0f", "\x1b[B", "\r", "\x1b[Z"
AWAY_AND_BACK = "\x1b[O\x1b[I"
"""What a terminal sends when its window loses the focus and gets it again."""
READING_WORD, WRITING_WORD = "redo", "history"
"""A word of the footer while messages are read, and one of it while one is written."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Milliseconds from a key to what it changes on the screen, as it is read from the terminal."""

    p50: float
    p95: float
    max: float
    values: int

    @staticmethod
    def of(seconds: list[float]) -> "Delays":
        return Delays(MS * percentile(seconds, 0.5), MS * percentile(seconds, 0.95), MS * max(seconds), len(seconds))


@dataclass(frozen=True, slots=True)
class Typed:
    """Delays of some keys, seconds, and the bytes that came between each key and its echo."""

    delays: list[float]
    bytes: list[int]


class Typist:
    """Types letters of which each is unlike all before, so that an echo can not be mistaken."""

    def __init__(self, terminal: Terminal, seed: int = 7) -> None:
        self._terminal = terminal
        self._random = random.Random(seed)
        self._letters = letters()

    def type(self, keys: int) -> Typed:
        """Letters at a person's pace, each after the echo of the one before."""
        typed = Typed([], [])
        for _ in range(keys):
            gap = self._random.uniform(*GAPS_S)
            begun = time.monotonic()
            delay, came = self._echo("")
            typed.delays.append(delay)
            typed.bytes.append(came)
            self._terminal.pump(max(begun + gap - time.monotonic(), 0.0))
        return typed

    def away_and_back(self, times: int) -> list[float]:
        """Delays of a letter that is typed right after the window lost the focus and got it back."""
        delays: list[float] = []
        for _ in range(times):
            delays.append(self._echo(AWAY_AND_BACK)[0])
            self._terminal.pump(PAUSE_S)
        return delays

    def until_one_echoes(self, seconds: float = 30.0) -> float:
        """Type at a program that starts, until a letter comes back; the time of that. Raises BenchFailedError."""
        deadline = time.monotonic() + seconds
        sent: list[bytes] = []
        while time.monotonic() < deadline:
            sent.append(self.letter().encode())
            self._terminal.send(sent[-1])
            if self._terminal.pump(STARTING_GAP_S, lambda: any(letter in self._terminal.fresh for letter in sent)):
                return self._terminal.read_at
        raise BenchFailedError(f"Nothing typed was echoed within {seconds:.0f} s: {self._terminal.last_words()}")

    def letter(self) -> str:
        """A letter that was not typed yet."""
        return next(self._letters)

    def _echo(self, before: str) -> tuple[float, int]:
        letter, terminal = self.letter(), self._terminal
        terminal.mark()
        sent, taken = time.monotonic(), terminal.taken
        terminal.send(before + letter)
        return terminal.seen(letter) - sent, terminal.taken - taken


def letters() -> Iterator[str]:
    """Letters of one cell that no text here has."""
    for block in (range(0x0410, 0x0450), range(0x03B1, 0x03C2), range(0x0100, 0x0250), range(0x0531, 0x0557)):
        yield from map(chr, block)


def change_focus(terminal: Terminal, times: int) -> list[float]:
    """Delays of going to the transcript and back, `times` each, until the footer shows it."""
    delays: list[float] = []
    for word in (READING_WORD, WRITING_WORD) * times:
        terminal.mark()
        sent = time.monotonic()
        terminal.send(SHIFT_TAB)
        delays.append(terminal.seen(word) - sent)
        terminal.pump(PAUSE_S)
    return delays


def open_chat(terminal: Terminal, place: int, end: str) -> float:
    """Seconds from the Enter on a chat's name, the one of that place in the list, until its end is on the screen."""
    terminal.mark()
    terminal.send(CTRL_O)
    terminal.seen("saved chats")
    terminal.pump(PAUSE_S)
    for _ in range(place):
        terminal.send(DOWN)
        terminal.pump(PAUSE_S)
    terminal.mark()
    sent = time.monotonic()
    terminal.send(ENTER)
    opened = terminal.seen(end) - sent
    terminal.pump(PAUSE_S)
    return opened
