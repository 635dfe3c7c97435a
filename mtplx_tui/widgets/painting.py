"""Roles to styles: the style sheet says what a role looks like, this asks it once and remembers."""

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from mtplx_tui.layout.spans import ROLES, Line, fit, width_of

ROLE_CLASSES = {f"role--{role}" for role in ROLES}
"""COMPONENT_CLASSES of every widget that draws spans."""


class Painter:
    """Makes strips of lines in one widget's colours. Make a new one when the theme changes.

    Textual's colour filters (NO_COLOR, for one) are applied to the few styles, not to every strip of every frame.
    """

    def __init__(self, widget: Widget, ellipsis: str) -> None:
        self._widget = widget
        self._ellipsis = ellipsis
        self._raw = widget.rich_style
        self.base = self._filtered(self._raw)
        self._styles: dict[str, Style] = {"": self.base}

    def style(self, role: str) -> Style:
        found = self._styles.get(role)
        if found is None:
            found = self._raw
            for name in role.split():
                found += self._own(f"role--{name}")
            found = self._styles[role] = self._filtered(found)
        return found

    def _own(self, component: str) -> Style:
        """What this role adds: its text style, and its colour mixed with the background that it stands on."""
        styles = self._widget.get_component_styles(component)
        added = styles.partial_rich_style
        if styles.has_rule("color"):
            added += Style(color=styles.rich_style.color)
        return added

    def _filtered(self, style: Style) -> Style:
        segments = [Segment(" ", style)]
        background = self._widget.background_colors[1]
        for line_filter in self._widget.get_line_filters():
            segments = line_filter.apply(segments, background)
        return segments[0].style or style

    def strip(self, line: Line, width: int) -> Strip:
        """The line in exactly `width` cells."""
        used = width_of(line)
        if used > width:
            line = fit(line, width, self._ellipsis)
            used = width_of(line)
        segments = [Segment(text, self.style(role)) for text, role in line]
        if used < width:
            segments.append(Segment(" " * (width - used), self.base))
        return Strip(segments, width)
