"""The thread that owns MLX: it loads the model, schedules, steps and publishes; everyone else sends it messages.

On a CPU a second one reads the half of a prompt's block with it, and is idle otherwise, see `readers`.
"""

import atexit
import logging
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from engine.config import EngineConfig
from engine.errors import EngineClosedError, EngineError, QueueFullError
from engine.events import Event, FinishEvent, FinishReason, LoadEvent, QueuedEvent
from engine.front import Front, Fronted
from engine.handle import EventSink
from engine.request import SEED_MODULUS, Request
from engine.row import Row

if TYPE_CHECKING:
    from engine.grammar import GrammarCompiler
    from engine.memory import MemoryPlan
    from engine.models.load import LoadedModel
    from engine.runner import Runner

log = logging.getLogger(__name__)
T = TypeVar("T")
IDLE_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Submit:
    row: Row


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _ClearCache:
    pass


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    future: "Future[Any]"


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


class ThreadEngine(Fronted):
    """An EngineHandle whose engine runs on a daemon thread of this process. Loading starts at once.

    `listeners` hear all events, the first ones of loading included.
    """

    def __init__(self, config: EngineConfig, *listeners: EventSink) -> None:
        self._config = config
        self._inbox: queue.SimpleQueue[_Submit | _Cancel | _ClearCache | _Job | _Stop] = queue.SimpleQueue()
        self._front = Front(listeners)
        self._lock = threading.Lock()
        self._plan: MemoryPlan | None = None
        self._runner: Runner | None = None
        self._jobs: deque[_Job] = deque()  # the engine thread's
        self._grammars: GrammarCompiler | None = None
        self._unfinished = 0  # requests that are here: waiting, reading and running
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, request: Request, on_event: EventSink) -> None:
        self._front.check(request)
        assert self._plan is not None
        assert self._grammars is not None
        self._plan.check(len(request.prompt), request.max_tokens)
        info, chat = self.model, self.chat
        seed = secrets.randbelow(SEED_MODULUS) if request.seed is None else request.seed % SEED_MODULUS

        def emit(event: Event) -> None:
            if isinstance(event, FinishEvent):  # before it is told, so that whoever hears it may send the next
                with self._lock:
                    self._unfinished -= 1
            self._front.send(event, on_event)

        grammar = None if request.grammar is None else self._grammars.compile(request.grammar, request.prompt)
        row = Row(request, seed, info.mode, chat, info.context, emit, self._config.profile.accept, grammar)
        with self._lock:  # so that nothing comes into the inbox after its last emptying
            if self._front.state != "ready":
                raise EngineClosedError("The engine has been stopped; start it again to send requests.")
            if self._unfinished >= self._config.max_rows + self._config.max_waiting:
                raise QueueFullError(self._config.max_rows, self._config.max_waiting)
            self._unfinished += 1
            self._inbox.put(_Submit(row))

    def cancel(self, request_id: str) -> None:
        self._inbox.put(_Cancel(request_id))

    def clear_cache(self) -> None:
        self._inbox.put(_ClearCache())

    def perform(self, job: Callable[[], T]) -> "Future[T]":
        """Run `job` on the engine thread, which owns MLX, between two steps; the future has what it returns or raises.

        One job is run a turn, in the order in which they came, so running requests wait for one job at most: let it be
        short. One whose future was cancelled is not begun. Those that are left when the engine stops fail with
        EngineClosedError. Raises as `submit` does where the engine is not ready.
        """
        self.model  # noqa: B018  # raises while it loads
        future: Future[T] = Future()
        with self._lock:
            if self._front.state != "ready":
                raise EngineClosedError("The engine has been stopped; start it again to send requests.")
            self._inbox.put(_Job(job, future))
        return future

    def set_aside(self, size: int) -> None:
        """Set so many bytes aside for what a job keeps beside the model; a negative size gives them back.

        Only a job may call it. Raises OutOfMemoryError where they are not free beside the requests that are here.
        """
        assert threading.current_thread() is self._thread
        assert self._runner is not None
        self._runner.set_aside(size)
        self._plan = self._runner.plan

    def heartbeat_age(self) -> float:
        return time.monotonic() - self._beat

    def close(self, timeout: float = 5.0) -> bool:
        atexit.unregister(self.close)
        self._inbox.put(_Stop())
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._load_and_serve()
        finally:
            _forget_streams()

    def _load_and_serve(self) -> None:
        try:
            loaded, runner = self._load()
        except Exception as error:
            self._front.failed(as_engine_error(error))
            return
        self._plan, self._runner = runner.plan, runner
        self._front.opened(loaded.info, loaded.chat)
        runner.tell_cache()
        try:
            while self._take_messages(runner):
                self._beat = time.monotonic()
                runner.turn()
                if self._jobs:
                    runner.pause()
                    _run(self._jobs.popleft())
            self._end(runner, "cancelled", None)
        except Exception as error:
            problem = as_engine_error(error)
            self._end(runner, "error", problem)
            self._front.failed(problem)
        runner.close()

    def _end(self, runner: "Runner", reason: FinishReason, error: EngineError | None) -> None:
        """Take no more requests, and end those that are here or on their way."""
        with self._lock:
            self._front.stop(error)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, _Submit):
                runner.add(message.row)
            elif isinstance(message, _Job):
                self._jobs.append(message)
        runner.end_all(reason, None if error is None else str(error))
        for job in self._jobs:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(EngineClosedError("The engine was stopped during this request."))
        self._jobs.clear()

    def _load(self) -> "tuple[LoadedModel, Runner]":
        from engine import device

        device.prepare()
        from engine.models.load import load
        from engine.runner import Runner

        loaded = load(self._config, lambda stage: self._front.send(LoadEvent(time.monotonic(), stage)))
        self._grammars = loaded.chat.grammars(loaded.info.vocab_size)
        return loaded, Runner(loaded, self._config, on_cache=self._front.send)

    def _take_messages(self, runner: "Runner") -> bool:
        """Act on everything in the inbox, waiting for a message where there is nothing to run; False to stop."""
        while True:
            try:
                idle = runner.idle and not self._jobs
                message = self._inbox.get(timeout=IDLE_WAIT_S) if idle else self._inbox.get_nowait()
            except queue.Empty:
                return True
            if isinstance(message, _Stop):
                return False
            if isinstance(message, _Cancel):
                runner.cancel(message.request_id)
            elif isinstance(message, _ClearCache):
                runner.clear_cache()
            elif isinstance(message, _Job):
                self._jobs.append(message)
            else:
                row = message.row
                row.emit(_queued(row))
                runner.add(row)


def as_engine_error(error: Exception) -> EngineError:
    """The error as the engine's users know it; one that nobody raised on purpose is logged."""
    if isinstance(error, EngineError):
        return error
    log.error("the engine failed", exc_info=error)
    return EngineError(f"The engine failed: {type(error).__name__}: {error}. Restart it; the log has more.")


def _run(job: _Job) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    try:
        result = job.work()
    except Exception as error:
        job.future.set_exception(error)
    else:
        job.future.set_result(result)


def _forget_streams() -> None:
    """MLX aborts the process at its exit where a thread that has ended still owns streams."""
    import mlx.core as mx

    mx.clear_streams()


def _queued(row: Row) -> QueuedEvent:
    return QueuedEvent(
        row.request.id, time.monotonic(), row.request.source, len(row.request.prompt), row.max_tokens, row.seed
    )
