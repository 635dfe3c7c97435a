"""The text and the tool spans of one answer to text and tool calls, while they come."""

from collections.abc import Mapping

from engine.text import ToolStyle
from server.call_json import JsonCall
from server.call_syntax import CLOSE_TAG, CallSyntax
from server.call_xml import XmlCall
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Text
from server.tools import Tool

OPEN_TAG = "<tool_call>"


class CallReader:
    """Reads one answer, however it is cut into spans: one letter at a time gives the same pieces, once joined.

    What is no call of a tool that may be called is text, tags included. A call that breaks after its arguments began
    is closed there, so that they are valid JSON, and the rest is text; a stream has told of them already, and a whole
    answer says the same. Only where max_tokens cuts a call are the two different: see `cut`.

    A closing tag where a call has not come to its end is part of its text, which then goes on behind it.

    Whitespace behind a call belongs to the template where another call or the end of the answer follows; all other
    text is passed on as it is.

    Attributes:
        inside: whether the text that comes stands between the tags of a call.
        calls: whole calls so far.
        cut: the text of a call that max_tokens cut after its beginning had been told, tags included; else empty.
    """

    def __init__(self, style: ToolStyle | None, tools: Mapping[str, Tool]) -> None:
        """Without a style, or without tools that may be called, all is text."""
        self.inside = False
        self.calls = 0
        self.cut = ""
        self._tools = tools if style is not None else {}
        self._style = XmlCall if style == "xml" else JsonCall
        self._call: CallSyntax | None = None
        self._raw: list[str] = []  # what the call was read from, and the whitespace before it
        self._told = 0  # calls of which the beginning was told
        self._tail = ""  # behind a closing tag in a call's text: what may be the beginning of another
        self._show_tag = False  # the block is text, so its closing tag will be
        self._blank: str | None = None  # whitespace behind a call; None where other text came after it

    def open(self) -> list[Piece]:
        """An opening tag comes."""
        pieces = self.close() + self.stop() if self.inside else self.stop()
        self.inside = True
        if not self._tools:
            self._show_tag = True
            return pieces + self._say(OPEN_TAG)
        self._raw = [self._blank or "", OPEN_TAG]
        self._blank = None
        self._call = self._style(self._tools)
        return pieces

    def feed(self, text: str) -> list[Piece]:
        """Text comes, in a call or outside."""
        if self._call is None:
            return self._say(text)
        return self._read(text) if self.inside else self._read_on(text)

    def close(self) -> list[Piece]:
        """A closing tag comes."""
        self.inside = False
        if self._call is not None:
            return self._close(self._call)
        shown, self._show_tag = self._show_tag, False
        return self._say(CLOSE_TAG) if shown else []

    def stop(self) -> list[Piece]:
        """The answer ends, or something comes that no call can have in it."""
        pieces = self._read(self._tail) if self._call is not None else []
        self._tail = ""
        if self._call is not None:
            pieces += self._told_by(self._call, self._call.stop())
        return pieces

    def cut_off(self) -> list[Piece]:
        """The answer was ended by max_tokens."""
        if self._call is None:
            return []
        raw, begun = "".join([*self._raw, self._tail]), self._call.name
        self._call = None
        if not begun:
            return self._say(raw)
        self.cut = raw
        return []

    def _say(self, text: str) -> list[Piece]:
        if self._blank is not None:
            text = self._blank + text
            if not text or text.isspace():
                self._blank = text
                return []
            self._blank = None
        return [Text(text)]

    def _read(self, text: str) -> list[Piece]:
        assert self._call is not None
        self._raw.append(text)
        return self._told_by(self._call, self._call.feed(text))

    def _read_on(self, text: str) -> list[Piece]:
        """Go on with a call behind a closing tag. Another one here is text that looks like it, or a token as text."""
        pieces: list[Piece] = []
        text, self._tail = self._tail + text, ""
        while self._call is not None and (at := text.find(CLOSE_TAG)) >= 0:
            pieces += self._read(text[:at])
            text = text[at + len(CLOSE_TAG) :]
            pieces += self._close(self._call) if self._call is not None else self._say(CLOSE_TAG)
        if self._call is None:
            return pieces + self._say(text)
        keep = next(n for n in range(len(CLOSE_TAG) - 1, -1, -1) if text.endswith(CLOSE_TAG[:n]))
        self._tail = text[len(text) - keep :]
        return pieces + self._read(text[: len(text) - keep])

    def _close(self, call: CallSyntax) -> list[Piece]:
        self._raw.append(CLOSE_TAG)
        return self._told_by(call, call.close())

    def _told_by(self, call: CallSyntax, arguments: str) -> list[Piece]:
        """What a call tells after it was given more text."""
        pieces: list[Piece] = []
        if call.name and self._told == self.calls:
            pieces.append(CallBegin(self._told, call.name))
            self._told += 1
        if arguments:
            pieces.append(CallArguments(self.calls, arguments))
        if call.state == "open":
            return pieces
        self._call = None
        if not call.name:
            self._show_tag = self.inside
            return pieces + self._say("".join(self._raw))
        pieces.append(CallEnd(self.calls))
        self.calls += 1
        self._blank = ""
        return pieces + self._say(call.rest)
