"""A block of a prompt on its way through the model: on one thread, or on the CPU on two.

There the second thread runs the block's second half, one layer behind the first: a layer's cache then holds the first
half, and that is all that a layer takes from the tokens in front. MLX computes the operations of a stream one after
another, and hands out ten at most ahead of what is done, over all streams that one thread fills; so a second core
needs a second thread, with a stream of its own, and what goes from one to the other is evaluated on the way.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import mlx.core as mx

from engine.caches.clock import Clock
from engine.caches.state import ModelState
from engine.device import is_cpu, prepare, usable_cores
from engine.models.spec import SpecModel

SHORTEST = 256  # tokens of a block that is worth two threads
GRAIN = 32  # halves end where the chunks of `kernels.delta` do


def read(spec: SpecModel, tokens: mx.array, before: mx.array | None, state: ModelState) -> mx.array:
    """Take the next tokens of a prompt into the caches of trunk and head, which lag by one pair, see `Prefill`.

    Args:
        tokens: [1, T]. before: hidden of the token in front of them, [1, 1, H]; None where there is none.
    Returns:
        Their hiddens, [1, T, H]; neither they nor the caches are evaluated.
    """
    hidden = spec.hidden(tokens, state)
    state.clock.advance_all(tokens.shape[1])
    state.head_clock.advance_all(_read_head(spec, tokens, before, hidden, state))
    return hidden


def _read_head(spec: SpecModel, tokens: mx.array, before: mx.array | None, hidden: mx.array, state: ModelState) -> int:
    """How many pairs the head has read."""
    if spec.head is None:
        return 0
    pairs = mx.concatenate([*([] if before is None else [before]), hidden[:, :-1]], axis=1)
    count = pairs.shape[1]
    if count:
        spec.head_hidden(tokens[:, tokens.shape[1] - count :], pairs, state)
    return count


def readers(spec: SpecModel) -> "Readers | None":
    """Two readers where they pay: on a CPU with a core that the products do not use."""
    if not is_cpu() or usable_cores() == 1:
        return None
    blas = prepare().blas
    return Readers(spec) if blas is None or blas.threads == 1 else None


@dataclass(slots=True)
class _Lead:
    """How far the first reader is ahead of the second.

    Attributes:
        done: counts layers, the head among them, that the first is through with, and the second has not begun.
        given_up: the first has failed, so that the second is to stop where it waits.
        hidden: of the last token of the first half, once its trunk is done.
    """

    done: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    given_up: bool = False
    hidden: mx.array | None = None


class Readers:
    """The calling thread, and one that is started for the first block and waits between blocks.

    That one ends with `close`, with this object, or with the process.
    """

    def __init__(self, spec: SpecModel) -> None:
        self._spec = spec
        self._second: _Thread | None = None

    def read(self, tokens: mx.array, before: mx.array | None, state: ModelState) -> mx.array:
        """As the function `read`, for at least SHORTEST tokens; all is evaluated.

        Raises what either half raises; nothing runs any more then, and the caches are of no use.
        """
        self._second = self._second or _Thread()
        length = tokens.shape[1]
        half = -(-length // (2 * GRAIN)) * GRAIN
        pairs = half if before is not None else half - 1
        later = _after(state.clock, half), _after(state.head_clock, pairs)
        lead = _Lead()
        rest = self._second.start(lambda: self._follow(tokens[:, half:], state, later, lead))
        try:
            first = self._go_ahead(tokens[:, :half], before, state, lead)
            hidden = mx.concatenate([first, rest.result()], axis=1)
        except BaseException:
            lead.given_up = True
            lead.done.release()
            rest.exception()  # waits for it
            raise
        finally:
            del rest  # it holds its error, whose traceback would hold this frame and with it the arrays
        for cache in state.trunk:
            cache.clock = state.clock
        for cache in state.head:
            cache.clock = state.head_clock
        state.clock.advance_all(length)
        if self._spec.head is not None:
            state.head_clock.advance_all(pairs + length - half)
        mx.eval(hidden, state.arrays())
        return hidden

    def close(self) -> None:
        """End the second thread."""
        if self._second is not None:
            self._second.close()
            self._second = None

    def _go_ahead(self, tokens: mx.array, before: mx.array | None, state: ModelState, lead: _Lead) -> mx.array:
        x = self._spec.embed(tokens)
        for place, cache in enumerate(state.trunk):
            x = self._spec.through(place, x, state)
            mx.eval(x, cache.arrays())
            lead.done.release()
        hidden = self._spec.normed(x)
        lead.hidden = mx.contiguous(hidden[:, -1:])
        _read_head(self._spec, tokens, before, hidden, state)
        mx.eval(hidden, lead.hidden, [cache.arrays() for cache in state.head])
        lead.done.release()
        return hidden

    def _follow(self, tokens: mx.array, state: ModelState, later: tuple[Clock, Clock], lead: _Lead) -> mx.array:
        x = self._spec.embed(tokens)
        for place, cache in enumerate(state.trunk):
            lead.done.acquire()
            if lead.given_up:
                return x
            cache.clock = later[0]
            x = self._spec.through(place, x, state)
            mx.eval(x, cache.arrays())
        hidden = self._spec.normed(x)
        lead.done.acquire()
        if lead.given_up:
            return x
        for head_cache in state.head:
            head_cache.clock = later[1]
        _read_head(self._spec, tokens, lead.hidden, hidden, state)
        mx.eval(hidden, [head_cache.arrays() for head_cache in state.head])
        return hidden


def _after(clock: Clock, length: int) -> Clock:
    """What a clock of one row that reads will be once it has read so many more; its arrays are evaluated."""
    later = Clock(mx.array([clock.bound + length], dtype=mx.int32), clock.bound + length)
    later.reading = True
    return later


_Work = tuple[Callable[[], mx.array], "Future[mx.array]"]


class _Thread:
    """A thread that runs what it is given, one after another."""

    def __init__(self) -> None:
        inbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        thread = threading.Thread(target=_serve, args=(inbox,), name="second reader", daemon=True)
        thread.start()
        self._inbox = inbox
        self.close = weakref.finalize(self, _end, inbox, thread)

    def start(self, work: Callable[[], mx.array]) -> "Future[mx.array]":
        future: Future[mx.array] = Future()
        self._inbox.put((work, future))
        return future


def _serve(inbox: "queue.SimpleQueue[_Work | None]") -> None:
    while (given := inbox.get()) is not None:
        work, future = given
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        del given, work, future  # and with them the arrays of a prompt
    mx.clear_streams()  # MLX aborts the process at its exit where a thread that has ended still owns streams


def _end(inbox: "queue.SimpleQueue[_Work | None]", thread: threading.Thread) -> None:
    inbox.put(None)
    thread.join()
