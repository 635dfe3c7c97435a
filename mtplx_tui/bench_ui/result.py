"""What `bench ui` found, and how it is shown."""

from dataclasses import dataclass
from typing import Any

from engine.bench.receipts import Receipts
from engine.bench.report import Report, Table
from engine.bench.stats import Spread
from mtplx_tui.bench_ui.chats import LONG, SHORT
from mtplx_tui.bench_ui.child import RATE
from mtplx_tui.bench_ui.typist import Delays

ROOMS = ("alone", "chat", "dashboard", "stalled")
SLOW = 64_000.0
"""Bytes a second of the slow line."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Decode speed, tokens a second, by room, and over that of the engine alone within each round.

    Attributes:
        stalled: under the chat, while the terminal takes nothing. cpu_percent: of a core, the drawing thread's.
    """

    tok_s: dict[str, Spread]
    ratio: dict[str, Spread]
    cpu_percent: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class Slow:
    """On a line that takes SLOW bytes a second, while a stream runs.

    Attributes:
        echo_ms: of keys.
        line_bytes_s: that the line took, of all that it would. backlog_bytes: the most that came before an echo.
        growth: median backlog of the later half of the keys over that of the earlier half.
    """

    echo_ms: Delays
    line_bytes_s: float
    backlog_bytes: int
    growth: float


@dataclass(frozen=True, slots=True)
class Stall:
    """A terminal that takes nothing for a while, and then again as much as the slow line does.

    Attributes:
        tok_s: of the paced engine meanwhile. echo_ms: of a key typed in the stall, from its end on.
        backlog_bytes: that came before that echo.
    """

    seconds: float
    tok_s: float
    echo_ms: float
    backlog_bytes: int


@dataclass(frozen=True, slots=True)
class Idle:
    bytes_s: float
    cpu_percent: float


@dataclass(frozen=True, slots=True)
class UiResult:
    """What `bench ui --json` prints.

    Attributes:
        echo_ms: key press to echo, a stream of RATE tokens a second running below SHORT messages of 300 tokens.
        tmux_echo_ms: the same within tmux; None where there is none here. focus_ms: to the transcript and back.
        window_ms: the window lost the focus, got it back, and a key echoed. stream_bytes_s: drawn during the stream.
        open_long_s, open_short_s: from Enter in the list of chats until the end of LONG, SHORT messages is seen.
        start_s: from the start of the program, in an empty home folder, until something typed was echoed.
    """

    model: str
    rooms: Rooms
    echo_ms: Delays
    tmux_echo_ms: Delays | None
    focus_ms: Delays
    window_ms: Delays
    stream_bytes_s: float
    stream_cpu_percent: float
    open_long_s: Spread
    open_short_s: Spread
    idle: Idle
    slow: Slow
    stall: Stall
    start_s: Spread
    receipts: Receipts


def ui_report(result: UiResult) -> Report:
    """For people: what the screen costs the engine, and what its user waits for."""
    rooms = result.rooms
    speeds = Table(
        "rooms",
        "The engine, tokens a second",
        ("with", "tok/s", "over alone", "drawing, % of a core"),
        tuple((_ROOM[room], rooms.tok_s[room], rooms.ratio.get(room), rooms.cpu_percent.get(room)) for room in ROOMS),
    )
    delays = {
        "key to echo": result.echo_ms, "key to echo, in tmux": result.tmux_echo_ms,
        "focus to the messages and back": result.focus_ms, "window left, entered, key to echo": result.window_ms,
        f"key to echo, line of {SLOW / 1000:.0f} KB/s": result.slow.echo_ms,
    }  # fmt: skip
    waits = Table(
        "waits",
        f"Over a stream of {RATE:.0f} tok/s below {SHORT} messages, ms",
        ("", "p50", "p95", "most", "values"),
        tuple((name, *((d.p50, d.p95, d.max, d.values) if d else (None,) * 4)) for name, d in delays.items()),
    )
    slow, stall = result.slow, result.stall
    rows: tuple[tuple[str, Any], ...] = (
        (f"open a chat of {LONG} messages, s", result.open_long_s),
        (f"open a chat of {SHORT} messages, s", result.open_short_s),
        ("first start until a key echoes, s", result.start_s),
        ("idle: bytes a second", result.idle.bytes_s),
        ("idle: % of a core", result.idle.cpu_percent),
        ("stream: bytes a second", result.stream_bytes_s),
        ("stream: % of a core, pacing included", result.stream_cpu_percent),
        ("slow line: bytes a second", slow.line_bytes_s),
        ("slow line: most bytes before an echo", slow.backlog_bytes),
        ("slow line: such bytes, later half of the keys over earlier", slow.growth),
        (f"stall of {stall.seconds:.0f} s: tok/s of {RATE:.0f}", stall.tok_s),
        ("stall: echo after its end, slow line, ms", stall.echo_ms),
        ("stall: bytes before that echo", stall.backlog_bytes),
    )
    others = Table("others", "Besides", ("", "figure"), rows)
    return Report(f"The screen over {result.model}", result.receipts, (speeds, waits, others))


_ROOM = {"alone": "no screen", "chat": "chat and panel", "dashboard": "dashboard", "stalled": "chat, terminal stalled"}
