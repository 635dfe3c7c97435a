"""The steps that made one answer: a row a step, and all that is known of the token that is chosen."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.events import Resize
from textual.screen import ModalScreen

from mtplx_tui.charts import tokens
from mtplx_tui.glyphs import Glyphs
from mtplx_tui.keys import STEPS_KEYS, bindings, footer
from mtplx_tui.layout.spans import Line, spread
from mtplx_tui.talk import Talk
from mtplx_tui.trace import Trace, TracedStep
from mtplx_tui.widgets.lines import Lines

REDRAW_S = 0.25
ALTERNATIVES = 5
DETAIL_ROWS = 4 + ALTERNATIVES


class StepsScreen(ModalScreen[None]):
    """Begins at the first token of an answer that has ended, and follows one that is still being written."""

    CSS_PATH = "steps.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(STEPS_KEYS)]

    def __init__(self, glyphs: Glyphs, trace: Trace, talk: Talk) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._trace = trace
        self._talk = talk
        self._steps: list[TracedStep] = []
        self._step = 0
        self._token = 0
        self._top = 0
        self._following = not trace.ended
        self._whole = False

    def compose(self) -> ComposeResult:
        for name in ("title", "legend", "rows", "detail", "foot"):
            yield Lines(self._glyphs, id=f"steps-{name}")

    def on_mount(self) -> None:
        self.set_interval(REDRAW_S, self._look)
        self.call_after_refresh(self.draw)

    def on_resize(self, _: Resize) -> None:
        self.call_after_refresh(self.draw)

    def _look(self) -> None:
        if not self._whole:
            self.draw()

    def draw(self) -> None:
        """Draw what is known by now; equal lines cost a comparison."""
        self._whole = self._trace.ended
        self._steps = list(self._trace.steps)
        if self._following:
            self._step = len(self._steps) - 1
            self._token = self._last(self._step)
        self._step = max(min(self._step, len(self._steps) - 1), 0)
        width, glyphs = self.size.width, self._glyphs
        rows = self.query_one("#steps-rows", Lines)
        height = max(rows.size.height, 1)
        self._top = max(min(self._top, self._step, len(self._steps) - height), self._step - height + 1, 0)
        shown = self._steps[self._top : self._top + height]
        depth = max((traced.step.drafted for traced in shown), default=0)
        rows.show([
            tokens.row(traced, depth, width, glyphs, self._token if place == self._step else None)
            for place, traced in enumerate(shown, self._top)
        ])  # fmt: skip
        self._show("title", spread(self._title(), self._asked(), width, glyphs.ellipsis))
        self._show("legend", tokens.legend(glyphs))
        self._show("detail", *self._detail(width))
        self._show("foot", footer(STEPS_KEYS, width))

    def _show(self, name: str, *lines: Line) -> None:
        self.query_one(f"#steps-{name}", Lines).show(lines)

    def _title(self) -> Line:
        made, count = sum(len(traced.ids) for traced in self._steps), len(self._steps)
        state = "" if self._trace.ended else ", still being written"
        return (
            (" one answer", "title"),
            (f"  {made} tokens in {count} step{'' if count == 1 else 's'}{state}", "muted"),
        )

    def _asked(self) -> Line:
        word = "on" if self._talk.logprobs else "off"
        return (("probabilities ", "muted"), (word, "strong"), (" (p) ", "muted"))

    def _detail(self, width: int) -> list[Line]:
        if not self._steps:
            return [(("No step was taken yet.", "muted"),)]
        sizes = [len(traced.step.tokens) for traced in self._steps]
        number = f"{sum(sizes[: self._step]) + self._token + 1} of {sum(sizes)}"
        return tokens.detail(self._steps[self._step], self._token, number, width, self._glyphs)

    def _last(self, step: int) -> int:
        return max(len(self._steps[step].step.tokens) - 1, 0) if 0 <= step < len(self._steps) else 0

    def action_token(self, by: int) -> None:
        """The token before or after, from step to step."""
        step, token = self._step, self._token + by
        if token < 0 and step > 0:
            step, token = step - 1, self._last(step - 1)
        elif token > self._last(step) and step < len(self._steps) - 1:
            step, token = step + 1, 0
        self._go(step, token)

    def action_step(self, by: int) -> None:
        """The step before or after; the same token of it, where it has as many."""
        self._go(self._step + by, self._token)

    def action_page(self, by: int) -> None:
        self.action_step(by * max(self.query_one("#steps-rows", Lines).size.height - 1, 1))

    def action_end(self, at: int) -> None:
        """The first token, or the last, from where an answer that grows is followed."""
        end = len(self._steps) - 1 if at > 0 else 0
        self._go(end, self._last(end) if at > 0 else 0)

    def _go(self, step: int, token: int) -> None:
        self._step = max(min(step, len(self._steps) - 1), 0)
        self._token = max(min(token, self._last(self._step)), 0)
        at_end = self._step == len(self._steps) - 1 and self._token == self._last(self._step)
        self._following = at_end and not self._trace.ended
        self.draw()

    def action_probabilities(self) -> None:
        """Have the next answers come with probabilities, or without."""
        self._talk.logprobs = None if self._talk.logprobs else ALTERNATIVES
        self.draw()
