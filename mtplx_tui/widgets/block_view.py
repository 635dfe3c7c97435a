"""Blocks as one scrolling widget that draws lines: it costs the same with ten of them and with a thousand.

One widget a message, let alone the 34 that Textual's Markdown makes of one, is laid out anew on each change. Here a
growing answer repaints the lines that changed, and a scroll repaints the view from strips that are kept.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.spans import Line, plain
from mtplx_tui.widgets.blocks import Answer, Block
from mtplx_tui.widgets.painting import Painter

PAGE_BLOCKS = 40
"""Blocks that are laid out at first; older ones follow, as many again, when the view is scrolled to the top."""

NEAR_END = 2
"""Rows from the bottom at which a view that is scrolled down follows new text again. Textual's own anchor asks for the
very last row, which a stream keeps moving away (Textualize/textual#6677)."""


SLACK_ROWS = 3
"""Rows that are left free below a growing answer when the view has to move: it then moves, and is painted whole, a
quarter as often, and text stands still while it is read."""

_Row = tuple[Strip, Strip]
"""A row without and with the scroll mark in its last column, so that a scroll repaints from what is kept."""


def _mark(top: int, height: int, total: int) -> tuple[int, int]:
    """First row and length of the scroll mark, in a view of `height` rows from row `top` of `total`."""
    if total <= height or height <= 0:
        return 0, 0
    length = max(height * height // total, 1)
    return round(top * (height - length) / (total - height)), length


class BlockView(ScrollView):
    """Blocks, oldest first. It follows new text until the user scrolls up, and again once back near the bottom."""

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.following = True
        self._glyphs = glyphs
        self._blocks: list[Block] = []
        self._first = 0  # the oldest block that is laid out
        self._lines: list[list[Line]] = []  # of the blocks from `_first` on
        self._strips: list[list[_Row | None]] = []
        self._tops: list[int] = [0]
        self._width = 0
        self._painter: Painter | None = None
        self._steering = False
        self._unfold: bool | None = None

    @property
    def allow_vertical_scroll(self) -> bool:
        return True  # by wheel and keys; a mark in the last column stands in for Textual's scrollbar

    # What is shown

    @property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(self._blocks)

    @property
    def text(self) -> str:
        """All that is laid out, as plain text, one line a row."""
        return "\n".join(plain(line).rstrip() for lines in self._lines for line in lines)

    def add(self, *blocks: Block) -> None:
        """Put blocks at the end and show them."""
        self.following = True
        self.append(*blocks)

    def append(self, *blocks: Block) -> None:
        """Put blocks at the end; who reads elsewhere stays there."""
        self._fold(blocks)
        self._blocks += blocks
        for block in blocks:
            self._lines.append([])
            self._strips.append([])
            self.update(block)

    def replace(self, blocks: Iterable[Block]) -> None:
        """Show these blocks and no others."""
        self.following = True
        self._blocks = list(blocks)
        self._fold(self._blocks)
        self._first = max(len(self._blocks) - PAGE_BLOCKS, 0)
        self._lay_out()

    def take_out(self, *blocks: Block) -> None:
        """Take blocks away again."""
        self.replace([block for block in self._blocks if block not in blocks])

    def update(self, block: Block) -> None:
        """Lay out a block that changed; only lines that differ are painted again."""
        index = len(self._blocks) - 1 - self._blocks[::-1].index(block) - self._first
        if index < 0 or not self._width:
            return
        old, new = self._lines[index], self._drawn(block)
        pairs = enumerate(zip(old, new, strict=False))
        same = next((i for i, (a, b) in pairs if a is not b and a != b), min(len(old), len(new)))
        if same == len(old) == len(new):
            return
        self._lines[index] = new
        self._strips[index][same:] = [None] * (len(new) - same)
        self._changed(self._tops[index] + same)

    def unfold_by(self, unfold: bool | None) -> None:
        """Draw the thinking of every answer, and of those to come, always, never, or with None as the stream has it."""
        self._unfold = unfold
        for block in self._blocks:
            if isinstance(block, Answer):
                block.unfold = unfold
        self._lay_out()

    def _fold(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if isinstance(block, Answer) and block.unfold is None:
                block.unfold = self._unfold

    def set_unfolded(self, unfolded: bool) -> None:
        """Fold or unfold the thinking of every answer."""
        for block in self._blocks:
            if isinstance(block, Answer):
                block.unfold = unfolded
        self._lay_out()

    @property
    def any_unfolded(self) -> bool:
        return any(isinstance(block, Answer) and block.has_thinking and block.unfolded for block in self._blocks)

    def follow(self) -> None:
        """Go to the end and stay there."""
        self.following = True
        self._steer(self.max_scroll_y)

    def scroll_rows(self, rows: float) -> None:
        """Scroll at once, as the user's own doing."""
        self.scroll_y = self.scroll_target_y = self.scroll_y + rows

    @property
    def page_rows(self) -> int:
        return max(self.size.height - 2, 1)

    # Layout

    def _drawn(self, block: Block) -> list[Line]:
        """The lines of a block as they are shown."""
        return block.lines(self._width, self._glyphs)

    def _lay_out(self) -> None:
        blocks = self._blocks[self._first :]
        self._lines = [self._drawn(block) if self._width else [] for block in blocks]
        self._strips = [[None] * len(lines) for lines in self._lines]
        self._changed(0)

    def _changed(self, row: int) -> None:
        """Rows from `row` on are new."""
        self._tops = [0, *accumulate(map(len, self._lines))]
        total = self._tops[-1]
        size = Size(self._width, total + (min(SLACK_ROWS, self.size.height // 8) if self._streaming else 0))
        if size != self.virtual_size:
            # Set without its watcher, which would lay out the whole screen, where nothing moves but these lines.
            self.set_reactive(ScrollView.virtual_size, size)
        before = self.scroll_offset.y
        if self.following and not (
            self._streaming and before <= self.max_scroll_y and total <= before + self.size.height
        ):
            self._steer(self.max_scroll_y)
        else:
            self._steer(self.scroll_y)
        if self.scroll_offset.y == before:
            top = max(row - before, 0)
            self.refresh(Region(0, top, self.size.width, max(self.size.height - top, 0)))

    @property
    def _streaming(self) -> bool:
        last = self._blocks[-1] if self._blocks else None
        return isinstance(last, Answer) and last.live

    def _steer(self, y: float) -> None:
        self._steering = True
        self.scroll_y = self.scroll_target_y = min(y, self.max_scroll_y)
        self._steering = False

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._steering:
            return
        self.following = new_value >= self.max_scroll_y - NEAR_END if new_value > old_value else False
        if new_value < 1 and self._first:
            self.call_later(self._load_older)

    def _load_older(self) -> None:
        """Lay out the blocks before the oldest, and keep in view what is in view."""
        height = self._tops[-1]
        self._first = max(self._first - PAGE_BLOCKS, 0)
        self._lay_out()
        self._steer(self.scroll_y + self._tops[-1] - height)

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width == self._width:
            self._changed(self.scroll_offset.y)
            return
        index = max(bisect_right(self._tops, self.scroll_offset.y) - 1, 0)
        self._width = event.size.width
        self._lay_out()
        if not self.following:
            self._steer(self._tops[min(index, len(self._tops) - 1)])

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._painter is not None and not self._painter.holds():
            self._painter = None
            self._strips = [[None] * len(lines) for lines in self._lines]
            self.refresh()

    # Painting

    def render_lines(self, crop: Region) -> list[Strip]:
        """Rows of the view. They bypass Textual's cache by screen row, which a scroll empties."""
        top = self.scroll_offset.y
        width, height = self.size
        first, length = _mark(top, height, self._tops[-1])
        strips = [self._row(top + y, width, first <= y < first + length) for y in crop.line_range]
        left, right = crop.column_span
        return strips if (left, right) == (0, width) else [strip.crop_extend(left, right, None) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One row with its place in the text, by which a mouse selection finds the characters."""
        row = self.scroll_offset.y + y
        return self._row(row, self.size.width, False).apply_offsets(0, row)

    def _row(self, row: int, width: int, marked: bool) -> Strip:
        if self._painter is None:
            self._painter = Painter(self, self._glyphs.ellipsis)
        if not 0 <= row < self._tops[-1]:
            return Strip.blank(width, self._painter.base)
        index = bisect_right(self._tops, row) - 1
        place = row - self._tops[index]
        kept = self._strips[index][place]
        if kept is None:
            strip = self._painter.strip(self._lines[index][place], width - 1)
            kept = self._strips[index][place] = (
                Strip([*strip, Segment(" ", self._painter.base)], width),
                Strip([*strip, Segment(self._glyphs.thumb, self._painter.style("rule"))], width),
            )
        selection = self.text_selection
        span = None if selection is None else selection.get_span(row)
        return kept[marked] if span is None else self._selected(kept[marked], *span)

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        text = strip.text
        begin, stop = cell_len(text[:start]), cell_len(text[:end] if end >= 0 else text.rstrip())
        if stop <= begin:
            return strip
        style = self.screen.get_component_rich_style("screen--selection")
        chosen = Strip(strip.crop(begin, stop), stop - begin).apply_style(style)
        return Strip.join([strip.crop(0, begin), chosen, strip.crop(stop)])

    # Mouse

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.text), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """A click on the line above the thinking folds or unfolds it."""
        row = self.scroll_offset.y + event.y
        index = bisect_right(self._tops, row) - 1
        if not 0 <= row < self._tops[-1] or row != self._tops[index]:
            return
        block = self._blocks[self._first + index]
        if isinstance(block, Answer) and block.has_thinking:
            block.unfold = not block.unfolded
            self.update(block)
