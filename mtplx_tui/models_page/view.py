"""What the models room shows: which rows, in which order, which one is chosen."""

from dataclasses import dataclass, replace

from mtplx_tui.models_page.downloads import Download
from mtplx_tui.models_page.shelf import ModelRow

ORDERS = ("as listed", "name", "size", "fit")
_FITS = ("yes", "tight", "unknown", "no")


@dataclass(frozen=True, slots=True)
class ModelsView:
    """All that is drawn.

    Attributes:
        every: all models; None while they are read. find: shown are those with this in their names or heads.
        order: one of ORDERS. chosen: the name of the chosen one. loaded: of the one that runs.
        downloads: the queue.
    """

    every: tuple[ModelRow, ...] | None = None
    find: str = ""
    order: str = ORDERS[0]
    chosen: str = ""
    loaded: str | None = None
    downloads: tuple[Download, ...] = ()

    @property
    def rows(self) -> list[ModelRow]:
        """Those that are shown, in order."""
        wanted = self.find.casefold().split()
        rows = [row for row in self.every or () if all(word in _text(row) for word in wanted)]
        match self.order:
            case "name":
                rows.sort(key=lambda row: row.name.rpartition("/")[2].casefold())
            case "size":
                rows.sort(key=lambda row: (row.size is None, row.size or 0))
            case "fit":
                rows.sort(key=lambda row: _FITS.index(row.fits))
        return rows

    @property
    def place(self) -> int:
        """Of the chosen row among those that are shown; the first where it is not among them."""
        return next((place for place, row in enumerate(self.rows) if row.name == self.chosen), 0)

    @property
    def row(self) -> ModelRow | None:
        """The chosen one."""
        rows = self.rows
        return rows[self.place] if rows else None

    def moved(self, by: int) -> "ModelsView":
        rows = self.rows
        place = min(max(self.place + by, 0), max(len(rows) - 1, 0))
        return replace(self, chosen=rows[place].name if rows else "")

    def reordered(self) -> "ModelsView":
        row = self.row
        order = ORDERS[(ORDERS.index(self.order) + 1) % len(ORDERS)]
        return replace(self, order=order, chosen=row.name if row else "")


def _text(row: ModelRow) -> str:
    return " ".join(filter(None, (row.name, row.head, row.quantization, row.tier, row.where))).casefold()
