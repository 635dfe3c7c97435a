"""Work in many steps on the engine's thread, each step a job of its own. No mlx."""

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """An engine that lends its thread, as ThreadEngine says."""

    def perform(self, job: Callable[[], T]) -> "Future[T]": ...

    def set_aside(self, size: int) -> None: ...


def perform_all(
    engine: Worker, steps: Generator[float, None, T], observe: Callable[[float, float], None]
) -> "Future[T]":
    """Run `steps` to their end, what is between two yields as one job; the future has what they return or raise.

    Cancelling the future ends them before their next job. `observe` is told what each job yields, and its seconds.
    Raises as `perform`; the future does where the engine stops on the way.
    """
    whole: Future[T] = Future()

    def job() -> None:
        if whole.cancelled():
            steps.close()
            return
        begun = time.perf_counter()
        try:
            done = next(steps)
        except StopIteration as end:
            with suppress(InvalidStateError):  # cancelled meanwhile
                whole.set_result(end.value)
            return
        observe(done, time.perf_counter() - begun)
        follow(engine.perform(job))

    def failed(performed: "Future[None]") -> None:
        error = performed.exception()
        if error is not None:
            with suppress(InvalidStateError):
                whole.set_exception(error)

    def follow(performed: "Future[None]") -> None:
        performed.add_done_callback(failed)

    follow(engine.perform(job))
    return whole
