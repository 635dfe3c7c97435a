"""What events add up to, and how the bridge pulls them."""

import pytest
from scripted_handle import Clock, Play, ScriptedHandle

from engine.events import FailedEvent, LoadEvent, ReadyEvent
from mtplx_tui.bridge import NOTHING, Bridge
from mtplx_tui.state import DONE_KEPT, STEPS_KEPT, EngineState, Snapshot


@pytest.fixture
def state(handle: ScriptedHandle) -> EngineState:
    state = EngineState()
    handle.listen(state.apply)
    return state


def figures(state: EngineState, clock: Clock, rows: int = 10) -> Snapshot:
    return state.snapshot(clock(), rows, 60)


def test_a_request_goes_from_waiting_to_done(handle: ScriptedHandle, state: EngineState, clock: Clock) -> None:
    play = Play.outside(handle, "r1", "api", prompt_tokens=100)
    row = figures(state, clock).active[0]
    assert (row.phase, row.place, row.source) == ("wait", 1, "api")
    play.prefill(40)
    row = figures(state, clock).active[0]
    assert (row.phase, row.read, row.place) == ("prefill", 40, None)
    play.say("a", "b", "c", drafted=4)
    row = figures(state, clock).active[0]
    assert (row.phase, row.out, row.context) == ("decode", 3, 103)
    play.finish()
    assert figures(state, clock).active == ()
    assert not state.busy


def test_waiting_requests_are_numbered_in_their_order(handle: ScriptedHandle, state: EngineState, clock: Clock) -> None:
    Play.outside(handle, "r1").prefill()
    Play.outside(handle, "r2")
    Play.outside(handle, "r3")
    snapshot = figures(state, clock)
    assert [row.place for row in snapshot.active] == [None, 1, 2]
    assert (snapshot.running, snapshot.waiting) == (1, 2)


def test_acceptance_is_cumulative_and_conditional_over_judged_drafts(
    handle: ScriptedHandle, state: EngineState, clock: Clock
) -> None:
    play = Play.outside(handle, "r1").prefill()
    play.say("a", "b", "c", "d", "e", drafted=4)
    play.say("a", "b", drafted=4, refused="x")
    play.say("a", drafted=2, refused="x")
    snapshot = figures(state, clock)
    assert [(d.drafted, d.judged) for d in snapshot.depths] == [(3, 3), (3, 2), (2, 1), (2, 1)]
    assert [d.cumulative for d in snapshot.depths] == pytest.approx([2 / 3, 1 / 3, 1 / 2, 1 / 2])
    assert [d.conditional for d in snapshot.depths] == pytest.approx([2 / 3, 1 / 2, 1, 1])
    assert snapshot.watched is not None
    assert snapshot.watched.tokens_per_step == pytest.approx(8 / 3)
    assert snapshot.watched.acceptance == pytest.approx(5 / 7)  # judged: 4, 2, 1


def test_autoregressive_steps_have_no_acceptance(handle: ScriptedHandle, state: EngineState, clock: Clock) -> None:
    Play.outside(handle, "r1").prefill().say("a", drafted=0)
    snapshot = figures(state, clock)
    assert snapshot.depths == ()
    assert snapshot.watched is not None
    assert snapshot.watched.acceptance is None


def test_speed_is_taken_over_the_last_two_seconds(handle: ScriptedHandle, state: EngineState, clock: Clock) -> None:
    play = Play.outside(handle, "r1").prefill()
    for _ in range(20):
        play.say("a", drafted=0, seconds=0.5)  # 2 tokens a second
    for _ in range(100):
        play.say("a", "b", drafted=1, seconds=0.05)  # 40 tokens a second
    watched = figures(state, clock).watched
    assert watched is not None
    assert watched.tok_s == pytest.approx(40.0)


