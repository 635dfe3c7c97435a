"""Tool calls out of an answer's spans, while they come."""

from collections.abc import Iterable, Mapping

from engine.events import FinishReason, Span
from engine.text import ToolStyle
from mtplx_tui.tools.calls import ToolCall, call_id
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Text
from server.tool_calls import CallReader
from server.tools import Tool


class Heard:
    """Reads one answer. Two readers of the same spans find the same calls, with the same ids.

    What is no call of a tool that may be called is text, tags included.

    Attributes:
        calls: those that have begun; once the answer has ended, whole ones alone.
    """

    def __init__(self, tools: Mapping[str, Tool], request_id: str) -> None:
        self.calls: list[ToolCall] = []
        self._tools = tools
        self._request_id = request_id
        self._reader: CallReader | None = None
        self._held: list[Span] = []  # of a call whose style is not known yet

    def take(self, spans: Iterable[Span]) -> list[Span]:
        """What these spans say beside calls: text and reasoning."""
        return [said for span in spans for said in self._take(span)]

    def end(self, reason: FinishReason) -> list[Span]:
        """The answer has ended; what is said besides after all."""
        said = self._begin("json") if self._held else []
        reader = self._reader
        if reader is not None:
            said += self._spans(reader.stop() if reason == "stop" else reader.cut_off())
            said += [Span("text", reader.cut)] if reader.cut else []
        self.calls = [call for call in self.calls if call.state != "coming"]
        return said

    def _take(self, span: Span) -> list[Span]:
        if self._reader is not None:
            return self._read(self._reader, span)
        if span.kind != "tool" and not self._held:
            return [span]
        self._held.append(span)
        written = "".join(held.text for held in self._held if held.kind == "tool").lstrip()
        if not written:
            return []
        return self._begin("xml" if written.startswith("<") else "json")

    def _begin(self, style: ToolStyle) -> list[Span]:
        """Read on in this style: it can be seen where the first call begins, also on a server that does not tell."""
        held, self._held = self._held, []
        self._reader = reader = CallReader(style, self._tools)
        return [said for span in held for said in self._read(reader, span)]

    def _read(self, reader: CallReader, span: Span) -> list[Span]:
        if span.kind == "tool":
            opened = reader.open() if span.opens or not reader.inside else []
            return self._spans(opened + reader.feed(span.text))
        closed = reader.close() if reader.inside else []
        if span.kind == "reasoning":
            return [*self._spans(closed + reader.stop()), span]
        return self._spans(closed + reader.feed(span.text))

    def _spans(self, pieces: list[Piece]) -> list[Span]:
        said = []
        for piece in pieces:
            match piece:
                case CallBegin():
                    self.calls.append(ToolCall(call_id(self._request_id, piece.index), piece.name))
                case CallArguments():
                    self.calls[piece.index].arguments += piece.text
                case CallEnd():
                    self.calls[piece.index].state = "not run"
                case Text() if piece.text:
                    said.append(Span("text", piece.text))
        return said
