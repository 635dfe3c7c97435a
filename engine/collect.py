"""Run one request to its end and hand back the whole answer, for callers that do not stream."""

import queue
from dataclasses import dataclass, field

from engine.events import (
    Event,
    FinishEvent,
    FinishReason,
    PrefillEvent,
    SpanKind,
    Stats,
    TokenEvent,
    TokenLogprob,
    Usage,
)
from engine.handle import EngineHandle
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer. `error` is set, and the text partial, where `finish_reason` is error.

    `prompt_logprobs` are those of the prompt from its second token on, where they were asked for.
    """

    text: str
    reasoning: str
    tool: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: Stats
    error: str | None
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]


@dataclass(slots=True)
class Answer:
    """Gathers a request's events into a Completion."""

    ids: list[int] = field(default_factory=list)
    texts: dict[SpanKind, list[str]] = field(default_factory=lambda: {"text": [], "reasoning": [], "tool": []})
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, event: Event) -> Completion | None:
        """Take the next event; the last one gives the Completion."""
        if isinstance(event, PrefillEvent):
            self.prompt_logprobs += event.logprobs
        if isinstance(event, TokenEvent):
            self.ids += event.ids
            self.logprobs += event.logprobs
            for span in event.spans:
                self.texts[span.kind].append(span.text)
        if isinstance(event, FinishEvent):
            text, reasoning, tool = ("".join(self.texts[kind]) for kind in ("text", "reasoning", "tool"))
            return Completion(
                text, reasoning, tool, tuple(self.ids), event.reason, event.usage, event.stats, event.error,
                tuple(self.logprobs), tuple(self.prompt_logprobs),
            )  # fmt: skip
        return None


def complete(engine: EngineHandle, request: Request) -> Completion:
    """Submit and wait for the end. Raises what `submit` raises; a failure later is in the Completion."""
    return complete_all(engine, [request])[0]


def complete_all(engine: EngineHandle, requests: list[Request]) -> list[Completion]:
    """Submit all at once, so that they share steps, and wait for every one; answers in the order given."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    answers = {request.id: Answer() for request in requests}
    for request in requests:
        engine.submit(request, events.put)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        event = events.get()
        request_id: str = event.request_id  # type: ignore[union-attr]  # a request's sink gets only its own events
        completion = answers[request_id].add(event)
        if completion is not None:
            done[request_id] = completion
    return [done[request.id] for request in requests]
