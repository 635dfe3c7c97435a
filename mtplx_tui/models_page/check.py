"""The check of a model's files against the hub's checksums, on a thread that the room can stop."""

from dataclasses import dataclass

from mtplx_tui.charts.numbers import percent, size
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.models_page.shelf import Where

NAMED = 3
"""Files that a result names."""
NO_CHECKSUM: dict[Where, str] = {
    "bundled": "comes with the program",
    "stored": "is a folder of your own",
    "partly": "has not come whole",
    "catalog": "is not here",
}


class StoppedError(Exception):
    """The check was stopped before its end."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check, in words for the user."""

    right: bool
    words: str


class Check:
    """One check. `run` belongs to a thread of its own, the rest to the UI thread."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        self._share = 0.0
        self._stopped = False

    def run(self) -> Result:
        """Read all files. Raises StoppedError, HubError or OSError."""
        from engine.checksums import check

        checked = check(self.repo, self._at)
        if checked.wrong:
            named = [f"{name}: {why}" for name, why in checked.wrong[:NAMED]]
            more = f", and {len(checked.wrong) - NAMED} more files" if len(checked.wrong) > NAMED else ""
            mend = "x deletes the model, d then fetches it anew."
            return Result(False, f"{self.repo} is damaged. {'; '.join(named)}{more}. {mend}")
        words = f"{self.repo}: {size(checked.nbytes)} read, every checksum right."
        if checked.unknown:
            words += f" Without a checksum: {', '.join(checked.unknown[:NAMED])}."
        return Result(True, words)

    def stop(self) -> None:
        """End it soon."""
        self._stopped = True

    def words(self, glyphs: Glyphs) -> str:
        """How far it is."""
        return f"checking {one_line(self.repo, glyphs)} {percent(self._share)}"

    def _at(self, done: int, total: int) -> None:
        if self._stopped:
            raise StoppedError
        self._share = done / total if total else 1.0
