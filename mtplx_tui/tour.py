"""The first run's tour: three hints, one at a time, each shown until its thing was done once. No Textual here."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mtplx_tui.layout.spans import Line

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hint:
    """`name` says what ends it, as `Tour.done` is told."""

    name: str
    keys: str
    text: str


HINTS = (
    Hint("ask", "Enter", "sends what you type; try: What is 47 + 85?"),
    Hint("rooms", "F3", "shows how many drafts hold, and how fast it is"),
    Hint("help", "F1", "explains keys and figures; / lists commands"),
)


class Tour:
    """Which hints were seen to, kept in a file with the name of each on a line.

    Args:
        file: where that is kept; it need not exist. Where it can not be read there are no hints.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._on_change: Callable[[], None] = lambda: None
        try:
            self._done = set(file.read_text(encoding="utf-8", errors="replace").split())
        except FileNotFoundError:
            self._done = set()
        except OSError as error:
            log.warning("the tour's state can not be read: %s", error)
            self._done = {hint.name for hint in HINTS}  # better none than the same three at every start

    @property
    def hint(self) -> Hint | None:
        """The one to show now; None once all are done."""
        return next((hint for hint in HINTS if hint.name not in self._done), None)

    def done(self, name: str) -> None:
        """What a hint is about was done, or it is not wanted: it does not come again."""
        if name in self._done:
            return
        self._done.add(name)
        self._on_change()
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_text("".join(f"{done}\n" for done in sorted(self._done)), encoding="utf-8")
        except OSError as error:
            log.warning("the tour's state can not be kept: %s", error)

    def skip(self) -> bool:
        """Leave out the present hint; False where there is none."""
        hint = self.hint
        if hint is not None:
            self.done(hint.name)
        return hint is not None

    def listen(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called when there is another hint to show, or none any more."""
        self._on_change = on_change

    def line(self) -> Line:
        """The present hint as a line of the screen; empty where there is none."""
        hint = self.hint
        if hint is None:
            return ()
        place = f" hint {HINTS.index(hint) + 1} of {len(HINTS)}  "
        return ((place, "muted"), (hint.keys, "accent strong"), (f" {hint.text}", ""), ("  Esc hides", "muted"))
