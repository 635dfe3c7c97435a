"""Requests beside each other: nobody waits long for somebody else, and what befalls one row leaves the others alone."""

import gc
import logging
import queue
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from by_hand import ByHand

from engine.collect import complete
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.errors import QueueFullError
from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent, StepEvent
from engine.models.spec import SpecModel
from engine.profiles import Profile
from engine.request import Request, Sampling

SAMPLED = Sampling(temperature=0.9, top_p=0.95)
SMALL_CHUNKS = Profile("test", chunk=64)
NO_MEMORY = {
    "what MLX says": lambda: RuntimeError("[malloc] Unable to allocate 123456789 bytes."),
    "what C++ says": lambda: MemoryError("std::bad_alloc"),
}


def prompt(tokens: int, start: int = 0) -> tuple[int, ...]:
    """Ids that hold no special token, other ones for another start."""
    return tuple((start * 97 + 31 * place) % 250 for place in range(tokens))


def ask(name: str, tokens: int = 20, **fields: Any) -> Request:
    seed = fields.pop("seed", 5)
    fields = {"max_tokens": 24, "ignore_eos": True} | fields
    return Request(prompt(tokens, seed), SAMPLED, seed=seed, id=name, **fields)


def failing(
    function: Callable[..., Any], when: Callable[[mx.array], bool], error: Callable[[], Exception]
) -> Callable[..., Any]:
    """`SpecModel.hidden` that raises where `when` says so of the tokens that it is given."""

    def hidden(spec: SpecModel, tokens: mx.array, *rest: Any) -> Any:
        if when(tokens):
            raise error()
        return function(spec, tokens, *rest)

    return hidden


def test_a_short_prompt_is_answered_while_a_long_one_is_read(small: DirectEngine) -> None:
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    hand.add(ask("long", 1500))
    for _ in range(2):
        hand.runner.turn()
    hand.add(ask("short", 40, max_tokens=4))
    hand.turn_until("short")
    (last,) = hand.of(PrefillEvent, "long")[-1:]
    assert last.done < last.total / 2
    hand.turn_until()
    assert hand.done["long"].error is None


def test_running_rows_step_between_any_two_chunks(small: DirectEngine) -> None:
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    hand.add(ask("running", max_tokens=200))
    for _ in range(3):
        hand.runner.turn()
    hand.add(ask("long", 1000, max_tokens=2))
    hand.turn_until()
    kinds = [
        "chunk" if isinstance(event, PrefillEvent) else "step"
        for event in hand.events
        if (isinstance(event, PrefillEvent) and event.request_id == "long")
        or (isinstance(event, StepEvent) and event.request_id == "running")
    ]
    first, last = kinds.index("chunk"), len(kinds) - kinds[::-1].index("chunk")
    between = kinds[first:last]
    assert between.count("chunk") > 5
    assert not any(one == other == "chunk" for one, other in pairwise(between))


def test_prompts_read_by_turns_answer_as_they_do_alone(small: DirectEngine) -> None:
    requests = [ask(str(seed), length, seed=seed) for seed, length in enumerate((700, 30, 450, 90, 2, 1))]
    alone = {request.id: small.run([request])[0].ids for request in requests}
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS, max_rows=4)
    for request in requests:
        hand.add(request)
        hand.runner.turn()
    hand.turn_until()
    assert {name: answer.ids for name, answer in hand.done.items()} == alone


@pytest.mark.parametrize("stage", ["waiting", "reading", "running"])
def test_cancel_ends_a_row_at_once_and_frees_its_place(small: DirectEngine, stage: str) -> None:
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS, max_rows=1, cache_bytes=0)
    if stage == "waiting":
        hand.add(ask("other", max_tokens=60))
    hand.add(ask("gone", 1000 if stage == "reading" else 20, max_tokens=500))
    for _ in range(4):
        hand.runner.turn()
    told = len(hand.of(PrefillEvent, "gone")), len(hand.of(StepEvent, "gone"))
    hand.runner.cancel("gone")
    assert hand.done["gone"].finish_reason == "cancelled"
    hand.add(ask("next", max_tokens=2))
    hand.turn_until()
    assert (len(hand.of(PrefillEvent, "gone")), len(hand.of(StepEvent, "gone"))) == told, "nothing more was done for it"
    assert hand.done["next"].error is None
    assert all(event.rows == 1 for event in hand.events if isinstance(event, StepEvent))


