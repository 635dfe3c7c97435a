"""The engine in a process of its own: what crashes there ends there, and memory that it took is given back for sure.

The child (worker.py) is started afresh, since a process that has used MLX can not be forked. `time.monotonic()` is one
clock for all processes on Linux and macOS, so times in events mean here what they mean there.
"""

import atexit
import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from engine.chat import load_chat_format
from engine.config import EngineConfig
from engine.engine import as_engine_error
from engine.errors import EngineClosedError, EngineError
from engine.events import FinishEvent, FinishReason, Stats, TokenEvent, Usage
from engine.front import Front, Fronted
from engine.handle import EventSink
from engine.request import Request
from engine.wire import Answer, Cancel, ClearCache, Failed, Item, Loaded, Stop, Submit, Told

ANSWER_S = 30.0
"""How long the child may take to accept or refuse a request; it does so in a millisecond, unless it is stopped."""

CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP)


@dataclass(slots=True)
class _Running:
    """A request that has not ended. `delivered` counts the tokens that its sink was given."""

    request: Request
    sink: EventSink
    delivered: int = 0

    def end(self, reason: FinishReason, error: str | None = None) -> FinishEvent:
        """Its last event, for when the child can not give it any more."""
        usage = Usage(prompt_tokens=len(self.request.prompt), completion_tokens=self.delivered)
        return FinishEvent(self.request.id, time.monotonic(), reason, usage, Stats(), error)


class ProcessEngine(Fronted):
    """An EngineHandle whose engine runs in a child process. Loading starts at once.

    Sinks and listeners are called on one thread of this process. A child that dies ends its requests with an error
    that names the signal; when this process dies, the child ends by itself.

    `listeners` hear all events, the first ones of loading included. Raises OSError where no process can be started.
    """

    def __init__(self, config: EngineConfig, *listeners: EventSink) -> None:
        self._front = Front(listeners)
        self._running: dict[int, _Running] = {}
        self._tickets = itertools.count(1)
        self._closing = False
        self._beat = time.monotonic()
        self._lock = threading.Lock()  # running and closing
        self._asking = threading.Lock()  # one question at a time is on its way
        self._writing = threading.Lock()
        self._control, control = Pipe()
        self._events, events = Pipe(duplex=False)
        self._child = _start(control, events)
        with suppress(OSError):  # it has died already, and the reader will say so
            self._write(config)
        self._reader = threading.Thread(target=self._run, name="engine-process", daemon=True)
        self._reader.start()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def submit(self, request: Request, on_event: EventSink) -> None:
        """As EngineHandle says. What only the child can refuse, such as a full queue, is raised here too."""
        self._front.check(request)
        with self._lock:
            if self._closing or self._front.state != "ready":
                raise EngineClosedError("The engine has been stopped; start it again to send requests.")
            ticket = next(self._tickets)
            self._running[ticket] = _Running(request, on_event)
        try:
            refusal = self._ask(Submit(ticket, request))
        except (EOFError, OSError):
            refusal = EngineClosedError("The engine's process ended while the request was on its way.")
        if refusal is not None:
            with self._lock:
                ended = self._running.pop(ticket, None) is None
            if not ended:  # else the sink has been told
                raise refusal

    def cancel(self, request_id: str) -> None:
        with suppress(OSError):
            self._write(Cancel(request_id))

    def clear_cache(self) -> None:
        with suppress(OSError):
            self._write(ClearCache())

    def heartbeat_age(self) -> float:
        """As EngineHandle says, but not below what the way here takes: a beat travels four times a second."""
        return time.monotonic() - self._beat

    def close(self, timeout: float = 5.0) -> bool:
        """Ask the child to end; terminate it after two thirds of `timeout`, and kill it a little later."""
        atexit.unregister(self.close)
        with self._lock:
            self._closing = True
        threading.Thread(target=self._ask_to_stop, args=(timeout / 2,), daemon=True).start()
        self._reader.join(timeout * 2 / 3)
        for end in (self._child.terminate, self._child.kill):
            if self._reader.is_alive():
                end()
                self._reader.join(timeout / 6)
        return not self._reader.is_alive()

    def _ask_to_stop(self, seconds: float) -> None:
        with suppress(OSError):
            self._write(Stop(seconds))  # blocks where the child does not read

    def _write(self, message: Any) -> None:
        with self._writing:
            self._control.send(message)

    def _ask(self, message: Submit) -> EngineError | None:
        """Submit and wait for the answer, on a pipe of its own, so that sinks may submit too.

        Raises EOFError or OSError where the child is gone.
        """
        with self._asking:
            self._write(message)
            while self._control.poll(ANSWER_S):
                answer: Answer = self._control.recv()
                if answer.ticket == message.ticket:  # others were given up
                    return answer.error
        self.cancel(message.request.id)
        return EngineError(
            f"The engine's process has not answered for {ANSWER_S:.0f} s; it may be stopped, or the machine out of "
            "memory. Start the engine again."
        )

    def _run(self) -> None:
        error: EngineError | None = None
        try:
            self._read()
        except Exception as problem:
            error = as_engine_error(problem)
            self._child.kill()
        self._end(self._child.wait(), error)
        self._events.close()
        with self._asking, self._writing:
            self._control.close()

    def _read(self) -> None:
        """Hand out what the child sends, until it ends. Raises the error of an engine that failed."""
        while True:
            try:
                batch = self._events.recv()
            except (EOFError, OSError):
                return
            self._beat = batch.beat
            for item in batch.items:
                self._take(item)

    def _take(self, item: Item) -> None:
        if isinstance(item, Told):
            self._hand_out(item)
        elif isinstance(item, Loaded):
            self._front.opened(item.info, load_chat_format(Path(item.info.path)))
        elif isinstance(item, Failed):
            raise item.error
        else:
            logging.getLogger(item.name).handle(item)

    def _hand_out(self, told: Told) -> None:
        if told.ticket is None:
            self._front.send(told.event)
            return
        with self._lock:
            running = self._running.get(told.ticket)
            if isinstance(told.event, FinishEvent):
                self._running.pop(told.ticket, None)
        if running is None:  # given up
            return
        if isinstance(told.event, TokenEvent):
            running.delivered += len(told.event.ids)
        self._front.send(told.event, running.sink)

    def _end(self, code: int, error: EngineError | None) -> None:
        """The child is no more: end what it left, and say why where nobody asked for it."""
        with self._lock:
            left, self._running = list(self._running.values()), {}
            if error is None and not self._closing:
                error = EngineError(
                    f"The engine's process {_how(code)}. Start the engine again; the log may have more."
                )
            self._front.stop(error)
        for running in left:
            last = running.end("cancelled") if error is None else running.end("error", str(error))
            self._front.send(last, running.sink)
        if error is not None:
            self._front.failed(error)


def _start(control: Connection, events: Connection) -> "subprocess.Popen[bytes]":
    """Start the child with its ends of the pipes, and let go of those."""
    numbers = (control.fileno(), events.fileno())
    # -P: the folder that the user stands in may hold an engine/ of its own
    argv = [sys.executable, "-P", "-m", "engine.worker", *map(str, numbers)]
    # Ctrl-C reaches the child too, and must wait there until it is ignored
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=numbers)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        control.close()
        events.close()


def _how(code: int) -> str:
    """What ended a process, in words, from its exit code; negative for a signal."""
    if code >= 0:
        return f"ended by itself with exit code {code}"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), by hand or because memory ran out"
    name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
    return f"crashed in native code ({name})" if -code in CRASHES else f"was ended by {name}"
