"""What the keys of a room do and what its figures mean."""

from collections.abc import Sequence

from mtplx_tui.keys import Key
from mtplx_tui.layout.spans import Line, wrap
from mtplx_tui.screens.page import TEXT_WIDTH

NAME_WIDTH = 11


def help_lines(keys: Sequence[Key], figures: Sequence[tuple[str, str]]) -> list[Line]:
    """The keys in their order, then the figures."""
    lines = section("Keys", [(key.shown, key.help) for key in keys if key.help])
    return [*lines, (), *section("Figures", figures)] if figures else lines


def section(title: str, rows: Sequence[tuple[str, str]], width: int = TEXT_WIDTH) -> list[Line]:
    """A heading, and rows of a name with a text beside it, in `width` cells."""
    lines: list[Line] = [((title, "heading"),)]
    for name, text in rows:
        first, *rest = wrap([(text, "")], width - NAME_WIDTH)
        lines += [((f"{name:<{NAME_WIDTH}}", "strong"), *first), *(((" " * NAME_WIDTH, ""), *line) for line in rest)]
    return lines
