"""Has a scripted row say a text in the model's own tokens."""

import time
from collections.abc import Iterable, Sequence

from scripted_engine import ScriptedRow

from engine.chat import ChatFormat
from engine.events import Span, TokenEvent
from engine.text import TextStream


class Speaker:
    """Tells a row's tokens as an engine does: bytes and stop strings are held back where they must be.

    Attributes:
        heard: all spans so far.
    """

    def __init__(self, chat: ChatFormat, row: ScriptedRow) -> None:
        self._row = row
        self._stream = TextStream(chat, stops=row.request.stop, kind=chat.starts_in(row.request.prompt))
        self.heard: list[Span] = []

    def say(self, ids: Sequence[int]) -> None:
        """One step that delivers these tokens."""
        self._tell(ids, [span for token in ids for span in self._stream.push(token)])

    def finish(self) -> None:
        self._tell([], self._stream.finish())
        self._row.finish()

    def _tell(self, ids: Sequence[int], spans: list[Span]) -> None:
        self.heard += spans
        self._row.tell(TokenEvent(self._row.request.id, time.monotonic(), tuple(ids), tuple(spans)))


def atoms(spans: Iterable[Span]) -> list[tuple[str, str]]:
    """Each character with its kind, and each mark of a tool call: however spans are cut, these are the same."""
    return [(span.kind, one) for span in spans for one in ["mark"] * span.opens + list(span.text)]
