"""Whatever fails, and wherever: the committed state stays, the other requests go on, the user reads why."""

import queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from engine.collect import complete
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.errors import BadRequestError, ContextOverflowError, EngineClosedError
from engine.events import Event, FinishEvent, PrefillEvent, QueuedEvent, StepEvent, TokenEvent
from engine.models.spec import SpecModel
from engine.prefill import Prefill
from engine.prompts import PROMPTS
from engine.request import MAX_DEPTH, MAX_STOPS, Request, Sampling
from engine.row import Row
from engine.rows import Rows
from engine.selftest.states import difference
from engine.step import StepPlan, speculate

GREEDY = Sampling(temperature=0.0)
PENALISED = Sampling(temperature=0.8, presence_penalty=0.4)


class Boom(Exception):
    """Raised on purpose."""


def rows_of(small: DirectEngine, sampling: Sampling, prompts: tuple[str, ...] = PROMPTS[:2]) -> Rows:
    parts = []
    for seed, prompt in enumerate(prompts):
        ids = small.loaded.chat.render([{"role": "user", "content": prompt}])
        row = Row(Request(ids, sampling, seed=seed), seed, "mtp", small.loaded.chat, 2048, lambda event: None)
        prefill = Prefill(small.loaded.spec, row)
        prefill.advance(prefill.total)
        parts.append(prefill.rows())
    return Rows.merge(parts)


def run(small: DirectEngine, rows: Rows, steps: int) -> list[list[int]]:
    out = []
    for _ in range(steps):
        outcome = speculate(small.loaded.spec, rows, StepPlan([3] * len(rows)))
        mx.eval(outcome, rows.arrays())
        out.append(outcome.ints.tolist())
    return out


def failing(function: Callable[..., Any], on_call: int) -> Callable[..., Any]:
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == on_call:
            raise Boom
        return function(*args, **kwargs)

    return wrapped


