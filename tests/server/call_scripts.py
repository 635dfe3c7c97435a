"""How the tests of tool calls write what an engine says, and read what comes of it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.text import ToolStyle
from server.answer import joined
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Text
from server.tool_calls import CallReader
from server.tools import Tool

OPEN = object()
"""The token that opens a call."""
CLOSE = object()
"""The token that closes one; what looks like it in a string is text."""

Script = Sequence[object]


@dataclass
class Read:
    """What a script came to: text and calls in order, calls that did not end, and the raw text of the one cut."""

    parts: list[str | tuple[str, str]] = field(default_factory=list)
    unfinished: list[tuple[str, str]] = field(default_factory=list)
    cut: str = ""

    @property
    def calls(self) -> list[tuple[str, object]]:
        return [(part[0], json.loads(part[1])) for part in self.parts if isinstance(part, tuple)]

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))


def read(style: ToolStyle | None, tools: Sequence[Tool], script: Script, cut: bool = False) -> Read:
    """What a script comes to, which must be the same letter by letter."""
    reader = CallReader(style, {tool.name: tool for tool in tools})
    whole = _pieces(reader, script, cut, letters=False)
    by_letter = CallReader(style, {tool.name: tool for tool in tools})
    assert joined(_pieces(by_letter, script, cut, letters=True)) == joined(whole)
    assert (by_letter.cut, by_letter.calls) == (reader.cut, reader.calls)
    result = Read(cut=reader.cut)
    open_calls: dict[int, tuple[str, str]] = {}
    for piece in joined(whole):
        if isinstance(piece, CallBegin):
            assert piece.index == len(result.calls) + len(open_calls)
            open_calls[piece.index] = (piece.name, "")
        elif isinstance(piece, CallArguments):
            name, arguments = open_calls[piece.index]
            open_calls[piece.index] = (name, arguments + piece.text)
        elif isinstance(piece, CallEnd):
            result.parts.append(open_calls.pop(piece.index))
        else:
            assert isinstance(piece, Text)
            result.parts.append(piece.text)
    result.unfinished = list(open_calls.values())
    return result


def _pieces(reader: CallReader, script: Script, cut: bool, letters: bool) -> list[Piece]:
    made: list[Piece] = []
    for part in script:
        if part is OPEN:
            made += reader.open()
        elif part is CLOSE:
            # as the engine tells it: a close token outside of a block is shown as its text
            made += reader.close() if reader.inside else reader.feed("</tool_call>")
        else:
            assert isinstance(part, str)
            for text in part if letters else [part]:
                made += reader.feed(text)
    return made + (reader.cut_off() if cut else reader.stop())
