"""Hours of a busy day, condensed: requests of all kinds come and go, and nothing drifts, leaks or gets mixed up."""

import ctypes
import os
import queue
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from engine.collect import Answer, Completion, complete
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import QueueFullError
from engine.events import Event, FinishEvent, TokenEvent
from engine.request import MAX_DEPTH, Request, Sampling

SOAK_S = 30 * 60.0
TASTE_S = 20.0
KINDS = 24  # different requests, each of which comes again and again
ROUND = 40  # requests between two looks at the memory
MAX_ROWS, MAX_WAITING = 4, 8
MIB = 2**20


def kinds(draw: random.Random) -> list[Request]:
    """Requests of every sort: one-token prompts and long ones, shared beginnings, all samplings, rules and depths."""
    beginning = [draw.randrange(300, 5000) for _ in range(400)]
    requests = []
    for number in range(KINDS):
        own = [draw.randrange(300, 5000) for _ in range(draw.choice([1, 2, 30, 100, 300, 1200]))]
        sampling = Sampling(
            temperature=draw.choice([0.0, 0.7, 1.0, 1.3]),
            top_k=draw.choice([0, 0, 20]),
            top_p=draw.choice([1.0, 0.9]),
            repetition_penalty=draw.choice([1.0, 1.0, 1.1]),
            presence_penalty=draw.choice([0.0, 0.0, 0.5]),
            frequency_penalty=draw.choice([0.0, 0.0, 0.3]),
        )
        requests.append(
            Request(
                tuple(beginning + own if draw.random() < 0.3 else own),
                sampling,
                max_tokens=draw.choice([1, 4, 16, 48]),
                seed=number,
                depth=draw.choice([None, None, 0, 1, 3, MAX_DEPTH]),
                accept_rule=draw.choice([None, "coupled"]),
                ignore_eos=draw.random() < 0.5,
                logprobs=draw.choice([None, None, 0, 3]),
                priority=draw.choice(["interactive", "interactive", "batch"]),
            )
        )
    return requests


class Crowd:
    """Submits requests, cancels some of them, and checks each answer against what the request gets alone."""

    def __init__(self, engine: ThreadEngine, draw: random.Random) -> None:
        self._engine = engine
        self._draw = draw
        self._alone = [(request, complete(engine, request)) for request in kinds(draw)]
        self._finished: queue.SimpleQueue[tuple[Completion, Completion]] = queue.SimpleQueue()
        self._here = 0
        self.ended = self.cancelled = 0

    def come_and_go(self, count: int) -> None:
        """Let `count` requests come, never more at once than are taken in, and wait for all to end."""
        for _ in range(count):
            while self._here >= self._draw.randint(1, MAX_ROWS + MAX_WAITING):
                self._take()
            self._submit()
        while self._here:
            self._take()

    def _submit(self) -> None:
        request, alone = self._draw.choice(self._alone)
        request = replace(request, id=f"soak{self.ended}-{self._here}-{self._draw.getrandbits(32)}")
        gone_after = self._draw.choice([None, None, None, 0, 1, 5])
        answer = Answer()

        def take(event: Event) -> None:
            completion = answer.add(event)
            if gone_after is not None and isinstance(event, TokenEvent) and len(answer.ids) >= gone_after > 0:
                self._engine.cancel(request.id)
            if completion is not None:
                self._finished.put((completion, alone))

        self._here += 1
        self._engine.submit(request, take)
        if gone_after == 0:
            self._engine.cancel(request.id)

    def _take(self) -> None:
        got, alone = self._finished.get(timeout=120)
        self._here -= 1
        self.ended += 1
        assert got.error is None
        if got.finish_reason == "cancelled":
            self.cancelled += 1
            assert got.ids == alone.ids[: len(got.ids)]
        else:
            assert (got.ids, got.text, got.reasoning) == (alone.ids, alone.text, alone.reasoning)
            assert got.finish_reason == alone.finish_reason
            assert len(got.logprobs) == len(alone.logprobs)


def resident() -> int:
    """Bytes of this process in memory, without what the allocators of MLX and of C keep for what comes next."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)  # each thread's arena keeps what was freed: 360 MiB were 180
    whole = int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(os.getpid())])) * 1024
    return whole - mx.get_cache_memory()


def churn(seconds: float) -> None:
    engine = ThreadEngine(EngineConfig(max_rows=MAX_ROWS, max_waiting=MAX_WAITING, cache_bytes=4 * MIB))
    engine.wait_ready(120)
    try:
        crowd = Crowd(engine, random.Random(11))
        active: list[int] = []
        held: list[int] = []
        begun = time.monotonic()
        while time.monotonic() < begun + seconds or len(active) < 6:
            crowd.come_and_go(ROUND)
            mx.synchronize()
            active.append(mx.get_active_memory())
            held.append(resident())
            left = rows_left(engine)
            print(_line(begun, crowd, left, active[-1], held[-1]), file=sys.stderr, flush=True)
            assert left == 0
        warm = len(active) // 3
        assert max(active[warm:]) <= max(active[:warm]) + 5 * MIB, "what the cache of prefixes may hold, and no more"
        assert max(held[warm:]) <= max(held[:warm]) + 64 * MIB
        _no_place_is_lost(engine)
        print(f"all {MAX_ROWS} rows and {MAX_WAITING} places to wait are free", file=sys.stderr)
    finally:
        assert engine.close(30)


def rows_left(engine: ThreadEngine) -> int:
    """Rows that wait, are read, run, or lie in the batch although they have ended."""
    runner = engine._runner
    assert runner is not None

    def count() -> int:
        held = (runner._scheduler.rows, runner._prefills, runner._lengths, runner._batch, runner._ended)
        return sum(map(len, held))

    return engine.perform(count).result(60)


def _line(begun: float, crowd: Crowd, left: int, active: int, held: int) -> str:
    """For people that run it by hand: how memory goes, and what was compared so far."""
    return (
        f"{time.monotonic() - begun:6.0f} s  {crowd.ended:6} answers, {crowd.cancelled:5} of them cancelled, "
        f"all texts right; rows left: {left}; arrays {active / MIB:6.1f} MiB, process {held / MIB:7.1f} MiB"
    )


def _no_place_is_lost(engine: ThreadEngine) -> None:
    ended: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request((300,) * 20, max_tokens=1500, ignore_eos=True)
    for number in range(MAX_ROWS + MAX_WAITING):
        engine.submit(replace(request, id=f"place{number}"), ended.put)
    with pytest.raises(QueueFullError):
        engine.submit(replace(request, id="no place"), ended.put)
    for number in range(MAX_ROWS + MAX_WAITING):
        engine.cancel(f"place{number}")
    left = MAX_ROWS + MAX_WAITING
    while left:
        left -= isinstance(ended.get(timeout=60), FinishEvent)


def in_a_process_of_its_own(seconds: float) -> None:
    """What earlier tests left to the allocators of this one would be counted too: 2 GB after a large model."""
    code = f"from engine import device; device.prepare(); import test_soak; test_soak.churn({seconds})"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent)
    assert done.returncode == 0


@pytest.mark.slow
def test_a_taste_of_a_busy_day() -> None:
    in_a_process_of_its_own(TASTE_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 600)
def test_half_an_hour_of_a_busy_day() -> None:
    in_a_process_of_its_own(SOAK_S)
