"""Tables of inline spans to lines."""

from collections.abc import Sequence

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, Span, cells, merge, width_of, wrap

_GAP = 3


def table_lines(rows: Sequence[Sequence[Sequence[Span]]], width: int, glyphs: Glyphs) -> list[Line]:
    """A header row, a rule and the body, cells wrapped where the columns have to share a narrow width."""
    count = max((len(row) for row in rows), default=0)
    if not count:
        return []
    full = [[*row, *([()] * (count - len(row)))] for row in rows]
    widths = _share([max(_natural(row[column]) for row in full) for column in range(count)], width)
    edge = glyphs.box[-1]
    lines: list[Line] = []
    for number, row in enumerate(full):
        wrapped = [wrap([(t, f"{r} strong".strip()) for t, r in cell] if number == 0 else cell, w)
                   for cell, w in zip(row, widths, strict=True)]  # fmt: skip
        for y in range(max(len(cell) for cell in wrapped)):
            spans: list[Span] = []
            for column, cell in enumerate(wrapped):
                piece = cell[y] if y < len(cell) else ()
                if column:
                    spans.append((f" {edge} ", "frame"))
                spans += [*piece, (" " * max(widths[column] - width_of(piece), 0), "")]
            lines.append(merge(spans))
        if number == 0:
            across = glyphs.box[4]
            lines.append(((f"{across}{glyphs.cross}{across}".join(across * w for w in widths), "frame"),))
    return lines


def _natural(cell: Sequence[Span]) -> int:
    return max((cells(line) for line in "".join(text for text, _ in cell).split("\n")), default=0)


def _share(natural: list[int], width: int) -> list[int]:
    """Widths that fit: the widest columns give way first."""
    room = max(width - _GAP * (len(natural) - 1), len(natural))
    widths = [max(n, 1) for n in natural]
    while sum(widths) > room:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] == 1:
            break
        widths[widest] -= 1
    return widths
