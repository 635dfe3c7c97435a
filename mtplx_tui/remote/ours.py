"""A Link to a server of ours: its events as they come, its clock as ours, and a connection that may drop.

Locks are held only while events are handed on, and sinks return at once. A request of ours that may have missed
something is held back until `/answer` has told what; see `mtplx_tui.remote.own`.
"""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.events import (
    Event,
    FailedEvent,
    FinishEvent,
    FinishReason,
    LoadEvent,
    PrefillEvent,
    QueuedEvent,
    ReadyEvent,
    Stats,
    Usage,
)
from engine.front import Front
from engine.handle import EngineState, EventSink, ModelInfo
from mtplx_tui.link import Question
from mtplx_tui.remote import http
from mtplx_tui.remote.api import Api, LostError, NotNowError, UnsentError
from mtplx_tui.remote.own import Own
from server.event_json import Frame, UnreadableError, decode
from server.facts import AnswerFacts, Hello, Lost, RequestFacts

if TYPE_CHECKING:
    from mtplx_tui.sent import Sent

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
CLOSE_S = 2.0
OVER_KEPT = 1000
CANCELLED_THERE = "This answer was ended at the server: somebody cancelled it there, or the server was stopped."


class RemoteLink:
    """Connects when it is first listened to, on a thread of its own, and again after each drop until it is closed.

    While there is no connection its state is `loading`, a LoadEvent says so, and `line` says why.

    Args:
        url: as `http.base_url` gives it.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self._api = Api(url, key)
        self._front = Front(())  # for its listeners; the state is the server's
        self._lock = threading.RLock()
        self._own: dict[str, Own] = {}
        self._over: dict[str, None] = {}  # ours that have ended, the oldest first
        self._to_cancel: set[str] = set()
        self._running: set[str] = set()  # whoever asked
        self._state: EngineState = "loading"
        self._model: ModelInfo | None = None
        self._error: EngineError | None = None
        self._connected = False
        self._offset = 0.0
        self._socket: socket.socket | None = None
        self._closing = threading.Event()
        self._trouble = "connecting"
        self._reader = threading.Thread(target=self._read, name="remote-events", daemon=True)

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def model(self) -> ModelInfo:
        if self._error is not None:
            raise self._error
        if self._model is None or self._state != "ready":
            raise EngineError(f"No model can be reached at {self.url} just now: {self._trouble or 'it is loading'}.")
        return self._model

    @property
    def line(self) -> str:
        """Where the server is and whether it can be reached, in words for a screen."""
        return f"{self.url}/v1" if self._connected else f"{self.url}/v1: {self._trouble}"

    def ask(self, question: Question, on_event: EventSink) -> None:
        own = Own(question.id, on_event)
        with self._lock:
            if not self._connected:
                raise EngineError(f"{self.url} can not be reached just now: {self._trouble}.")
            self._own[own.id] = own
        try:
            self._api.ask(question, None if self._model is None else self._model.sampling)
        except BaseException as error:
            with self._lock:
                self._own.pop(own.id, None)
            if isinstance(error, UnsentError):
                self._to_cancel.add(own.id)  # with the next connection: it may have arrived all the same
                self._break()
            raise
        with self._lock:
            own.sent = True
            behind = self._connected and own.held is not None
        if behind:  # the connection was another one meanwhile, and did not know of it
            try:
                self._catch_up(own)
            except NotNowError:
                self._break()  # the next connection catches up

    def count(self, text: str) -> int | None:
        return None

    def sent(self, request_id: str, start: int = 0) -> "Sent":
        try:
            return self._api.sent(request_id, start)
        except (NotNowError, LostError) as error:
            raise EngineError(f"{self.url} does not tell what was sent to its model: {error}.") from error

    def cancel(self, request_id: str) -> None:
        with self._lock:
            own = self._own.get(request_id)
            if own is not None:
                own.cancelled = True
                if not self._connected:
                    self._to_cancel.add(request_id)
                    self._end(own, "cancelled")
                    return
        threading.Thread(target=self._api.cancel, args=(request_id,), name="remote-cancel", daemon=True).start()

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        unlisten = self._front.listen(on_event)
        with self._lock:
            if self._reader.ident is None:  # what runs at the server is told once, so somebody must be there
                self._reader.start()
        return unlisten

    def close(self) -> None:
        """Cancel what was asked here and still runs, and end."""
        with self._lock:
            running = [own.id for own in self._own.values() if own.sent and self._connected]
        self._closing.set()
        for request_id in running:
            self._api.cancel(request_id, CLOSE_S)
        self._break()
        if self._reader.is_alive():
            self._reader.join(CLOSE_S)
        self._api.close()

    # The connection, on the reader's thread

    def _read(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._closing.is_set():
            try:
                self._api.events(self._opened_socket, self._line)
            except NotNowError as error:
                pause = FIRST_PAUSE_S if self._connected else pause
                self._dropped(str(error))
            self._socket = None
            self._closing.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

    def _opened_socket(self, opened: socket.socket) -> None:
        self._socket = opened

    def _break(self) -> None:
        """End the present connection, whose reader then makes a new one."""
        if (open_socket := self._socket) is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def _dropped(self, why: str) -> None:
        if self._closing.is_set():
            return
        with self._lock:
            self._connected = False
            if self._state != "failed":
                self._state = "loading"
            self._trouble = f"reconnecting, {why}"
            for own in self._own.values():
                own.held = []  # what waits is older than what the next connection asks for
                own.until = None if own.until is None else -math.inf  # its clock is taken anew, too
        log.warning("%s: %s", self.url, why)
        where = self.url.partition("://")[2]
        self._front.send(LoadEvent(time.monotonic(), f"reconnecting to {where}"))  # why stands in `line`

    def _line(self, line: bytes) -> None:
        data = http.data_of(line)
        if data is None:
            if line.startswith(b":") and self._state == "loading":
                self._look_at_engine()
            return
        try:
            frame = decode(data)
        except UnreadableError as error:
            log.info("%s sends what is not known here: %s", self.url, error)
            return
        if isinstance(frame, Hello):
            self._welcome(frame)
        elif isinstance(frame, Lost):
            self._after_loss(frame)
        else:
            self._hear(frame)

    def _welcome(self, hello: Hello) -> None:
        with self._lock:
            self._offset = time.monotonic() - hello.now
            self._connected, self._trouble = True, ""
            pending = [own for own in self._own.values() if own.sent]
            self._meet(hello.requests)
        self._settle({facts.id for facts in hello.requests})
        if hello.cache is not None:
            self._front.send(self._ours(hello.cache))
        if hello.state == "ready" and hello.model is not None:
            self._opened(hello.model)
        else:
            self._look_at_engine()
        for own in pending:
            self._catch_up(own)
        while self._to_cancel:
            self._api.cancel(self._to_cancel.pop())

    def _after_loss(self, lost: Lost) -> None:
        log.info("%s left %d events out: this reader was too slow", self.url, lost.count)
        with self._lock:
            pending = [own for own in self._own.values() if own.sent]
            for own in self._own.values():
                own.held = own.held or []
        self._settle({facts.id for facts in self._api.requests() if facts.state != "done"})
        for own in pending:
            self._catch_up(own)

    def _hear(self, raw: Frame) -> None:
        event: Any = self._ours(raw)
        match event:
            case LoadEvent():
                self._state = "loading"
            case ReadyEvent():
                self._look_at_engine()
                return
            case FailedEvent():
                self._failed(event.error)
                return
        request_id = getattr(event, "request_id", "")
        with self._lock:
            own = self._own.get(request_id)
            if own is None:
                self._pass_on(event)
            elif own.held is not None:
                own.held.append(event)
            elif isinstance(event, FinishEvent) and own.until is not None:
                own.held = [event]  # something was missed once, so the whole of it is compared
            else:
                self._tell(own, event)
                return
        if own is not None and isinstance(event, FinishEvent) and own.sent:
            self._catch_up(own)

    def _pass_on(self, event: Event) -> None:
        """Tell of a request of somebody else's, or of the engine."""
        request_id = getattr(event, "request_id", "")
        if request_id in self._over or (isinstance(event, QueuedEvent) and request_id in self._running):
            return
        self._note(event)
        self._front.send(event)

    def _tell(self, own: Own, event: Event) -> None:
        """Tell of a request of ours, in order."""
        if isinstance(event, QueuedEvent) and own.id in self._running:
            return
        if not own.take(event):
            return
        self._note(event)
        if isinstance(event, FinishEvent):
            if event.reason == "cancelled" and not own.cancelled:
                event = replace(event, reason="error", error=CANCELLED_THERE)
            self._own.pop(own.id, None)
            self._over[own.id] = None
            if len(self._over) > OVER_KEPT:
                del self._over[next(iter(self._over))]
        self._front.send(event, own.sink)

    def _note(self, event: Event) -> None:
        if isinstance(event, QueuedEvent):
            self._running.add(event.request_id)
        elif isinstance(event, FinishEvent):
            self._running.discard(event.request_id)

    def _end(self, own: Own, reason: FinishReason, error: str | None = None) -> None:
        """End a request of ours without a word from the server; one that has ended stays so."""
        if own.id not in self._own:
            return
        usage = Usage(completion_tokens=own.ids)
        self._tell(own, FinishEvent(own.id, time.monotonic(), reason, usage, Stats(), error))

    # What was missed

    def _catch_up(self, own: Own) -> None:
        """Tell what of an answer has not come, and then what was held back. Raises NotNowError."""
        again = True
        while again:
            try:
                answer = self._api.answer(own.id)
            except LostError as error:
                with self._lock:
                    self._end(own, "error", f"The connection dropped during this answer, and its end is lost: {error}.")
                return
            with self._lock:
                again = own.id in self._own and self._caught_up(own, answer)

    def _caught_up(self, own: Own, answer: AnswerFacts) -> bool:
        """Whether it must be asked once more: it has ended meanwhile."""
        held, own.held = own.held or [], None
        at = None if answer.at is None else answer.at + self._offset
        missing = own.missing(answer, at or time.monotonic())
        before, own.until = own.until, None  # what was missed is no event that was told already
        if missing is not None:
            self._tell(own, missing)
        own.until = max(-math.inf if at is None else at, -math.inf if before is None else before)
        if answer.finish is not None:
            self._tell(own, self._ours(answer.finish))
            return False
        for event in held:
            if isinstance(event, FinishEvent):
                own.held = [event]
                return True
            self._tell(own, event)
        return False

    def _settle(self, running: set[str]) -> None:
        """End what ran before something was missed and is not among what runs now, unless it is ours."""
        with self._lock:
            gone = self._running - running - set(self._own)
        if not gone:
            return
        ended = {facts.id: facts for facts in self._api.requests()}
        for request_id in gone:
            facts = ended.get(request_id)
            reason: FinishReason = (facts and facts.finish_reason) or "error"
            usage, stats = (facts and facts.usage) or Usage(), (facts and facts.stats) or Stats()
            error = facts.error if facts else "The connection dropped, and its end was not seen."
            with self._lock:
                self._pass_on(FinishEvent(request_id, time.monotonic(), reason, usage, stats, error))

    def _meet(self, requests: tuple[RequestFacts, ...]) -> None:
        """Tell of requests that run and were not known."""
        now = time.monotonic()
        for facts in requests:
            if facts.id in self._running or facts.id in self._over:
                continue
            begun = now - facts.age_s
            told: list[Event] = [
                QueuedEvent(facts.id, begun, facts.source, facts.prompt_tokens, facts.max_tokens or 0, 0)
            ]
            if facts.state != "waiting":
                read, cached = facts.read_tokens, facts.cached_tokens
                told.append(PrefillEvent(facts.id, now, read, facts.prompt_tokens, cached, facts.miss))
            for event in told:
                self._note(event)
                self._front.send(event)

    # The engine there

    def _look_at_engine(self) -> None:
        """Ask how the engine is and which model it has."""
        there = self._api.engine()
        state, model = there.state, there.model
        if state == "ready" and model is not None:
            if self._state != "ready" or model != self._model:
                self._opened(model)
        elif state == "failed":
            self._failed("the engine has failed; the log of the server says why")
        elif state == "closed":
            self._state, self._model = "closed", None
        elif self._state != "loading" or self._model is not None:
            self._state, self._model = "loading", None
            self._front.send(LoadEvent(time.monotonic(), "the server loads its model"))

    def _opened(self, model: ModelInfo) -> None:
        self._model, self._error = model, None
        self._state = "ready"
        self._front.send(ReadyEvent(time.monotonic(), model.name))

    def _failed(self, why: str) -> None:
        self._error, self._state = EngineError(f"At {self.url}: {why}"), "failed"
        self._front.send(FailedEvent(time.monotonic(), str(self._error)))

    def _ours(self, frame: Any) -> Any:
        """An event with its moment on this machine's clock."""
        return replace(frame, at=frame.at + self._offset)