STAGES = {
    "draft: reading the backlog": (SpecModel, "head_hidden", 1),
    "draft: chaining": (SpecModel, "head_hidden", 3),
    "verify": (SpecModel, "hidden", 1),
    "verify: logits": (SpecModel, "logits", 1),
    "commit: first layer": ("trunk", "accept", 0),
    "commit: last layer": ("trunk", "accept", -1),
}


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_fails_leaves_the_last_committed_state(
    small: DirectEngine, stage: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    untouched, hit = rows_of(small, sampling), rows_of(small, sampling)
    assert run(small, untouched, 3) == run(small, hit, 3)
    owner, name, which = STAGES[stage]
    target = hit.state.trunk[which] if owner == "trunk" else owner
    with monkeypatch.context() as patch:
        patch.setattr(target, name, failing(getattr(target, name), 1 if owner == "trunk" else which))
        with pytest.raises(Boom):
            speculate(small.loaded.spec, hit, StepPlan([3] * len(hit)))
    for place in range(2):
        apart = difference(hit.state.select([place]), untouched.state.select([place]))
        assert apart == (0.0, 0.0)
    assert run(small, hit, 4) == run(small, untouched, 4)


def test_an_engine_goes_on_after_a_failing_step(engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(engine.chat.render([{"role": "user", "content": PROMPTS[0]}]), GREEDY, max_tokens=30)
    before = complete(engine, request)
    with monkeypatch.context() as patch:
        patch.setattr(SpecModel, "logits", failing(SpecModel.logits, 4))
        hit = complete(engine, replace(request, id="hit"))
    assert hit.finish_reason == "error"
    assert "Boom" in (hit.error or "")
    assert hit.ids == before.ids[: len(hit.ids)], "what was read before the failure is kept"
    assert len(hit.ids) > 0
    assert complete(engine, replace(request, id="after")).ids == before.ids


def test_a_logit_that_is_not_finite_ends_the_request_with_an_error(
    engine: ThreadEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(engine.chat.render([{"role": "user", "content": PROMPTS[0]}]), Sampling(), max_tokens=30)
    plain = SpecModel.logits
    for bad in (mx.nan, mx.inf):
        with monkeypatch.context() as patch:
            patch.setattr(SpecModel, "logits", lambda spec, hidden, bad=bad: mx.full_like(plain(spec, hidden), bad))
            answer = complete(engine, replace(request, id=f"bad{bad}"))
        assert answer.finish_reason == "error"
        assert "finite" in (answer.error or "")
        assert answer.ids == ()


@pytest.mark.parametrize("phase", [QueuedEvent, PrefillEvent, StepEvent, TokenEvent])
def test_cancel_in_every_phase_ends_the_request_once_and_keeps_its_text(
    engine: ThreadEngine, phase: type[Event]
) -> None:
    prompt = engine.chat.render([{"role": "user", "content": PROMPTS[1] * 40}])
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(prompt, GREEDY, ignore_eos=True, source="test")

    def take(event: Event) -> None:
        if isinstance(event, phase):
            engine.cancel(request.id)
        events.put(event)

    engine.submit(request, take)
    seen: list[Event] = []
    while not (seen and isinstance(seen[-1], FinishEvent)):
        seen.append(events.get(timeout=60))
    assert seen[-1].reason == "cancelled"
    assert seen[-1].usage.completion_tokens == sum(len(e.ids) for e in seen if isinstance(e, TokenEvent))
    assert sum(isinstance(e, FinishEvent) for e in seen) == 1
    after = complete(engine, Request(prompt[:20], GREEDY, max_tokens=3))
    assert after.error is None
    assert events.empty(), "nothing follows the end"


def test_a_sink_that_raises_hurts_nobody(engine: ThreadEngine) -> None:
    def bad(event: Event) -> None:
        raise Boom

    unlisten = engine.listen(bad)
    request = Request(engine.chat.render([{"role": "user", "content": PROMPTS[0]}]), GREEDY, max_tokens=8)
    engine.submit(replace(request, id="deaf"), bad)
    assert complete(engine, request).error is None
    unlisten()


def test_listeners_see_every_request_until_they_leave(engine: ThreadEngine) -> None:
    heard: list[Event] = []
    unlisten = engine.listen(heard.append)
    request = Request(engine.chat.render([{"role": "user", "content": PROMPTS[0]}]), GREEDY, max_tokens=8, source="x")
    complete(engine, request)
    unlisten()
    complete(engine, replace(request, id="unheard"))
    ids = {event.request_id for event in heard if isinstance(event, QueuedEvent | FinishEvent)}
    assert ids == {request.id}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": ()}),
    ("prompt", {"prompt": (1, -5)}),
    ("prompt", {"prompt": (99_999_999,)}),
    ("max_tokens", {"max_tokens": 0}),
    ("depth", {"depth": MAX_DEPTH + 1}),
    ("depth", {"depth": -1}),
    ("logprobs", {"logprobs": 21}),
    ("stop", {"stop": ("x",) * (MAX_STOPS + 1)}),
    ("stop", {"stop": ("",)}),
    ("temperature", {"sampling": Sampling(temperature=-1)}),
    ("temperature", {"sampling": Sampling(temperature=float("nan"))}),
    ("top_p", {"sampling": Sampling(top_p=0.0)}),
    ("top_p", {"sampling": Sampling(top_p=float("inf"))}),
    ("top_k", {"sampling": Sampling(top_k=-1)}),
    ("min_p", {"sampling": Sampling(min_p=1.5)}),
    ("repetition_penalty", {"sampling": Sampling(repetition_penalty=0.0)}),
    ("presence_penalty", {"sampling": Sampling(presence_penalty=3.0)}),
    ("logit_bias", {"sampling": Sampling(logit_bias=((99_999_999, 1.0),))}),
    ("logit_bias", {"sampling": Sampling(logit_bias=((-1, 1.0),))}),
    ("logit_bias", {"sampling": Sampling(logit_bias=((1, float("nan")),))}),
]


@pytest.mark.parametrize(("param", "changes"), BAD)
def test_what_can_not_run_is_refused_before_it_reaches_the_model(
    engine: ThreadEngine, param: str, changes: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError) as refused:
        engine.submit(replace(Request((1, 2, 3), GREEDY), **changes), lambda event: None)
    assert refused.value.param == param
    assert str(refused.value)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(engine: ThreadEngine) -> None:
    context = engine.model.context
    with pytest.raises(ContextOverflowError, match=rf"{context + 3}.*{context}"):
        engine.submit(Request((5,) * (context + 3), GREEDY), lambda event: None)


def test_close_ends_what_runs_and_refuses_what_comes() -> None:
    from engine.config import EngineConfig

    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(60)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    engine.submit(Request((5, 6, 7), GREEDY, ignore_eos=True), events.put)
    while not isinstance(events.get(timeout=60), TokenEvent):
        pass
    assert engine.close(30)
    last = None
    while not events.empty():
        last = events.get()
    assert isinstance(last, FinishEvent)
    assert last.reason == "cancelled"
    with pytest.raises(EngineClosedError):
        engine.submit(Request((5,), GREEDY), events.put)
    assert engine.close(5), "closing twice is harmless"


def test_a_model_that_can_not_load_says_so_everywhere() -> None:
    from engine.config import EngineConfig
    from engine.errors import ModelNotFoundError

    engine = ThreadEngine(EngineConfig(model="no-such-model"))
    with pytest.raises(ModelNotFoundError, match="no-such-model"):
        engine.wait_ready(60)
    assert engine.state == "failed"
    with pytest.raises(ModelNotFoundError):
        engine.submit(Request((5,), GREEDY), lambda event: None)
    assert engine.close(5)
