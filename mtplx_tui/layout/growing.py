"""Markdown that only ever grows, laid out at the cost of its last block."""

import re
from itertools import pairwise
from typing import Any

from markdown_it.token import Token

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.code import highlight
from mtplx_tui.layout.growing_text import GrowingLine
from mtplx_tui.layout.markdown import block_starts, fence_body, fence_bottom, fence_top, lines_of, parse
from mtplx_tui.layout.spans import Line

FENCE_CHUNK = 32
"""Lines of a fence still open that are highlighted together, once; a whole fence is coloured anew when it closes."""

_PROSE = re.compile(r"""[^\W\d_](?:[^\W_]|[ ,.;:'"()?!%-])*""")
"""Text that is one paragraph without any markup, as most of an answer is while it streams; it needs no parser."""


class GrowingMarkdown:
    """Text is appended; lines come out. Blocks that can not change any more are laid out once per width.

    A top-level block is settled as soon as another begins after it: nothing that follows can reach back into it,
    except definitions of links, for which `finish` lays out everything again.
    """

    def __init__(self, text: str = "") -> None:
        self._settled: list[str] = []
        self._tail = text
        self._env: dict[str, Any] = {}
        self._width = 0
        self._glyphs: Glyphs | None = None
        self._lines: list[Line] = []
        self._laid = 0  # settled blocks that `_lines` holds
        self._fence: list[Line] = []
        self._prose = GrowingLine("")
        self._ended: list[Line] | None = None  # the last block's lines, once it is finished and laid out
        self.finished = False

    @property
    def source(self) -> str:
        return "".join([*self._settled, self._tail])

    def append(self, text: str) -> None:
        self._tail += text

    def finish(self) -> None:
        """No more text will come."""
        self.finished = True
        if "]:" in self.source:  # a definition reaches back to links before it, so all is laid out as one
            self._tail, self._settled = self.source, []
            self._laid, self._lines = 0, []

    def lay_out(self, width: int, glyphs: Glyphs) -> tuple[list[Line], list[Line]]:
        """Lines that will not change at this width (the same list each time, grown), and those of the last block."""
        if (width, glyphs) != (self._width, self._glyphs):
            self._width, self._glyphs = width, glyphs
            self._laid, self._lines, self._fence, self._ended = 0, [], [], None
        if self._ended is not None:
            return self._lines, self._ended
        if _PROSE.fullmatch(self._tail) and self._laid == len(self._settled):
            return self._lines, self._after_gap(self._prose.lay_out(self._tail, width))
        tokens = self._parse(self._tail)
        starts = block_starts(tokens)
        if len(starts) > 1 and not self.finished:
            lines = self._tail.split("\n")
            bounds = [0, *starts[1:]]
            self._settled += ["\n".join([*lines[a:b], ""]) for a, b in pairwise(bounds)]
            self._tail = "\n".join(lines[bounds[-1] :])
            self._fence = []
            tokens = self._parse(self._tail)
        for block in self._settled[self._laid :]:
            self._lines += self._after_gap(lines_of(parse(block, self._env), width, glyphs))
        self._laid = len(self._settled)
        last = self._after_gap(self._last(tokens, width, glyphs))
        if self.finished:
            self._ended = last
        return self._lines, last

    def _parse(self, tail: str) -> list[Token]:
        """Definitions of links found in it are not kept: the last may be half an address yet."""
        return parse(tail, {"references": dict(self._env.get("references", {}))})

    def _after_gap(self, lines: list[Line]) -> list[Line]:
        return [(), *lines] if self._lines and lines else lines

    def _last(self, tokens: list[Token], width: int, glyphs: Glyphs) -> list[Line]:
        if self.finished:
            return lines_of(tokens, width, glyphs)
        if len(tokens) == 1 and tokens[0].type == "fence" and not _closed(self._tail, tokens[0].markup):
            return self._open_fence(tokens[0].info.strip().split(" ")[0], tokens[0].content, width, glyphs)
        held = _held_back(self._tail)
        return lines_of(self._parse(self._tail[:-held]) if held else tokens, width, glyphs)

    def _open_fence(self, language: str, content: str, width: int, glyphs: Glyphs) -> list[Line]:
        """Whole chunks of the code are highlighted once, so that a long fence costs no more than a short one."""
        code = content.removesuffix("\n").split("\n")
        while len(code) - len(self._fence) > FENCE_CHUNK:
            done = len(self._fence)
            self._fence += highlight("\n".join(code[done : done + FENCE_CHUNK]), language)[:FENCE_CHUNK]
        rest = highlight("\n".join(code[len(self._fence) :]), language)
        return [fence_top(language, width, glyphs), *fence_body([*self._fence, *rest], width, glyphs),
                fence_bottom(width, glyphs)]  # fmt: skip


def _closed(source: str, markup: str) -> bool:
    last = source.rstrip("\n").rsplit("\n", 1)[-1].strip()
    return "\n" in source.strip("\n") and len(last) >= len(markup) and set(last) == {markup[0]}


_MARKERS = frozenset("-=*+#>`~|_ 0123456789.)")


def _held_back(source: str) -> int:
    """Characters at the end that only make sense with what follows: `-` may become a list, a rule or a heading.

    Drawing them at once would flash a paragraph as a heading; they are shown with the next characters, or at the end.
    """
    line = source[source.rfind("\n") + 1 :]
    return len(line) if 0 < len(line) <= 4 and set(line) <= _MARKERS and "\n" in source else 0
