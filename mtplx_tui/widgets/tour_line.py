"""The line above the message box that shows the tour's present hint, and is not there without one."""

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.tour import Tour
from mtplx_tui.widgets.lines import Lines


class TourLine(Lines):
    """`tour` is None where there is none to show."""

    def __init__(self, glyphs: Glyphs, tour: Tour | None) -> None:
        super().__init__(glyphs, id="tour")
        self._tour = tour

    def on_mount(self) -> None:
        if self._tour is not None:
            self._tour.listen(self._look)
        self._look()

    def _look(self) -> None:
        line = self._tour.line() if self._tour is not None else ()
        self.display = bool(line)
        self.show([line])
