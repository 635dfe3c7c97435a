"""How the answers of this run were made, step by step: kept in memory, for the view of single tokens."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.events import StepEvent, TokenEvent, TokenLogprob
from mtplx_tui.recorder import MessageRef

MOST_STEPS = 20_000
"""Of all answers together, some 10 MB; the oldest answers are forgotten first."""


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step and the tokens that it delivered; the token that ended the answer is in `step.tokens` alone.

    Attributes:
        logprobs: one a token of `ids`, where they were asked for; else empty.
    """

    step: StepEvent
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(slots=True, eq=False)
class Trace:
    """One answer's steps, oldest first. `ended` once no more will come."""

    ref: MessageRef
    steps: deque[TracedStep] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    ended: bool = False

    def take(self, told: Iterable[StepEvent | TokenEvent]) -> None:
        """Add what came: a step, then its tokens. Text that was held back to the end has no tokens of its own."""
        for event in told:
            if isinstance(event, StepEvent):
                self.steps.append(TracedStep(event))
            elif self.steps and event.ids:
                self.steps[-1] = TracedStep(self.steps[-1].step, event.ids, event.logprobs)


class Traces:
    """The traces of this run."""

    def __init__(self) -> None:
        self._traces: deque[Trace] = deque()

    def start(self, ref: MessageRef) -> Trace:
        """The trace of an answer that begins."""
        while self._traces and sum(len(trace.steps) for trace in self._traces) > MOST_STEPS:
            self._traces.popleft()
        self._traces.append(Trace(ref))
        return self._traces[-1]

    def of(self, ref: MessageRef) -> Trace | None:
        """The trace of a message; None where its steps are not known."""
        return next(
            (trace for trace in self._traces
             if trace.ref is ref or (ref.id is not None and trace.ref.id == ref.id)), None
        )  # fmt: skip
