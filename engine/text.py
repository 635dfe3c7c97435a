"""Token ids to text: bytes to characters, tags to kinds, stop strings to an end. Pure Python."""

import codecs
import json
from collections.abc import Sequence
from typing import Literal, Protocol

from engine.events import Span, SpanKind

ToolStyle = Literal["xml", "json"]
"""How a model writes tool calls: `<function=..><parameter=..>` as Qwen3.5, or JSON objects with name and arguments."""


class TokenFacts(Protocol):
    """What a stream needs of the model's vocabulary; `engine.chat.ChatFormat` has it."""

    @property
    def think_ids(self) -> tuple[int, int] | None: ...

    @property
    def tool_ids(self) -> tuple[int, int] | None: ...

    def token_bytes(self, token: int) -> bytes: ...


class StopMatcher:
    """Finds the first stop string in a text that arrives in pieces.

    The stop that is complete first wins, the longer one where two end at the same character. Text is held back
    exactly while it could still grow into a stop, so `held` is always empty or a proper prefix of one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self.held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Add text; the answer is what may now be delivered. Nothing comes after a stop was found."""
        if self.found is not None:
            return ""
        text = self.held + text
        matches = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            _, at, self.found = min(matches)
            self.held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Give up what is held: no more text follows."""
        held, self.held = self.held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper prefix of `stop`."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0 and not stop.startswith(text[at:]):
        at = text.find(stop[0], at + 1)
    return 0 if at < 0 else len(text) - at


class TextStream:
    """One answer's text, fed token by token.

    Kinds change at the model's own think and tool-call tokens, never at text that looks like them. A close without
    an open, or an open inside an open block, opens and closes nothing, so it is shown as the text it stands for; only
    a tool call inside unclosed thinking ends the thinking. The templates' line breaks around the think tags (one after
    `<think>`, one before and up to two after `</think>`) belong to the tags and are left out.

    Stop strings are looked for in text and reasoning alike, as vLLM does, each by itself: a stop does not reach over
    a tag. Inside a tool call they are not looked for, because half a call is of no use to anyone.
    """

    def __init__(self, facts: TokenFacts, stops: Sequence[str] = (), kind: SpanKind = "text") -> None:
        """`kind` says where the prompt ends, see `ChatFormat.starts_in`."""
        self._facts = facts
        self._kind: SpanKind = kind
        self._matcher = StopMatcher(stops)
        self._decoder = _decoder()
        self._skip = 0  # line breaks still to be left out after a think tag
        self._break = ""  # reasoning's last line break, which `</think>` may claim

    @property
    def kind(self) -> SpanKind:
        """Kind of the text that the next token would add."""
        return self._kind

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. Tokens pushed after it are ignored."""
        return self._matcher.found

    def push(self, token: int) -> list[Span]:
        """Add a token; the answer is the text that can be delivered now."""
        if self.stopped is not None:
            return []
        border = self._border(token)
        if border is not None:
            return self._cross(border)
        return self._deliver(self._decoder.decode(self._facts.token_bytes(token)))

    def finish(self) -> list[Span]:
        """End of the answer: whatever was held back. A character that was never completed becomes one U+FFFD."""
        if self.stopped is not None:
            return []
        return self._close_run()

    def _border(self, token: int) -> SpanKind | None:
        """The kind that begins at this token, where it is a tag that means something here."""
        think, tool = self._facts.think_ids, self._facts.tool_ids
        if think is not None:
            if token == think[0] and self._kind == "text":
                return "reasoning"
            if token == think[1] and self._kind == "reasoning":
                return "text"
        if tool is not None:
            if token == tool[0] and self._kind != "tool":
                return "tool"
            if token == tool[1] and self._kind == "tool":
                return "text"
        return None

    def _cross(self, to: SpanKind) -> list[Span]:
        came_from = self._kind
        spans = self._deliver(self._decoder.decode(b"", final=True))
        if came_from == "reasoning" and to == "text":
            self._break = ""
        spans += self._close_run()
        if self.stopped is None:
            self._decoder = _decoder()
            self._kind = to
            self._skip = 1 if to == "reasoning" else 2 if came_from == "reasoning" and to == "text" else 0
            if "tool" in (came_from, to):
                spans.append(Span(to, "", opens=True))
        return spans

    def _close_run(self) -> list[Span]:
        """Deliver everything of the current kind: nothing of it can become part of a stop or a tag any more."""
        text = self._break + self._decoder.decode(b"", final=True)
        self._break = ""
        spans = self._match(text)
        return spans if self.stopped is not None else spans + self._span(self._matcher.flush())

    def _deliver(self, text: str) -> list[Span]:
        if not text:
            return []
        while self._skip and text.startswith("\n"):
            text = text[1:]
            self._skip -= 1
        if text:
            self._skip = 0
        if self._kind == "reasoning":
            text = self._break + text
            self._break = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        return self._match(text)

    def _match(self, text: str) -> list[Span]:
        return self._span(text if self._kind == "tool" else self._matcher.feed(text))

    def _span(self, text: str) -> list[Span]:
        return [Span(self._kind, text)] if text else []


class FirstCall:
    """Finds where an answer's first tool call is finished, for answers that are to have no more than one.

    A close token inside an argument ends no call, so the call's text has to look whole where the token stands: closed
    by its function tag in the XML style, one JSON object in the other.
    """

    def __init__(self, facts: TokenFacts, style: ToolStyle) -> None:
        self._facts = facts
        self._style = style
        self._tags = facts.tool_ids or (-1, -1)
        self._call = b""
        self._inside = False

    def ends_at(self, token: int) -> bool:
        """Add a token of the answer; whether it finished the call."""
        if token == self._tags[0] and not self._inside:
            self._call, self._inside = b"", True
            return False
        if token == self._tags[1]:
            self._inside = False
            if self._whole():
                return True
        self._call += self._facts.token_bytes(token)
        return False

    def _whole(self) -> bool:
        text = self._call.decode("utf-8", "replace")
        if self._style == "xml":
            return text.rstrip().endswith("</function>")
        try:
            return isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            return False


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
