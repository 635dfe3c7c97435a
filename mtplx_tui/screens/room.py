"""What every room of the workbench has: tabs above, keys below, and a word where the terminal is too small."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.events import Resize
from textual.reactive import Reactive
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from mtplx_tui.bridge import Pulled
from mtplx_tui.keys import Key, footer
from mtplx_tui.layout.spans import Line, fit
from mtplx_tui.rooms import top_line
from mtplx_tui.screens.help import help_lines
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.services import Services
from mtplx_tui.widgets.lines import Lines

MIN_WIDTH, MIN_HEIGHT = 80, 24
PANEL_WIDTH = 110
EDGE_ROWS = 3
"""The two lines at the top and the one at the bottom."""


class Room(Screen[None]):
    """One screen of the workbench, which answers one question.

    A room keeps what it shows when another is entered. `beat` brings it up to date while it is the one that is seen.
    """

    NAME: ClassVar[str]
    KEYS: ClassVar[tuple[Key, ...]]
    BLANK = True
    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """As Textual's, but that the whole screen is not painted anew: who gains and who loses the focus repaint anyway."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self.services = services
        self._top = Lines(services.glyphs, id="top")

    def compose(self) -> ComposeResult:
        glyphs = self.services.glyphs
        # Flat on purpose: each container is one more layer that every repaint goes through, row by row.
        yield self._top
        yield Lines(glyphs, id="foot")
        yield from self.compose_body()
        yield Static(id="too-small", markup=False)

    def compose_body(self) -> ComposeResult:
        """What stands between the tabs and the keys."""
        raise NotImplementedError

    def beat(self, pulled: Pulled) -> None:
        """Bring what is seen up to date; called several times a second, also when nothing came."""
        raise NotImplementedError

    def note(self) -> Line:
        """What stands at the right of the tabs: first a name, which is cut where there is no room, then what is not."""
        return self.services.standing()

    def subject(self) -> str:
        """What the room shows just now, in a few words; it stands in the rule below the tabs."""
        return ""

    def figures_help(self) -> Sequence[tuple[str, str]]:
        """What the figures of this room mean, for its help."""
        return ()

    def draw_top(self) -> None:
        """Draw the tabs and the rule; equal lines cost a comparison."""
        glyphs = self.services.glyphs
        width = self._top.size.width
        tabs = top_line(self.NAME, (*self.note(), (" ", "")), width, glyphs)
        title = fit(((self.subject(), "muted"),), max(width - 8, 0), glyphs.ellipsis) if self.subject() else ()
        named = ((glyphs.rule * 2 + " ", "rule"), *title, (" ", "rule")) if title else ()
        used = sum(len(text) for text, _ in named) if named else 0
        self._top.show([tabs, (*named, (glyphs.rule * max(width - used, 0), "rule"))])

    def on_resize(self, event: Resize) -> None:
        width, height = event.size
        self.query_one("#too-small", Static).update(
            f"This screen needs {MIN_WIDTH}x{MIN_HEIGHT} characters.\n"
            f"The terminal has {width}x{height} now: make it larger.\n\nNothing is lost meanwhile. ^Q leaves."
        )
        self.query_one("#foot", Lines).show([footer(self.KEYS, width)])
        self.call_after_refresh(self.draw_top)

    def on_screen_suspend(self) -> None:
        """What was said here must not hide what opens above, or the next room."""
        self.app.clear_notifications()

    def action_help(self) -> None:
        if self.services.tour is not None:
            self.services.tour.done("help")
        self.app.push_screen(PageScreen(self.services.glyphs, "help", self.help_page()))

    def help_page(self) -> list[Line]:
        """What the keys do and the figures mean."""
        return help_lines(self.KEYS, self.figures_help())
