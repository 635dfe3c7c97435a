"""Roles to styles: the style sheet says what a role looks like, this asks it once and remembers."""

from rich.segment import Segment
from rich.style import Style
from textual.dom import DOMNode
from textual.strip import Strip
from textual.widget import Widget

from mtplx_tui.layout.spans import Line, fit, width_of


class Painter:
    """Makes strips of lines in one widget's colours. Make a new one when `holds` says no.

    Textual's colour filters (NO_COLOR, for one) are applied to the few styles, not to every strip of every frame.
    """

    def __init__(self, widget: Widget, ellipsis: str) -> None:
        self._widget = widget
        self._ellipsis = ellipsis
        self._raw = widget.rich_style
        self.base = self._filtered(self._raw)
        self._styles: dict[str, Style] = {"": self.base}

    def holds(self) -> bool:
        """Whether every style in use is still what the style sheet says, as it is when only the focus has moved."""
        now = Painter(self._widget, self._ellipsis)
        return now._raw == self._raw and all(now.style(role) == style for role, style in self._styles.items())

    def style(self, role: str) -> Style:
        found = self._styles.get(role)
        if found is None:
            found = self._raw
            for name in role.split():
                found += self._own(f"role--{name}")
            found = self._styles[role] = self._filtered(found)
        return found

    def _own(self, component: str) -> Style:
        """What this role adds: its text style, and its colour mixed with the background that it stands on.

        Textual's COMPONENT_CLASSES would be styled anew, all 24 of each widget, at every change of the focus: 50 ms.
        """
        node = DOMNode(classes=component)
        node._attach(self._widget)
        self._widget.app.stylesheet.apply(node, animate=False)
        styles = node.styles
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