def test_a_chunk_that_fails_costs_the_running_rows_nothing(
    small: DirectEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [ask(str(seed), 20 + seed, seed=seed, max_tokens=60) for seed in range(3)]
    alone = {request.id: small.run([request])[0].ids for request in requests}
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    for request in requests:
        hand.add(request)
    for _ in range(6):
        hand.runner.turn()
    hand.add(ask("bad", 300, seed=9))
    hand.runner.turn()
    with monkeypatch.context() as patch:
        patch.setattr(
            SpecModel, "hidden", failing(SpecModel.hidden, lambda x: x.shape[1] > 30, lambda: ValueError("Boom"))
        )
        hand.turn_until("bad")
    assert "Boom" in (hand.done["bad"].error or "")
    hand.turn_until()
    assert {name: hand.done[name].ids for name in alone} == alone


@pytest.mark.parametrize("error", NO_MEMORY.values(), ids=NO_MEMORY.keys())
@pytest.mark.parametrize("stage", ["chunk", "step"])
def test_running_out_of_memory_ends_the_rows_it_touched_in_words_and_frees_what_they_held(
    small: DirectEngine,
    stage: str,
    error: Callable[[], Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "engine.runner")  # pytest keeps records, which hold the arrays
    hand = ByHand(small.loaded, profile=SMALL_CHUNKS)
    before = mx.get_active_memory()
    for seed in range(3):
        hand.add(ask(str(seed), 20 + seed, seed=seed, max_tokens=60))
    for _ in range(6):
        hand.runner.turn()
    hand.add(ask("reading", 400, seed=9))
    hand.runner.turn()
    reads = stage == "chunk"
    with monkeypatch.context() as patch:
        patch.setattr(SpecModel, "hidden", failing(SpecModel.hidden, lambda x: (x.shape[1] > 30) == reads, error))
        hand.turn_until("reading" if reads else "0")
    failed = {name for name, answer in hand.done.items() if answer.finish_reason == "error"}
    assert failed == ({"reading"} if reads else {"0", "1", "2"})
    assert all("memory" in (hand.done[name].error or "") for name in failed)
    hand.turn_until()
    assert {name for name, answer in hand.done.items() if answer.error is None} == {*"012", "reading"} - failed
    del hand
    gc.collect()
    assert mx.get_active_memory() <= before + 2**20


def test_at_most_so_many_requests_are_taken_in_whoever_asks() -> None:
    engine = ThreadEngine(EngineConfig(max_rows=2, max_waiting=5))
    engine.wait_ready(120)
    try:
        gate, accepted, refused = threading.Barrier(32), [], []
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()

        def submit(number: int) -> None:
            gate.wait(60)
            try:
                engine.submit(ask(str(number), 400, max_tokens=1500), events.put)
                accepted.append(str(number))
            except QueueFullError as error:
                refused.append(str(error))

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (len(accepted), len(refused)) == (7, 25)
        assert all("7 requests" in text and "2 are answered" in text and "5 may wait" in text for text in refused)
        engine.cancel(accepted[0])
        while not isinstance(events.get(timeout=60), FinishEvent):
            pass
        engine.submit(ask("another", max_tokens=1500), events.put)
        with pytest.raises(QueueFullError):
            engine.submit(ask("too many", max_tokens=1500), events.put)
    finally:
        assert engine.close(30)


def test_every_listener_hears_everything_in_one_order(engine: ThreadEngine) -> None:
    heard: list[list[Event]] = [[] for _ in range(40)]
    stops = [engine.listen(own.append) for own in heard]
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(complete(engine, ask(f"many{n}", seed=n, max_tokens=4))))
        for n in range(32)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    complete(engine, ask("last", max_tokens=1))  # once it is over, everybody has heard of those before it
    for stop in stops:
        stop()
    many = [[event for event in own if event.request_id.startswith("many")] for own in heard]  # type: ignore[union-attr]
    assert len(answers) == 32
    assert all(answer.error is None for answer in answers)
    assert all(own == many[0] for own in many)
    assert sum(isinstance(event, QueuedEvent) for event in many[0]) == 32
    assert sum(isinstance(event, FinishEvent) for event in many[0]) == 32
