"""What the composer holds: text with folded pastes, and the list of earlier ones. No Textual here."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count

from mtplx_tui.charts.numbers import size

FOLD_LINES = 20
FOLD_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Draft:
    """Text as it stands in the composer, and what its chips stand for."""

    text: str = ""
    pastes: dict[str, str] = field(default_factory=dict)

    def expanded(self) -> str:
        """The text that is sent: every chip replaced by what was pasted."""
        parts = [self.text]
        for chip, pasted in self.pastes.items():
            parts = [piece for part in parts for piece in _split(part, chip, pasted)]
        return "".join(parts)


class _Pasted(str):
    """Pasted text, in which no chip is looked for again."""

    __slots__ = ()


def _split(part: str, chip: str, pasted: str) -> list[str]:
    if isinstance(part, _Pasted) or chip not in part:
        return [part]
    pieces = part.split(chip)
    return [piece for index, piece in enumerate(pieces) for piece in ((_Pasted(pasted), piece) if index else (piece,))]


_OTHER_BREAKS = re.compile("[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def unpaste(text: str) -> str:
    """Pasted text as it was copied: terminals send CR for a newline."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def folds(pasted: str) -> bool:
    """To be shown as a chip: long, or with line breaks that a text area would turn into newlines."""
    return pasted.count("\n") >= FOLD_LINES or len(pasted) > FOLD_BYTES or bool(_OTHER_BREAKS.search(pasted))


def chip_for(pasted: str, taken: Collection[str]) -> str:
    """What stands for the text in the composer; no chip in `taken` reads the same."""
    lines = pasted.count("\n") + 1
    extent = f"{lines:,} lines, " if lines > 1 else ""
    extent += size(len(pasted.encode("utf-8", "replace")))
    return next(chip for n in count(len(taken) + 1) if (chip := f"[paste #{n}: {extent}]") not in taken)


class PromptHistory:
    """Earlier drafts, newest last. `older` and `newer` walk through them from the present one."""

    def __init__(self, limit: int = 200) -> None:
        self._drafts: list[Draft] = []
        self._limit = limit
        self._place: int | None = None

    def add(self, draft: Draft) -> None:
        if not self._drafts or self._drafts[-1] != draft:
            self._drafts.append(draft)
            del self._drafts[: -self._limit]
        self._place = None

    @property
    def drafts(self) -> list[Draft]:
        return list(self._drafts)

    def seed(self, drafts: list[Draft]) -> None:
        """Put older ones, from before this run, behind those that are there."""
        self._drafts[:0] = drafts

    def older(self) -> Draft | None:
        place = len(self._drafts) if self._place is None else self._place
        if place == 0:
            return None
        self._place = place - 1
        return self._drafts[self._place]

    def newer(self) -> Draft | None:
        """The next newer one; past the newest, an empty draft; None where nothing was being walked through."""
        if self._place is None:
            return None
        self._place += 1
        if self._place >= len(self._drafts):
            self._place = None
            return Draft()
        return self._drafts[self._place]

    def leave(self) -> None:
        """The draft was edited: the next `older` starts from the newest again."""
        self._place = None
