"""What the screen costs the engine: the same answer with and without the real application drawing it.

One child process runs under a pseudo-terminal that is read all the time, as a terminal would. In it one engine gives
the same seeded answer alone and under the application by turns, so that a change of the machine's speed meets both.
"""

import asyncio
import gc
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import EngineError
from engine.events import CacheEvent, Event, FinishEvent
from engine.request import Request

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from engine.chat import ChatFormat
    from engine.handle import EngineHandle, EventSink, ModelInfo

PROMPT = "Tell me a long story about a fox, then explain step by step how it solved its problem."
SEED = 7
COLUMNS, ROWS = 120, 40
SYNC_QUERY, SYNC_REPLY = b"\x1b[?2026$p", b"\x1b[?2026;2$y"


class BenchFailedError(EngineError):
    """The measurement could not be made; the text says why and can be shown to a user."""


def bench_ui(model: str | None = None, answers: int = 9, tokens: int = 256, timeout: float = 1800.0) -> dict[str, Any]:
    """Decode speed of an answer of `tokens` tokens, `answers` times with the application and as often without.

    Returns:
        ratio: median over the pairs of speed with over speed without; with_ui_tok_s and without_ui_tok_s, each with
        median, min and max; ui_cpu_share: the drawing thread's share of one core; runs: every pair.

    Raises:
        BenchFailedError: the model did not load, or the child ended or overran without a result.
    """
    read_end, write_end = os.pipe()
    master, slave = pty.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    order = json.dumps({"model": model, "answers": answers, "tokens": tokens, "result_fd": write_end})
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    environment.pop("NO_COLOR", None)
    child = subprocess.Popen(
        [sys.executable, "-m", "mtplx_tui.bench_ui", order],
        stdin=slave, stdout=slave, stderr=slave, pass_fds=[write_end], env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    os.close(write_end)
    screen = _drain(master, child, timeout)
    with open(read_end, encoding="utf-8") as results:
        text = results.read()
    os.close(master)
    if not text:
        last = screen.decode("utf-8", "replace").strip().splitlines()
        raise BenchFailedError(f"The measured program gave no result. It said last: {last[-1] if last else 'nothing'}")
    result: dict[str, Any] = json.loads(text)
    if "error" in result:
        raise BenchFailedError(result["error"])
    return result


def _drain(master: int, child: "subprocess.Popen[bytes]", timeout: float) -> bytes:
    """Read what the child draws until it ends; gives the last part of it."""
    deadline = time.monotonic() + timeout
    tail = b""
    while child.poll() is None:
        if time.monotonic() > deadline:
            child.kill()
            child.wait()
            raise BenchFailedError(f"The measurement took longer than {timeout:.0f} s and was ended.")
        if not select.select([master], [], [], 0.2)[0]:
            continue
        try:
            drawn = os.read(master, 65536)
        except OSError:  # Linux says EIO once the child has closed its side
            break
        if SYNC_QUERY in drawn:
            os.write(master, SYNC_REPLY)
        tail = (tail + drawn)[-2000:]
    child.wait()
    return tail


class _FixedAnswer:
    """An EngineHandle that makes every request the same long, seeded one, and keeps its end."""

    def __init__(self, engine: "EngineHandle", tokens: int) -> None:
        self._engine = engine
        self._tokens = tokens
        self.finish: FinishEvent | None = None
        self.ended = threading.Event()

    @property
    def state(self) -> Literal["loading", "ready", "failed", "closed"]:
        return self._engine.state

    @property
    def model(self) -> "ModelInfo":
        return self._engine.model

    @property
    def chat(self) -> "ChatFormat":
        return self._engine.chat

    @property
    def cache(self) -> CacheEvent | None:
        return self._engine.cache

    def wait_ready(self, timeout: float | None = None) -> "ModelInfo":
        return self._engine.wait_ready(timeout)

    def submit(self, request: Request, on_event: "EventSink") -> None:
        self.finish = None
        self.ended.clear()

        def sink(event: Event) -> None:
            on_event(event)
            if isinstance(event, FinishEvent):
                self.finish = event
                self.ended.set()

        self._engine.submit(replace(request, max_tokens=self._tokens, ignore_eos=True, seed=SEED), sink)

    def cancel(self, request_id: str) -> None:
        self._engine.cancel(request_id)

    def clear_cache(self) -> None:
        self._engine.clear_cache()

    def listen(self, on_event: "EventSink") -> Callable[[], None]:
        return self._engine.listen(on_event)

    def heartbeat_age(self) -> float:
        return self._engine.heartbeat_age()

    def close(self, timeout: float = 5.0) -> bool:
        return self._engine.close(timeout)

    def speed(self) -> float:
        """Decode speed of the answer that ended last."""
        if self.finish is None or self.finish.stats.decode_tok_s is None:
            raise BenchFailedError(f"The answer ended without a speed: {self.finish}")
        return self.finish.stats.decode_tok_s


def _alone(handle: _FixedAnswer) -> float:
    ids = handle.chat.render([{"role": "user", "content": PROMPT}])
    gc.collect()
    handle.submit(Request(prompt=ids, sampling=handle.model.sampling, source="bench"), lambda _: None)
    handle.ended.wait()
    return handle.speed()


def _with_ui(handle: _FixedAnswer, folder: Path) -> tuple[float, float]:
    """Speed under the application, and the share of a core that drawing took."""
    from mtplx_tui.app import MtplxApp
    from mtplx_tui.drafts import Draft
    from mtplx_tui.link import LocalLink
    from mtplx_tui.store import Store
    from mtplx_tui.widgets.composer import Composer

    shares: list[float] = []

    async def drive(pilot: "Pilot[object]") -> None:
        composer = pilot.app.screen.query_one(Composer)
        composer.put(Draft(PROMPT))
        await asyncio.sleep(0.5)
        pilot.app.simulate_key("enter")  # pilot.press waits until the whole process, engine included, is idle
        wall, cpu = time.monotonic(), time.thread_time()
        while not handle.ended.is_set():
            await asyncio.sleep(0.05)
        shares.append((time.thread_time() - cpu) / (time.monotonic() - wall))
        await asyncio.sleep(0.3)
        pilot.app.exit()

    store = Store(folder / f"{time.monotonic_ns()}.db")
    handle.ended.clear()
    gc.collect()
    MtplxApp(LocalLink(handle), store, lambda: "not started for this measurement").run(auto_pilot=drive)
    store.close()
    return handle.speed(), shares[0]


def _measure(model: str | None, answers: int, tokens: int) -> dict[str, Any]:
    from engine.config import EngineConfig
    from engine.engine import ThreadEngine

    engine = ThreadEngine(EngineConfig(model=model))
    engine.wait_ready()
    handle = _FixedAnswer(engine, tokens)
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="mtplx-bench-") as folder:
        _alone(handle)  # the first answer of a process pays for what is loaded and compiled on the way
        for number in range(answers):
            order = ("without", "with") if number % 2 == 0 else ("with", "without")
            run: dict[str, float] = {}
            for which in order:
                if which == "without":
                    run["without_ui"] = _alone(handle)
                else:
                    run["with_ui"], run["ui_cpu_share"] = _with_ui(handle, Path(folder))
            run["ratio"] = run["with_ui"] / run["without_ui"]
            runs.append(run)
    engine.close()
    return {
        "model": handle.model.name,
        "tokens": tokens,
        "ratio": statistics.median(run["ratio"] for run in runs),
        "with_ui_tok_s": _spread([run["with_ui"] for run in runs]),
        "without_ui_tok_s": _spread([run["without_ui"] for run in runs]),
        "ui_cpu_share": statistics.median(run["ui_cpu_share"] for run in runs),
        "runs": runs,
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def _child(order: dict[str, Any]) -> None:
    try:
        result = _measure(order["model"], order["answers"], order["tokens"])
    except EngineError as error:
        result = {"error": str(error)}
    with open(order["result_fd"], "w", encoding="utf-8") as out:
        json.dump(result, out)


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
