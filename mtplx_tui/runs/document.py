"""A kept result's Markdown as lines. A table that is wider than its box becomes a paragraph for each row, with
each figure behind its column's name, so that neither a name nor a figure is cut or folded."""

import re
from collections.abc import Sequence
from itertools import groupby

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.markdown import lines_of, parse
from mtplx_tui.layout.spans import Line, Span, cells, fit, merge

BETWEEN = 3
"""Cells between two columns of a table."""
INDENT, GAP = 2, 2
"""Cells before a row's later lines, and between two figures."""
_EDGE = re.compile(r"(?<!\\)\|")


def document_lines(document: str, width: int, glyphs: Glyphs) -> list[Line]:
    """The whole document; its text must have been cleaned."""
    lines: list[Line] = []
    for is_table, part in groupby(document.split("\n"), lambda line: line.startswith("|")):
        source = list(part)
        rows = [_cells(line) for line in source] if is_table else []
        if is_table and _natural(rows) > width:
            block = _records(rows, width, glyphs)
        else:
            block = lines_of(parse("\n".join(source), {}), width, glyphs)
        lines += [(), *block] if lines and block else block
    return lines


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _EDGE.split(line)[1:-1]]


def _natural(rows: Sequence[Sequence[str]]) -> int:
    columns = list(zip(*rows[:1], *rows[2:], strict=False))  # the second row is the rule
    return sum(max(map(cells, column)) for column in columns) + BETWEEN * (len(columns) - 1)


def _records(rows: Sequence[Sequence[str]], width: int, glyphs: Glyphs) -> list[Line]:
    return [line for row in rows[2:] for line in _record(rows[0], row, width, glyphs)]


def _record(names: Sequence[str], row: Sequence[str], width: int, glyphs: Glyphs) -> list[Line]:
    """As many figures a line as there is room for, each whole."""
    lines: list[list[Span]] = [[]]
    used = 0
    for place, (name, value) in enumerate(zip(names, row, strict=False)):
        need = cells(name) + 1 + cells(value)
        if place and used + GAP + need > width:
            lines.append([(" " * INDENT, "")])
            used = INDENT
        elif place:
            lines[-1].append((" " * GAP, ""))
            used += GAP
        lines[-1] += [(f"{name} ", "muted"), (value, "" if place else "strong")]
        used += need
    return [fit(merge(line), width, glyphs.ellipsis) for line in lines]
