"""Which tokens of a step are delivered, with a vocabulary small enough to read."""

from typing import Any

import pytest

from engine.events import Event, FinishEvent, StepEvent, TokenEvent
from engine.request import Request, Sampling
from engine.row import Row, RowStep

EOS = 0


class Letters:
    """Token n is one byte, n; 0 ends the turn; 1 and 2 are the think tags, 3 and 4 those of tool calls."""

    eos_ids = frozenset({EOS})
    think_ids = (1, 2)
    tool_ids = (3, 4)
    tool_style = "json"

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def starts_in(self, prompt: Any) -> str:
        return "reasoning" if prompt[-1] == 1 else "text"


def row(prompt: tuple[int, ...] = (9,), **request: Any) -> tuple[Row, list[Event]]:
    events: list[Event] = []
    return Row(Request(prompt, Sampling(), **request), 0, "mtp", Letters(), 100, events.append), events  # type: ignore[arg-type]


def step(row: Row, text: bytes, drafts: bytes) -> None:
    row.step(RowStep(list(text), list(drafts)), 0.01, 1, 10)


def delivered(events: list[Event]) -> bytes:
    return bytes(token for event in events if isinstance(event, TokenEvent) for token in event.ids)


def text(events: list[Event], kind: str = "text") -> str:
    spans = [span for event in events if isinstance(event, TokenEvent) for span in event.spans]
    return "".join(span.text for span in spans if span.kind == kind)


def finish(events: list[Event]) -> FinishEvent:
    ends = [event for event in events if isinstance(event, FinishEvent)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return ends[0]


def test_end_of_turn_inside_an_accepted_block_drops_the_rest() -> None:
    it, events = row()
    step(it, b"ab\x00cd", b"ab\x00c")
    end = finish(events)
    assert (delivered(events), end.reason) == (b"ab", "stop")
    assert end.usage.completion_tokens == 2
    assert end.usage.accepted_prediction_tokens == 2


def test_end_of_turn_and_budget_in_one_block_end_at_whichever_comes_first() -> None:
    it, events = row(max_tokens=5)
    step(it, b"ab\x00cde", b"ab\x00cd")
    assert (delivered(events), finish(events).reason) == (b"ab", "stop")
    it, events = row(max_tokens=1)
    step(it, b"ab\x00cde", b"ab\x00cd")
    assert (delivered(events), finish(events).reason) == (b"a", "length")


def test_the_end_of_a_turn_ends_nothing_before_the_least_number_of_tokens() -> None:
    it, events = row(min_tokens=4)
    step(it, b"ab\x00", b"ab")
    step(it, b"\x00c\x00d", b"\x00c\x00")
    end = finish(events)
    assert (delivered(events), end.reason, end.usage.completion_tokens) == (b"ab\x00\x00c", "stop", 5)
    it, events = row(min_tokens=4, max_tokens=4)
    step(it, b"ab\x00cd", b"ab\x00c")
    assert (delivered(events), finish(events).reason) == (b"ab\x00c", "length")


def test_a_stop_string_over_the_border_of_two_blocks_is_not_delivered() -> None:
    it, events = row(stop=("beta gamma",))
    step(it, b"alpha be", b"alpha bx")
    assert text(events) == "alpha "
    step(it, b"ta ga", b"ta g")
    step(it, b"mma delta", b"mma delt")
    assert text(events) == "alpha "
    assert (finish(events).reason, finish(events).stop) == ("stop", "beta gamma")


def test_held_text_is_delivered_when_the_budget_ends_the_answer() -> None:
    it, events = row(stop=("xyz",), max_tokens=3)
    step(it, b"axy", b"ax")
    assert text(events) == "axy"
    assert finish(events).reason == "length"


def test_held_text_is_delivered_when_cancelled() -> None:
    it, events = row(stop=("xyz",))
    step(it, b"axy", b"ax")
    assert text(events) == "a"
    it.end("cancelled")
    it.end("error", "too late")
    assert text(events) == "axy"
    assert finish(events).reason == "cancelled"


@pytest.mark.parametrize("character", ["ď", "👋", "é", "👨‍👩‍👧"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_characters_split_over_tokens_and_block_borders_arrive_whole(character: str, size: int) -> None:
    it, events = row()
    raw = character.encode()
    for start in range(0, len(raw), size):
        step(it, raw[start : start + size], raw[start : start + size - 1])
        assert "�" not in text(events)
    assert text(events) == character


def test_a_character_that_is_never_finished_shows_once() -> None:
    it, events = row(max_tokens=2)
    step(it, "👋".encode()[:2], b"\xf0")
    assert text(events) == "�"


def test_reasoning_is_counted_and_told_apart() -> None:
    it, events = row(prompt=(9, 1))
    step(it, b"why\x02so", b"why\x02s")
    step(it, b"\x00", b"")
    assert (text(events, "reasoning"), text(events)) == ("why", "so")
    usage = finish(events).usage
    assert usage.reasoning_tokens == 4  # the tag that ends it is part of it
    assert usage.completion_tokens == 6


def test_figures_of_a_refused_draft() -> None:
    it, events = row()
    step(it, b"ab", b"axq")
    step(it, b"cdef", b"cde")
    told = [event for event in events if isinstance(event, StepEvent)]
    assert [(s.step, s.drafted, s.accepted, s.emitted, s.tokens, s.refused) for s in told] == [
        (1, 3, 1, 2, ("a", "b"), "x"),
        (2, 3, 3, 4, ("c", "d", "e", "f"), None),
    ]
    it.end("cancelled")
    end = finish(events)
    assert end.stats.drafted_by_depth == (2, 2, 1)
    assert end.stats.accepted_by_depth == (2, 1, 1)
    assert end.usage.rejected_prediction_tokens == 1
    assert end.usage.accepted_prediction_tokens == 4
    assert end.stats.tokens_per_step == 3.0


@pytest.mark.parametrize("single", [True, False])
def test_single_call_ends_the_answer_inside_a_block_behind_the_first_call(single: bool) -> None:
    it, events = row(single_call=single)
    step(it, b"a\x03{}\x04\x03{}", b"a\x03{}\x04\x03{")
    if not single:
        assert it.finished is None
        return
    end = finish(events)
    assert (delivered(events), end.reason, end.stop) == (b"a\x03{}\x04", "stop", None)
    assert (text(events), text(events, "tool")) == ("a", "{}")
    assert (end.usage.completion_tokens, end.usage.accepted_prediction_tokens) == (5, 5)


def test_single_call_goes_on_over_what_is_no_call() -> None:
    it, events = row(single_call=True)
    step(it, b"\x03{\x04 and \x03[]\x04.", b"")
    assert it.finished is None
    assert text(events) == " and ."
