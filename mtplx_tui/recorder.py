"""Writes the conversation to the store while it happens, in its own thread.

It takes the engine's events itself, so a stalled terminal, a busy screen or a crash of the screen costs the record
nothing: a killed process loses what came since the last checkpoint, half a second's text.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from engine.events import Event, FinishEvent, Span, TokenEvent
from mtplx_tui.store import HEAD, Store, StoreError, StoreGoneError
from mtplx_tui.tools.calls import ToolCall

if TYPE_CHECKING:
    from mtplx_tui.tools.heard import Heard

CHECKPOINT_S = 0.5
RETRY_S = 3.0
"""Between attempts while the store refuses (disk full, locked); nothing is dropped in between."""

CLOSING_PAUSE_S = 0.05

T = TypeVar("T")


@dataclass(slots=True)
class SessionRef:
    """A session of the store; it gets its id with its first message, so that empty ones are never made.

    Attributes:
        system: the system prompt. options: sampling settings by name, of those that were set.
        title: its name, where it was opened or named; a new one's is its first message.
    """

    model: str
    id: int | None = None
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    title: str = ""

    def saved(self, store: Store) -> int:
        """Its id, under which it is in the store now."""
        if self.id is None:
            self.id = store.new_session(self.model)
            if self.system or self.options:
                store.describe(self.id, self.system, self.options)
        return self.id

    def begin_anew(self) -> None:
        """It was deleted meanwhile, here or by another program; what is said from now on is saved as another."""
        self.id, self.title = None, ""


@dataclass(slots=True, eq=False)
class MessageRef:
    """A message of the store; it gets its id when it is saved. None as a parent means: nothing comes before."""

    id: int | None = None


class Record(Protocol):
    """Something that is saved bit by bit."""

    @property
    def over(self) -> bool:
        """All of it is known and saved."""

    def save(self, store: Store) -> bool:
        """Save what is new; whether there was anything. Raises StoreError, and is then called again."""


@dataclass(slots=True, eq=False)
class ResultRecord:
    """The result of a tool call that was decided.

    Attributes:
        parent: what it follows: the answer that made the call, or the result before.
        ref: the message, once it is saved.
    """

    session: SessionRef
    call: ToolCall
    parent: MessageRef
    ref: MessageRef

    @property
    def over(self) -> bool:
        return self.ref.id is not None

    def save(self, store: Store) -> bool:
        try:
            self._save(store)
        except StoreGoneError:
            self.session.begin_anew()
            self.parent = MessageRef()
            self._save(store)
        return True

    def _save(self, store: Store) -> None:
        number, stats = self.session.saved(store), self.call.saved_result()
        self.ref.id = store.add_message(number, "tool", self.call.result, stats=stats, parent=self.parent.id)


@dataclass(slots=True, eq=False)
class TurnRecord:
    """One user message and its answer, as far as they are known and saved.

    Attributes:
        user: None for another answer to the message that `parent` is. parent: what the turn follows.
        heard: tells tool calls from text; None where the model may call nothing.
        asked, answer: the two messages, once they are saved.
    """

    session: SessionRef
    user: str | None
    parent: MessageRef = field(default_factory=lambda: MessageRef(HEAD))
    heard: "Heard | None" = None
    asked: MessageRef = field(default_factory=MessageRef)
    answer: MessageRef = field(default_factory=MessageRef)
    events: deque[Event] = field(default_factory=deque)
    texts: dict[str, list[str]] = field(default_factory=lambda: {"text": [], "reasoning": [], "tool": []})
    finish: FinishEvent | None = None
    user_saved: bool = False
    changed: bool = True

    def on_event(self, event: Event) -> None:
        """The request's sink; runs on the engine's thread and returns at once."""
        self.events.append(event)

    @property
    def over(self) -> bool:
        return self.finish is not None and not self.changed

    def absorb(self) -> None:
        """Take in what came."""
        while self.events:
            event = self.events.popleft()
            if isinstance(event, TokenEvent):
                self._hear(event.spans if self.heard is None else self.heard.take(event.spans))
            elif isinstance(event, FinishEvent):
                self._hear(() if self.heard is None else self.heard.end(event.reason))
                self.finish = event
                self.changed = True

    def _hear(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.texts[span.kind].append(span.text)
            self.changed = True

    def text(self, kind: str) -> str:
        parts = self.texts[kind]
        parts[:] = ["".join(parts)]
        return parts[0]

    def save(self, store: Store) -> bool:
        self.absorb()
        new = self.changed or not self.user_saved
        try:
            self._save(store)
        except StoreGoneError:
            self.session.begin_anew()
            self.parent, self.answer.id = MessageRef(), None
            self.user_saved, self.changed = False, True
            self._save(store)
        return new

    def _save(self, store: Store) -> None:
        number = self.session.saved(store)
        if not self.user_saved:
            if self.user is not None:
                self.asked.id = store.add_message(number, "user", self.user, parent=self.parent.id)
            self.user_saved = True
        if not self.changed:
            return
        values = (self.text("text"), self.text("reasoning"), self._stats(), self.finish.reason if self.finish else None)
        if self.answer.id is None:
            behind = self.parent if self.user is None else self.asked
            self.answer.id = store.add_message(number, "assistant", *values, parent=behind.id)
        else:
            store.update_message(self.answer.id, *values)
        self.changed = False

    def _stats(self) -> dict[str, Any] | None:
        stats: dict[str, Any] = {}
        if self.finish is not None:
            stats = {"usage": asdict(self.finish.usage), **asdict(self.finish.stats)}
            if self.finish.error:
                stats["error"] = self.finish.error
        if tool := self.text("tool"):
            stats["tool"] = tool
        if self.finish is not None and self.heard is not None and self.heard.calls:
            stats["calls"] = [call.saved() for call in self.heard.calls]
        return stats or None


class Recorder:
    """Owns all use of the store by the screens.

    Attributes:
        problem: why saving fails just now, in words for the user; None while it works.
        saved_at: `time.time()` of the last save.
    """

    def __init__(self, store: Store, checkpoint_s: float = CHECKPOINT_S, retry_s: float = RETRY_S) -> None:
        self.problem: str | None = None
        self.saved_at: float | None = None
        self._store = store
        self._checkpoint_s = checkpoint_s
        self._retry_s = retry_s
        self._new: deque[Record] = deque()
        self._open: list[Record] = []
        self._calls: deque[tuple[Callable[[Store], Any], Future[Any]]] = deque()
        self._wake = threading.Event()
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="mtplx-recorder", daemon=True)
        self._thread.start()

    def start(self, record: Record) -> None:
        """Save this from now on, until it is over; what was started before it is saved before it."""
        self._new.append(record)
        self._wake.set()

    def call(self, read: Callable[[Store], T]) -> "Future[T]":
        """Run something on the store after all that is to be saved before it."""
        future: Future[T] = Future()
        self._calls.append((read, future))
        self._wake.set()
        return future

    def close(self, timeout: float = 3.0) -> bool:
        """Save what there is and end; False where not everything was taken in time.

        Turns that still run are waited for within the timeout, so cancel them first.
        """
        self._deadline = time.monotonic() + timeout
        self._wake.set()
        self._thread.join(timeout + 1.0)
        return not self._thread.is_alive() and not self._open

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause())
            self._wake.clear()
            while self._new:
                self._open.append(self._new.popleft())
            self._save()
            while self._calls:
                self._answer(*self._calls.popleft())
            if self._deadline is not None and (not self._open or time.monotonic() > self._deadline):
                return

    def _pause(self) -> float | None:
        if self._deadline is not None:
            return CLOSING_PAUSE_S
        if not self._open:
            return None
        return self._retry_s if self.problem else self._checkpoint_s

    def _save(self) -> None:
        try:
            for record in self._open:
                if record.save(self._store):
                    self.saved_at = time.time()
        except StoreError as error:
            self.problem = str(error)
            return
        self.problem = None
        self._open = [record for record in self._open if not record.over]

    def _answer(self, read: Callable[[Store], Any], future: "Future[Any]") -> None:
        try:
            future.set_result(read(self._store))
        except StoreError as error:
            future.set_exception(error)
