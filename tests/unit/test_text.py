"""TextStream: bytes to characters, tags to kinds, stop strings to an end."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Span, SpanKind
from engine.text import FirstCall, StopMatcher, TextStream, ToolStyle

THINK, END_THINK, TOOL, END_TOOL = 1000, 1001, 1002, 1003
TAGS = {THINK: b"<think>", END_THINK: b"</think>", TOOL: b"<tool_call>", END_TOOL: b"</tool_call>"}


class Bytes:
    """A vocabulary of the 256 bytes, four tags, and whole words from 2000 on."""

    think_ids = (THINK, END_THINK)
    tool_ids = (TOOL, END_TOOL)

    def __init__(self, words: Sequence[bytes] = ()) -> None:
        self._words = words

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return TAGS[token] if token in TAGS else self._words[token - 2000]


class Untagged(Bytes):
    think_ids = None
    tool_ids = None


def ids(*parts: str | bytes | int) -> list[int]:
    """Tokens of a script: text as one token a byte, tags as they are."""
    return [
        t for p in parts for t in ([p] if isinstance(p, int) else p.encode() if isinstance(p, str) else p)
    ]  # fmt: skip


def run(stream: TextStream, tokens: Iterable[int]) -> dict[SpanKind, str]:
    spans = [span for token in tokens for span in stream.push(token)] + stream.finish()
    return channels(spans)


def channels(spans: Iterable[Span]) -> dict[SpanKind, str]:
    found: dict[SpanKind, str] = {}
    for span in spans:
        found[span.kind] = found.get(span.kind, "") + span.text
    return found


def say(*parts: str | bytes | int, stops: Sequence[str] = (), kind: SpanKind = "text") -> dict[SpanKind, str]:
    return run(TextStream(Bytes(), stops, kind), ids(*parts))


# --- bytes to characters


@pytest.mark.parametrize("text", ["ď", "👋", "🏴‍☠️ ahoy", "日本語", "a\u0301"])
def test_a_character_split_over_tokens_comes_out_whole_and_only_when_complete(text: str) -> None:
    stream = TextStream(Bytes())
    shown = ""
    for token in ids(text):
        for span in stream.push(token):
            shown += span.text
            assert "\ufffd" not in shown
    assert stream.finish() == []
    assert shown == text


def test_nothing_is_delivered_before_a_character_is_complete() -> None:
    stream = TextStream(Bytes())
    assert [stream.push(t) for t in "👋".encode()[:3]] == [[], [], []]
    assert stream.push("👋".encode()[3]) == [Span("text", "👋")]


def test_an_unfinished_character_at_the_end_is_one_replacement_character() -> None:
    assert say("hi ", "👋".encode()[:3]) == {"text": "hi \ufffd"}


def test_invalid_bytes_are_replaced_and_the_text_goes_on() -> None:
    assert say(b"a\xff\xc4b") == {"text": "a\ufffd\ufffdb"}


def test_a_character_cut_by_a_tag_is_closed_in_its_own_kind() -> None:
    assert say("x", "👋".encode()[:2], END_THINK, "y", kind="reasoning") == {"reasoning": "x\ufffd", "text": "y"}


@given(st.binary(max_size=40))
def test_any_bytes_decode_as_python_decodes_the_whole(data: bytes) -> None:
    assert say(data).get("text", "") == data.decode("utf-8", "replace")


# --- kinds


def test_thinking_from_the_prompt_ends_at_the_close_token_without_its_line_breaks() -> None:
    said = say("Let me see.\n", END_THINK, "\n\n132", kind="reasoning")
    assert said == {"reasoning": "Let me see.", "text": "132"}


def test_thinking_that_the_model_opens_itself_loses_the_line_break_after_the_tag() -> None:
    assert say(THINK, "\nhm\n", END_THINK, "\n\nyes") == {"reasoning": "hm", "text": "yes"}


def test_empty_thinking_leaves_no_reasoning() -> None:
    assert say(THINK, "\n\n", END_THINK, "\n\nyes") == {"text": "yes"}
    assert say("\n", END_THINK, "\n\nyes", kind="reasoning") == {"text": "yes"}


def test_only_the_delimiters_line_breaks_are_left_out() -> None:
    said = say("a\n\n\n", END_THINK, "\n\n\nb\n", kind="reasoning")
    assert said == {"reasoning": "a\n\n", "text": "\nb\n"}


def test_a_single_line_break_after_the_close_token_is_left_out_too() -> None:
    assert say(END_THINK, "\nb\n\nc", kind="reasoning") == {"text": "b\n\nc"}


def test_a_literal_close_tag_in_ordinary_tokens_is_text_like_any_other() -> None:
    said = say("write `</think>` to end <think>", END_THINK, "</think>", kind="reasoning")
    assert said == {"reasoning": "write `</think>` to end <think>", "text": "</think>"}


def test_thinking_never_closed_is_all_reasoning_to_the_last_line_break() -> None:
    assert say("a\nb\n", kind="reasoning") == {"reasoning": "a\nb\n"}


def test_a_second_close_token_is_shown_as_the_text_it_stands_for() -> None:
    assert say("a", END_THINK, "b", END_THINK, "c", kind="reasoning") == {"reasoning": "a", "text": "b</think>c"}


def test_an_open_token_inside_thinking_is_shown_as_the_text_it_stands_for() -> None:
    assert say("a", THINK, "b", kind="reasoning") == {"reasoning": "a<think>b"}


def test_a_tool_call_is_kept_to_the_byte_without_its_tags() -> None:
    said = say("I look. ", TOOL, "\n<function=f>\n</function>\n", END_TOOL, "done")
    assert said == {"text": "I look. done", "tool": "\n<function=f>\n</function>\n"}


def test_a_tool_call_inside_unclosed_thinking_ends_the_thinking() -> None:
    said = say("hm\n", TOOL, "call", END_TOOL, "x", kind="reasoning")
    assert said == {"reasoning": "hm\n", "tool": "call", "text": "x"}


def test_think_tokens_inside_a_tool_call_are_part_of_it() -> None:
    assert say(TOOL, "a", THINK, "b", END_THINK, "c") == {"tool": "a<think>b</think>c"}


def opened(*parts: str | bytes | int) -> list[Span]:
    """Spans of a script, the empty ones too."""
    stream = TextStream(Bytes())
    return [span for token in ids(*parts) for span in stream.push(token)] + stream.finish()


def test_each_tool_tag_opens_a_span_so_that_empty_and_adjacent_calls_are_seen() -> None:
    assert opened("a", TOOL, END_TOOL, TOOL, "b", END_TOOL, "c") == [
        Span("text", "a"),
        Span("tool", "", opens=True), Span("text", "", opens=True),
        Span("tool", "", opens=True), Span("tool", "b"), Span("text", "", opens=True),
        Span("text", "c"),
    ]  # fmt: skip


def test_a_close_tag_is_told_where_the_answer_ends_with_it_and_not_where_it_is_missing() -> None:
    assert opened(TOOL, "b", END_TOOL)[-1] == Span("text", "", opens=True)
    assert opened(TOOL, "b")[-1] == Span("tool", "b")
    assert not any(span.opens for span in opened(END_TOOL, THINK, "a", END_THINK, "b"))


def test_text_held_for_a_stop_comes_before_the_tag_and_a_stop_before_it_hides_the_tag() -> None:
    stream = TextStream(Bytes(), stops=["ab"])
    assert stream.push(ord("a")) == []
    assert stream.push(TOOL) == [Span("text", "a"), Span("tool", "", opens=True)]
    stopped = TextStream(Bytes(), stops=["\n"], kind="reasoning")
    assert [span for token in ids("a\n", TOOL) for span in stopped.push(token)] == [Span("reasoning", "a")]


# --- the end of the first call

XML = "\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n"


def first_end(style: ToolStyle, *parts: str | bytes | int) -> int | None:
    """How many tokens it takes until the first call is finished."""
    watch = FirstCall(Bytes(), style)
    return next((count for count, token in enumerate(ids(*parts), 1) if watch.ends_at(token)), None)


@pytest.mark.parametrize(
    ("style", "before", "after"),
    [
        ("xml", [TOOL, XML, END_TOOL], [TOOL, XML, END_TOOL]),
        ("xml", [THINK, "hm", TOOL, XML, END_TOOL], ["more"]),
        ("xml", [TOOL, "<function=f>\n<parameter=a>\nx", END_TOOL, "y\n</parameter>\n</function>", END_TOOL], []),
        ("xml", [TOOL, "no call", END_TOOL, "so", TOOL, XML, END_TOOL], []),
        ("json", [TOOL, '{"name": "f", "arguments": {"a": "', END_TOOL, '"}}', END_TOOL], ["more"]),
        ("json", [TOOL, '\n{"name": "f"}\n', END_TOOL], []),
        ("json", [TOOL, "[1]", END_TOOL, TOOL, "{}", END_TOOL], []),
    ],
)
def test_first_call_ends_at_the_close_tag_behind_a_whole_call(
    style: ToolStyle, before: list[str | int], after: list[str | int]
) -> None:
    assert first_end(style, *before, *after) == len(ids(*before))
    assert first_end(style, *before[:-1]) is None


def test_kind_follows_the_tags() -> None:
    stream = TextStream(Bytes(), kind="reasoning")
    seen = [stream.kind]
    for token in (END_THINK, TOOL, END_TOOL, THINK):
        stream.push(token)
        seen.append(stream.kind)
    assert seen == ["reasoning", "text", "tool", "text", "reasoning"]


def test_a_model_without_tags_has_only_text() -> None:
    assert run(TextStream(Untagged()), ids("<think>a</think>")) == {"text": "<think>a</think>"}


# --- stop strings


def test_nothing_of_a_stop_that_spans_chunks_is_delivered() -> None:
    words = [b"alpha be", b"ta ga", b"mma delta"]
    stream = TextStream(Bytes(words), stops=["beta gamma"])
    assert stream.push(2000) == [Span("text", "alpha ")]
    assert stream.push(2001) == []
    assert stream.push(2002) == []
    assert stream.stopped == "beta gamma"
    assert stream.finish() == []


def test_tokens_after_a_stop_are_ignored() -> None:
    stream = TextStream(Bytes(), stops=["."])
    assert run(stream, ids("one. two", END_THINK, "three")) == {"text": "one"}


def test_the_stop_that_is_complete_first_wins() -> None:
    stream = TextStream(Bytes(), stops=["abcd", "bc"])
    assert run(stream, ids("xabcd")) == {"text": "xa"}
    assert stream.stopped == "bc"


def test_of_two_stops_that_end_together_the_longer_wins() -> None:
    stream = TextStream(Bytes(), stops=["c", "abc"])
    assert run(stream, ids("xabc")) == {"text": "x"}
    assert stream.stopped == "abc"


def test_held_text_is_delivered_when_it_turns_out_not_to_be_a_stop() -> None:
    stream = TextStream(Bytes(), stops=["ababac"])
    assert run(stream, ids("abababad")) == {"text": "abababad"}
    assert stream.stopped is None


def test_held_text_is_delivered_at_the_end() -> None:
    assert say("hello wor", stops=["world"]) == {"text": "hello wor"}


def test_stops_are_looked_for_in_reasoning_as_well() -> None:
    assert say("think. more", kind="reasoning", stops=["."]) == {"reasoning": "think"}


def test_a_stop_does_not_reach_over_a_tag() -> None:
    stream = TextStream(Bytes(), stops=["ab"], kind="reasoning")
    assert run(stream, ids("a", END_THINK, "b")) == {"reasoning": "a", "text": "b"}


def test_line_breaks_that_belong_to_the_tags_do_not_stop_the_answer() -> None:
    assert say("a\n", END_THINK, "\n\nb\n\nc", kind="reasoning", stops=["\n\n"]) == {"reasoning": "a", "text": "b"}


def test_a_stop_that_reasoning_ends_with_is_found_at_the_end() -> None:
    stream = TextStream(Bytes(), stops=["\n"], kind="reasoning")
    assert run(stream, ids("a\n")) == {"reasoning": "a"}
    assert stream.stopped == "\n"


def test_tool_calls_are_not_cut_by_stops() -> None:
    assert say(TOOL, "a.b", END_TOOL, "c.d", stops=["."]) == {"tool": "a.b", "text": "c"}


def test_a_stop_may_hold_a_split_character() -> None:
    assert say("go 👋 on", stops=["👋"]) == {"text": "go "}


# --- properties

SCRIPT = st.lists(
    st.one_of(
        st.text(alphabet="ab\n👋", min_size=1, max_size=5).map(str.encode),
        st.sampled_from(sorted(TAGS)),
        st.binary(min_size=1, max_size=3),
    ),
    max_size=12,
)
STOPS = st.lists(st.text(alphabet="ab\n👋", min_size=1, max_size=4), max_size=3)
KIND = st.sampled_from(["text", "reasoning", "tool"])


@given(SCRIPT, STOPS, KIND)
def test_one_token_a_byte_says_the_same_as_one_token_a_piece(
    script: list[bytes | int], stops: list[str], kind: SpanKind
) -> None:
    words = [p for p in script if isinstance(p, bytes)]
    numbers = iter(range(2000, 3000))
    whole = [p if isinstance(p, int) else next(numbers) for p in script]
    by_piece, by_byte = TextStream(Bytes(words), stops, kind), TextStream(Bytes(), stops, kind)
    assert run(by_piece, whole) == run(by_byte, ids(*script))
    assert by_piece.stopped == by_byte.stopped


@given(SCRIPT, KIND)
def test_without_stops_no_byte_is_lost_but_tags_and_their_line_breaks(
    script: list[bytes | int], kind: SpanKind
) -> None:
    stream = TextStream(Bytes(), kind=kind)
    spans = [span for token in ids(*script) for span in stream.push(token)] + stream.finish()
    said = "".join(span.text for span in spans)
    pieces = [p.decode("utf-8", "replace") for p in _runs(script)]

    def bare(text: str) -> str:
        for tag in TAGS.values():
            text = text.replace(tag.decode(), "")
        return text.replace("\n", "")

    assert bare(said) == bare("".join(pieces))


def _runs(script: list[bytes | int]) -> list[bytes]:
    """The script's bytes between tags."""
    runs = [b""]
    for part in script:
        if isinstance(part, bytes):
            runs[-1] += part
        else:
            runs.append(b"")
    return runs


@given(st.text(alphabet="ab", max_size=30), st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1))
def test_the_matcher_agrees_with_a_search_in_the_whole_text(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    delivered = ""
    for letter in text:
        delivered += matcher.feed(letter)
        assert matcher.held == "" or any(s.startswith(matcher.held) and s != matcher.held for s in stops)
        if matcher.found is None:
            assert (delivered + matcher.held) == text[: len(delivered + matcher.held)]
    delivered += matcher.flush()
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    assert delivered == (text[: min(ends)[1]] if ends else text)
    assert (matcher.found is not None) == bool(ends)
