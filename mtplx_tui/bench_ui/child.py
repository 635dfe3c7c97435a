"""The measured process: an engine, and the application over it as often as the other side of the socket says.

An order is a JSON line. `answer` makes the engine say something: `alone`, or under the application in a room. `type`
starts the application over saved chats and an engine that only keeps a pace; it ends as any does, by its keys.
"""

import asyncio
import gc
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from engine.errors import EngineError
from engine.events import Event, FinishEvent, TokenEvent
from engine.handle import EngineHandle, EventSink
from engine.request import Request
from mtplx_tui.bench_load.wrapped import Wrapped

if TYPE_CHECKING:
    from textual.pilot import Pilot

PROMPT = "Tell me a long story about a fox, then explain step by step how it solved its problem."
SEED = 7
RATE = 200.0
"""Tokens a second of the paced engine."""
TOKEN_CHARACTERS = 4


class Fixed(Wrapped):
    """An EngineHandle that makes every request a long, seeded one of `tokens` tokens, and keeps count.

    Attributes:
        tokens: that came, of all requests. finish: the end of the last request. ended: set when that is there.
    """

    def __init__(self, engine: EngineHandle, length: int) -> None:
        super().__init__(engine)
        self.tokens = 0
        self.finish: FinishEvent | None = None
        self.ended = threading.Event()
        self._length = length

    def submit(self, request: Request, on_event: EventSink) -> None:
        self.finish = None
        self.ended.clear()

        def sink(event: Event) -> None:
            on_event(event)
            if isinstance(event, TokenEvent):
                self.tokens += len(event.ids)
            elif isinstance(event, FinishEvent):
                self.finish = event
                self.ended.set()

        self._engine.submit(replace(request, max_tokens=self._length, ignore_eos=True, seed=SEED), sink)

    def speed(self) -> float:
        """Decode speed of the answer that ended last, tokens a second. Raises EngineError where it has none."""
        if self.finish is None or self.finish.stats.decode_tok_s is None:
            raise EngineError(f"The answer ended without a speed: {self.finish}")
        return self.finish.stats.decode_tok_s


class Child:
    """Carries out orders, one after the other."""

    def __init__(self, engine: EngineHandle, wire: TextIO, folder: Path) -> None:
        self._engine = engine
        self._wire = wire
        self._folder = folder

    def say(self, **answer: Any) -> None:
        self._wire.write(json.dumps(answer) + "\n")
        self._wire.flush()

    def answer(self, tokens: int, room: str) -> None:
        """Tell when the answer begins, then its speed and the share of a core that drawing it took."""
        handle = Fixed(self._engine, tokens)
        gc.collect()
        if room == "alone":
            ids = handle.chat.render([{"role": "user", "content": PROMPT}])
            self.say(begun=True)
            handle.submit(Request(prompt=ids, sampling=handle.model.sampling, source="bench"), lambda _: None)
            handle.ended.wait()
            self.say(tok_s=handle.speed(), ui_cpu_share=0.0)
        else:
            self._run(handle, self._folder / f"{time.monotonic_ns()}.db", lambda pilot: self._ask(pilot, handle, room))
        self.say(ended=True)

    async def _ask(self, pilot: "Pilot[object]", handle: Fixed, room: str) -> None:
        from mtplx_tui.drafts import Draft
        from mtplx_tui.widgets.composer import Composer

        app = pilot.app
        app.screen.query_one(Composer).put(Draft(PROMPT))
        await asyncio.sleep(0.5)
        self.say(begun=True)
        app.simulate_key("enter")  # pilot.press waits until the whole process, engine included, is idle
        if room == "dashboard":
            app.simulate_key("f3")
        wall, cpu = time.monotonic(), time.thread_time()
        while not handle.ended.is_set():
            await asyncio.sleep(0.05)
        share = (time.thread_time() - cpu) / (time.monotonic() - wall)
        self.say(tok_s=handle.speed(), ui_cpu_share=share)
        await asyncio.sleep(0.3)
        app.exit()

    def type(self, store: str) -> None:
        """The application over a paced engine; meanwhile each order is answered with the tokens so far."""
        from mtplx_tui.bench_load.paced import Paced
        from mtplx_tui.bench_ui.chats import ANSWER

        words = [ANSWER[at : at + TOKEN_CHARACTERS] for at in range(0, len(ANSWER), TOKEN_CHARACTERS)]
        handle = Fixed(Paced(self._engine, RATE, words), 10**6)
        over = threading.Event()
        threading.Thread(target=self._tell, args=(handle, over), daemon=True).start()
        self._run(handle, Path(store), None)
        over.set()
        handle.close()

    def _tell(self, handle: Fixed, over: threading.Event) -> None:
        for _ in self._wire:
            self.say(tokens=handle.tokens)
        if not over.is_set():
            os._exit(1)  # the other side is gone, and nobody would end the application

    def _run(self, handle: Fixed, file: Path, drive: "Callable[[Pilot[object]], Any] | None") -> None:
        from mtplx_tui.app import MtplxApp
        from mtplx_tui.link import LocalLink
        from mtplx_tui.store import Store

        store = Store(file)
        MtplxApp(LocalLink(handle), store, lambda: "not started for this measurement").run(auto_pilot=drive)
        store.close()


def main(path: str, model: str | None) -> None:
    """Load the model, say who is there, and take orders until the other side hangs up."""
    from engine.config import EngineConfig
    from engine.engine import ThreadEngine

    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    with connection.makefile("rw") as wire, tempfile.TemporaryDirectory(prefix="mtplx-bench-") as folder:
        engine = ThreadEngine(EngineConfig(model=model))
        child = Child(engine, wire, Path(folder))
        try:
            facts = asdict(engine.wait_ready())
            facts.pop("path", None)
            child.say(model=json.loads(json.dumps(facts, default=str)))
            while line := wire.readline():
                order = json.loads(line)
                getattr(child, order.pop("do"))(**order)
        except EngineError as error:
            child.say(error=str(error))
        engine.close()


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main(sys.argv[1], sys.argv[2] or None)
