"""The stream of a message: Anthropic's events, in the order that its clients insist on."""

import time
from collections.abc import Iterator
from typing import Any

from pydantic_core import to_json

from engine.events import Usage
from server.answer import Answer, by_row
from server.anthropic_conversation import seal
from server.anthropic_request import MessagePlan
from server.anthropic_shapes import call_id, stopped, usage
from server.backend import Backend
from server.errors import ApiError
from server.generation import Batch, Generation, failure
from server.pieces import CallArguments, CallBegin, CallEnd, Piece, Reasoning, Text


def event(kind: str, **fields: Any) -> bytes:
    """One frame. The `event:` line is needed: Anthropic's own clients go by it."""
    return b"event: " + kind.encode() + b"\ndata: " + to_json({"type": kind, **fields}) + b"\n\n"


class MessageEvents:
    """message_start, for each block content_block_start, _delta, _stop, then message_delta and message_stop.

    message_start says what of the prompt came from the cache, so it waits until the prompt's reading has begun; pings
    may come before it.
    """

    def __init__(self, plan: MessagePlan, backend: Backend, generation: Generation, error_id: str) -> None:
        """`error_id` is the HTTP request's id, which error events name."""
        self._plan = plan
        self._engine = backend.engine
        self._generation = generation
        self._error_id = error_id
        self._answer = Answer(backend.engine.chat, plan.tools)
        self._blocks = Blocks(plan.hidden)
        self._begun = False
        self._silence_s = backend.settings.value.keep_alive_s
        self._written = time.monotonic()

    def begin(self) -> Iterator[bytes]:
        yield from ()

    def step(self, batch: Batch) -> Iterator[bytes]:
        for _, events in by_row(batch):
            yield from self._start()
            for piece in self._answer.take(events):
                for frame in self._blocks.write(piece):
                    self._written = time.monotonic()
                    yield frame
            finish = self._answer.finish
            error = None if finish is None else failure(finish, self._engine)
            if error is not None:
                raise error
        if time.monotonic() - self._written >= self._silence_s:  # thinking comes, but it is hidden
            yield from self.silence()

    def silence(self) -> Iterator[bytes]:
        if self._generation.cached[0] is not None:
            yield from self._start()
        self._written = time.monotonic()
        yield event("ping")

    def end(self) -> Iterator[bytes]:
        answer = self._answer
        assert answer.finish is not None
        yield from self._blocks.close()
        delta = stopped(self._plan, answer.reason, answer.finish.stop, answer.finish.usage)
        yield event("message_delta", delta=delta, usage=usage(answer.finish.usage))
        yield event("message_stop")

    def fail(self, error: ApiError) -> Iterator[bytes]:
        body = error.anthropic_body(self._error_id)
        yield event(body.pop("type"), **body)

    def _start(self) -> Iterator[bytes]:
        if self._begun:
            return
        self._begun = True
        request = self._plan.request
        known = Usage(prompt_tokens=len(request.prompt), cached_tokens=self._generation.cached[0] or 0)
        message: dict[str, Any] = {
            "id": request.id,
            "type": "message",
            "role": "assistant",
            "model": self._plan.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(known),
        }
        yield event("message_start", message=message)


class Blocks:
    """Content blocks, numbered from 0: each piece goes on with the open one or opens the next. None is ever empty.

    Args:
        hidden: thinking is written as a block without text, whose signature carries it.
    """

    def __init__(self, hidden: bool) -> None:
        self._hidden = hidden
        self._index = -1
        self._open: type[Piece] | None = None
        self._sealed: list[str] = []

    def write(self, piece: Piece) -> Iterator[bytes]:
        """The frames that a piece makes."""
        match piece:
            case Reasoning(text):
                yield from self._within(Reasoning, type="thinking", thinking="", signature="")
                if self._hidden:
                    self._sealed.append(text)
                else:
                    yield self._delta(type="thinking_delta", thinking=text)
            case Text(text):
                yield from self._within(Text, type="text", text="")
                yield self._delta(type="text_delta", text=text)
            case CallBegin(name=name):
                yield from self.close()
                yield from self._within(CallBegin, type="tool_use", id=call_id(), name=name, input={})
            case CallArguments(text=text):
                yield self._delta(type="input_json_delta", partial_json=text)
            case CallEnd():
                yield from self.close()

    def close(self) -> Iterator[bytes]:
        """The frames that end the open block, where one is open."""
        if self._open is None:
            return
        if self._open is Reasoning:
            yield self._delta(type="signature_delta", signature=seal("".join(self._sealed)))
            self._sealed = []
        self._open = None
        yield event("content_block_stop", index=self._index)

    def _within(self, kind: type[Piece], **block: Any) -> Iterator[bytes]:
        if self._open is kind:
            return
        yield from self.close()
        self._open = kind
        self._index += 1
        yield event("content_block_start", index=self._index, content_block=block)

    def _delta(self, **delta: Any) -> bytes:
        return event("content_block_delta", index=self._index, delta=delta)