def test_the_series_counts_all_requests_and_stands_still_when_idle(
    handle: ScriptedHandle, state: EngineState, clock: Clock
) -> None:
    clock.now = 1000.0
    one, two = Play.outside(handle, "r1").prefill(seconds=0), Play.outside(handle, "r2").prefill(seconds=0)
    for _ in range(10):
        one.say("a", drafted=0, seconds=0.1)
        two.say("a", drafted=0, seconds=0.0)
    one.finish()
    two.finish()
    series = figures(state, clock).series
    assert sum(series) * 0.5 == 20
    clock.advance(60)
    assert figures(state, clock).series == series


def test_the_chats_own_request_is_watched_while_it_runs_then_the_newest_outside_one(
    handle: ScriptedHandle, state: EngineState, clock: Clock
) -> None:
    own, other = Play.outside(handle, "mine", "chat").prefill(), Play.outside(handle, "theirs").prefill()
    state.own("mine")
    other.say("x")
    own.say("a")
    watched = figures(state, clock).watched
    assert watched is not None
    assert watched.id == "mine"
    assert [s.request_id for s in figures(state, clock).steps] == ["mine"]
    own.finish()
    watched = figures(state, clock).watched
    assert watched is not None
    assert watched.id == "theirs"
    other.finish()
    watched = figures(state, clock).watched
    assert watched is not None
    assert watched.id == "mine"
    assert watched.tok_s == 96.0  # the engine's own figure once it is done


def test_memory_is_bounded(handle: ScriptedHandle, state: EngineState, clock: Clock) -> None:
    for n in range(DONE_KEPT + 5):
        Play.outside(handle, f"r{n}").prefill().say("a").finish()
    assert sum(state.request(f"r{n}") is not None for n in range(DONE_KEPT + 5)) == DONE_KEPT
    play = Play.outside(handle, "long").prefill()
    for _ in range(STEPS_KEPT + 10):
        play.say("a")
    assert len(state.steps) == STEPS_KEPT
    assert figures(state, clock).steps[0].step == STEPS_KEPT + 10


def test_loading_ready_and_failure(handle: ScriptedHandle, state: EngineState) -> None:
    handle.emit(LoadEvent(1.0, "reading weights"))
    assert state.stage == "reading weights"
    handle.emit(ReadyEvent(2.0, "demo-13m"))
    assert state.stage == ""
    handle.emit(FailedEvent(3.0, "the device is gone"))
    assert state.failure == "the device is gone"


class TestBridge:
    def test_it_collects_the_followed_requests_text_and_end_only(self, handle: ScriptedHandle) -> None:
        bridge = Bridge(handle)
        bridge.follow("mine")
        mine, theirs = Play.outside(handle, "mine").prefill(), Play.outside(handle, "theirs").prefill()
        theirs.say("no").finish()
        mine.say("ye", "s")
        pulled = bridge.pull()
        assert "".join(span.text for span in pulled.spans) == "yes"
        assert pulled.finish is None
        mine.finish("length")
        finish = bridge.pull().finish
        assert finish is not None
        assert finish.reason == "length"
        assert bridge.pull() is NOTHING

    def test_late_events_of_an_earlier_request_are_not_delivered(self, handle: ScriptedHandle) -> None:
        bridge = Bridge(handle)
        bridge.follow("old")
        old = Play.outside(handle, "old").prefill()
        bridge.follow("new")
        old.say("late").finish("cancelled")
        pulled = bridge.pull()
        assert pulled.spans == ()
        assert pulled.finish is None

    def test_a_closed_bridge_takes_nothing_more(self, handle: ScriptedHandle) -> None:
        bridge = Bridge(handle)
        bridge.close()
        Play.outside(handle, "r1").prefill()
        assert bridge.pull() is NOTHING

    def test_a_long_stall_of_the_screen_loses_no_text(self, handle: ScriptedHandle) -> None:
        bridge = Bridge(handle)
        bridge.follow("r1")
        play = Play.outside(handle, "r1").prefill()
        for n in range(20_000):
            play.say(str(n % 10))
        assert len("".join(span.text for span in bridge.pull().spans)) == 20_000
