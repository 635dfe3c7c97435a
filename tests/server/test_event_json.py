"""What one side writes, the other reads back as it was: every event, every frame."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import FailedEvent, TokenEvent, TokenLogprob
from server.event_json import KINDS, UnreadableError, decode, encode
from server.facts import Lost

frames = st.sampled_from(KINDS).flatmap(st.from_type)


@given(frames)
def test_every_frame_comes_back_as_it_was(frame: object) -> None:
    text = encode(frame)  # type: ignore[arg-type]
    plain = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert next(iter(plain)) == "type", "a reader may look at the type first"
    assert plain["type"] == type(frame).__name__
    assert repr(decode(text)) == repr(decode(text.decode())) == repr(frame), "repr, since a NaN equals nothing"


def test_there_is_a_frame_for_every_kind_of_event() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert {"QueuedEvent", "PrefillEvent", "StepEvent", "TokenEvent", "FinishEvent", "CacheEvent"} <= names
    assert {"LoadEvent", "ReadyEvent", "FailedEvent", "Hello", "Lost"} <= names


def test_bytes_that_are_no_text_and_impossible_tokens_survive() -> None:
    logprob = TokenLogprob(3, b"\xff\x00?>", -math.inf, ((5, b"\xfe\xfd", -1.5),))
    event = TokenEvent("chatcmpl-1", 1.25, (3,), (), (logprob,))
    assert json.loads(encode(event))["logprobs"][0]["raw"] == "_wA_Pg=="
    assert decode(encode(event)) == event


@given(st.binary() | st.text() | st.dictionaries(st.text(), st.text()).map(json.dumps))
def test_anything_else_is_refused_in_one_way(text: bytes | str) -> None:
    with pytest.raises(UnreadableError):
        decode(text)


@pytest.mark.parametrize(
    "text",
    ['{"type":"NewEvent","at":1}', '{"count":3}', '{"type":"Lost"}', '{"type":"Lost","count":"x"}', '{"type":[]}',
     "[1]"],
)  # fmt: skip
def test_unknown_kinds_and_wrong_fields_are_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        decode(text)


def test_fields_of_a_newer_server_are_passed_over() -> None:
    assert decode('{"type":"Lost","count":3,"since":1.5}') == Lost(3)


def test_a_text_that_json_can_not_hold_is_refused() -> None:
    with pytest.raises(UnreadableError):
        encode(FailedEvent(1.0, "can not open \udcff"))


def test_reading_frames_needs_neither_a_server_nor_a_model() -> None:
    heavy = ["mlx", "transformers", "fastapi", "starlette", "uvicorn"]
    code = f"import sys, server.event_json; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
