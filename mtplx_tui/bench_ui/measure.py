"""`bench ui`: all figures of the screen, near and far, from three kinds of terminals by turns.

The engine's speed is measured by turns within one process: alone, under the chat with its side panel, under the
dashboard, and under the chat while its terminal takes nothing. What a user feels is measured over an engine that only
keeps a pace, with keys that go in at one end of a pseudo-terminal and echoes that come out there.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.bench.receipts import PromptSet, receipts
from engine.bench.stats import Spread
from engine.config import EngineConfig
from mtplx_tui.bench_ui.chats import ANSWER, LONG_END, SHORT_END, fill
from mtplx_tui.bench_ui.child import PROMPT, RATE, SEED
from mtplx_tui.bench_ui.result import ROOMS, SLOW, Idle, Rooms, Slow, Stall, UiResult
from mtplx_tui.bench_ui.terminal import Terminal, Wire
from mtplx_tui.bench_ui.typist import CTRL_END, ENTER, Delays, Typist, change_focus, open_chat

STREAM_S = 2.0
"""What a stream runs for before anything is timed over it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        rounds: of answers in every room. tokens: of each. keys: that are typed in each place; opens: of each chat.
        focus: times to the transcript and back. idle_s, stall_s: seconds. starts: of the whole program.
    """

    rounds: int = 7
    tokens: int = 384
    keys: int = 60
    opens: int = 5
    focus: int = 10
    idle_s: float = 10.0
    stall_s: float = 10.0
    starts: int = 3


def bench_ui(
    model: str | None, progress: Callable[[str], None] = lambda line: None, effort: Effort | None = None
) -> UiResult:
    """Measure everything; takes under four minutes.

    Raises BenchFailedError: the model did not load, or a program under measurement ended or hung.
    """
    effort = effort or Effort()
    progress("starting the program")
    starts = [start() for _ in range(effort.starts)]
    facts, rooms = _rooms(model, effort, progress)
    settings = {"rate": RATE, "line_bytes_s": SLOW, "temperature": "the model's own"}
    prompts = [PromptSet.of("prompt", [PROMPT]), PromptSet.of("messages", [ANSWER])]
    kept = receipts("ui", facts, EngineConfig(model), settings, prompts, SEED)
    with paced(model) as (terminal, wire):
        progress("saved chats, and doing nothing")
        long, short = _opens(terminal, effort.opens)
        idle = _idle(terminal, effort.idle_s)
        typist = streaming(terminal)
        progress("keys over a stream")
        before, cpu, begun = terminal.taken, _cpu(terminal), time.monotonic()
        typed = typist.type(effort.keys)
        took = time.monotonic() - begun
        drawn, share = (terminal.taken - before) / took, 100 * (_cpu(terminal) - cpu) / took
        window = typist.away_and_back(effort.focus)
        progress("a slow line")
        slow = _slow(terminal, typist, effort.keys)
        progress("a terminal that takes nothing")
        stalled = stall(terminal, wire, typist, effort.stall_s)
        progress("the focus")
        focus = change_focus(terminal, effort.focus)
    progress("tmux")
    tmux = _in_tmux(model, effort) if shutil.which("tmux") else None
    return UiResult(
        facts["name"], rooms, Delays.of(typed.delays), tmux, Delays.of(focus), Delays.of(window), drawn, share,
        Spread.of(long), Spread.of(short), idle, slow, stalled, Spread.of(starts), kept,
    )  # fmt: skip


def start() -> float:
    """Seconds from the start of the program, as of its first time here, until something typed was echoed."""
    with tempfile.TemporaryDirectory(prefix="mtplx-bench-") as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        terminal = Terminal([sys.executable, "-P", "-m", "mtplx_tui"], {**environment, "HOME": home})
        try:
            return Typist(terminal).until_one_echoes() - terminal.begun
        finally:
            terminal.leave()


@contextmanager
def _child(model: str | None, folder: Path, prefix: Sequence[str] = ()) -> Iterator[tuple[Terminal, Wire]]:
    wire = Wire(folder)
    argv = [sys.executable, "-P", "-m", "mtplx_tui.bench_ui.child", str(wire.path), model or ""]
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TMUX")}
    terminal = Terminal([*prefix, *argv], environment)
    try:
        wire.accept(terminal)
        yield terminal, wire
    finally:
        terminal.close()
        wire.close()


def _rooms(model: str | None, effort: Effort, progress: Callable[[str], None]) -> tuple[dict[str, Any], Rooms]:
    """What the model is, and its speeds."""
    runs: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="mtplx-bench-") as folder, _child(model, Path(folder)) as (terminal, wire):
        facts = wire.hear(terminal)["model"]
        _answer(terminal, wire, effort.tokens, "alone")  # the first one pays for what is loaded and compiled on the way
        for number in range(effort.rounds):
            progress(f"answers, round {number + 1} of {effort.rounds}")
            order = [ROOMS[(at + number) % len(ROOMS)] for at in range(len(ROOMS))]
            runs.append({room: _answer(terminal, wire, effort.tokens, room) for room in order})
    speeds = {room: [run[room]["tok_s"] for run in runs] for room in ROOMS}
    return facts, Rooms(
        {room: Spread.of(values) for room, values in speeds.items()},
        {room: Spread.of_ratios(speeds[room], speeds["alone"]) for room in ROOMS[1:]},
        {room: Spread.of([100 * run[room]["ui_cpu_share"] for run in runs]) for room in ROOMS[1:]},
    )


def _answer(terminal: Terminal, wire: Wire, tokens: int, room: str) -> dict[str, float]:
    wire.tell({"do": "answer", "tokens": tokens, "room": "chat" if room == "stalled" else room})
    wire.hear(terminal)  # it begins
    terminal.rate = 0.0 if room == "stalled" else None
    result = wire.hear(terminal, 600.0)
    terminal.rate = None
    wire.hear(terminal)  # the application has ended
    return result


@contextmanager
def paced(model: str | None, prefix: Sequence[str] = ()) -> Iterator[tuple[Terminal, Wire]]:
    """The application over the paced engine and two saved chats."""
    with tempfile.TemporaryDirectory(prefix="mtplx-bench-") as name:
        folder = Path(name)
        fill(folder / "chats.db")
        with _child(model, folder, prefix) as (terminal, wire):
            wire.hear(terminal)
            wire.tell({"do": "type", "store": str(folder / "chats.db")})
            terminal.seen("READY")
            terminal.pump(1.0)
            yield terminal, wire


def _opens(terminal: Terminal, times: int) -> tuple[list[float], list[float]]:
    """Seconds to open the long chat and the short one, by turns; the short one stays open."""
    pairs = [(open_chat(terminal, 1, LONG_END), open_chat(terminal, 0, SHORT_END)) for _ in range(times)]
    return [long for long, _ in pairs], [short for _, short in pairs]


def _idle(terminal: Terminal, seconds: float) -> Idle:
    terminal.pump(3.0)  # what is collected once nobody waits
    before, cpu, begun = terminal.taken, _cpu(terminal), time.monotonic()
    terminal.pump(seconds)
    took = time.monotonic() - begun
    return Idle((terminal.taken - before) / took, 100 * (_cpu(terminal) - cpu) / took)


def streaming(terminal: Terminal) -> Typist:
    """Ask something, wait until the answer runs well, and give somebody who types meanwhile."""
    terminal.send("Tell me about lists." + ENTER)
    terminal.seen("DECODE")
    terminal.pump(STREAM_S)
    return Typist(terminal)


def _slow(terminal: Terminal, typist: Typist, keys: int) -> Slow:
    terminal.rate = SLOW
    terminal.pump(STREAM_S)
    before, begun = terminal.taken, time.monotonic()
    typed = typist.type(keys)
    rate = (terminal.taken - before) / (time.monotonic() - begun)
    half = len(typed.bytes) // 2
    early, late = Spread.of(typed.bytes[:half]).median, Spread.of(typed.bytes[half:]).median
    return Slow(Delays.of(typed.delays), rate, max(typed.bytes), late / max(early, 1.0))


def stall(terminal: Terminal, wire: Wire, typist: Typist, seconds: float) -> Stall:
    terminal.rate = 0.0
    begun, tokens = time.monotonic(), wire.ask(terminal, {})["tokens"]
    terminal.pump(seconds / 2)
    letter = typist.letter()
    terminal.mark()
    terminal.send(letter)
    terminal.pump(seconds / 2)
    tokens = wire.ask(terminal, {})["tokens"] - tokens
    took, taken = time.monotonic() - begun, terminal.taken
    terminal.rate, resumed = SLOW, time.monotonic()
    echo = terminal.seen(letter) - resumed
    backlog = terminal.taken - taken
    terminal.rate = None
    terminal.send(CTRL_END)
    terminal.pump(STREAM_S)
    return Stall(took, tokens / took, 1000 * echo, backlog)


def _in_tmux(model: str | None, effort: Effort) -> Delays:
    """Echoes over a stream as above, within tmux, whose server is one of our own."""
    with tempfile.TemporaryDirectory(prefix="mtplx-bench-") as folder:
        tmux = ["tmux", "-u", "-f", os.devnull, "-S", str(Path(folder) / "tmux")]
        with paced(model, [*tmux, "new-session"]) as (terminal, _):
            open_chat(terminal, 0, SHORT_END)
            return Delays.of(streaming(terminal).type(effort.keys).delays)


def _cpu(terminal: Terminal) -> float:
    """Processor seconds of the program so far, all its threads."""
    times = psutil.Process(terminal.child.pid).cpu_times()
    return times.user + times.system
