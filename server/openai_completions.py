"""POST /v1/completions: the text as the model goes on with it, raw, and the log-probabilities of a prompt."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from engine.events import TokenLogprob
from engine.handle import EngineHandle
from server.answer import Answer, Whole, by_row, gather, logprobs_of, tokens_of
from server.api import streams
from server.api.document import documented
from server.api.inputs import SAMPLING, TEXTS_OR_IDS
from server.api.openai import TextCompletion
from server.backend import Backend
from server.completion_request import CompletionFields, CompletionPlan, plan_completion
from server.completion_shapes import LegacyLogprobs, choice, joined, usage
from server.errors import ApiError
from server.generation import Batch, Generation, failure
from server.headers import ignored_header, source
from server.openai_shapes import usage_so_far
from server.pieces import Text
from server.stream import EventStream, data
from server.tools import Tools


def routes(backend: Backend) -> APIRouter:
    """The endpoint under its two paths."""
    router = APIRouter()
    engine, generations = backend.engine, backend.generations

    @router.post(
        "/v1/completions",
        **documented(
            "Continue a text",
            TextCompletion,
            errors=(404, 429),
            body=CompletionFields,
            fields={"prompt": TEXTS_OR_IDS, **SAMPLING},
            example={"prompt": "Once upon a time", "max_tokens": 8},
            events=streams.frame(streams.Text, "[DONE]"),
        ),
    )
    @router.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        raw = await request.body()
        completion_id = "cmpl-" + secrets.token_hex(12)
        who = source(request.headers.get("user-agent", ""))
        plan = await asyncio.to_thread(plan_completion, backend, raw, completion_id, who)
        generation = generations.submit(plan.requests)
        headers = ignored_header(plan.ignored)
        if plan.stream:
            return EventStream(generations, generation, CompletionChunks(plan, engine, generation), headers)
        with generations.running(generation):
            answers = await gather(engine, generation, [Answer(engine.chat, Tools()) for _ in plan.requests])
        body = await asyncio.to_thread(_body, plan, engine, answers, generation.prompt_logprobs)
        return Response(body, 200, headers, "application/json")

    return router


def _body(plan: CompletionPlan, engine: EngineHandle, answers: list[Whole], scores: list[list[TokenLogprob]]) -> bytes:
    """The whole answer. Numbers of long prompts are megabytes, so it belongs off the event loop."""
    choices = []
    for index, answer in enumerate(answers):
        prompt, table = plan.prompt(index), LegacyLogprobs()
        parts = []
        if plan.echo:
            first = engine.chat.token_bytes(prompt.ids[0])
            parts.append(table.prompt(first, scores[index], len(prompt.text)))
        parts.append(table.answer(answer.logprobs))
        text = prompt.text + answer.text if plan.echo else answer.text
        choices.append(choice(index, text, joined(parts) if plan.logprobs else None, answer.reason))
    return to_json({**_head(plan), "choices": choices, "usage": usage([answer.usage for answer in answers], plan.n)})


def _head(plan: CompletionPlan) -> dict[str, Any]:
    return {
        "id": plan.id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": plan.model,
        "system_fingerprint": None,
    }


class CompletionChunks:
    """The stream of a completion: the prompt of each choice where it is echoed, its text, a finish chunk; then usage
    and [DONE]."""

    def __init__(self, plan: CompletionPlan, engine: EngineHandle, generation: Generation) -> None:
        self._plan = plan
        self._engine = engine
        self._generation = generation
        self._answers = [Answer(engine.chat, Tools()) for _ in plan.requests]
        self._made = 0
        self._tables = [LegacyLogprobs() for _ in plan.requests]
        self._to_echo = set(range(len(plan.requests))) if plan.echo else set()
        self._head = _head(plan)

    def begin(self) -> Iterator[bytes]:
        return iter(())

    def step(self, batch: Batch) -> Iterator[bytes]:
        for index, events in by_row(batch):
            answer = self._answers[index]
            self._made += tokens_of(events)
            pieces = answer.take(events)
            error = None if answer.finish is None else failure(answer.finish, self._engine)
            if index in self._to_echo:
                if error is not None:  # what is known of the prompt may be a part of it
                    raise error
                self._to_echo.remove(index)
                yield self._echo(index)
            text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
            tokens = logprobs_of(events)
            if text or tokens:
                yield self._chunk(index, text, self._tables[index].answer(tokens))
            if error is not None:
                raise error
            if answer.finish is not None:
                yield self._chunk(index, "", finish_reason=answer.reason)

    def silence(self) -> Iterator[bytes]:
        yield b": waiting\n\n"

    def end(self) -> Iterator[bytes]:
        if self._plan.include_usage:
            rows = [answer.finish.usage for answer in self._answers if answer.finish is not None]
            yield data({**self._head, "choices": [], "usage": usage(rows, self._plan.n)})
        yield b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> Iterator[bytes]:
        yield data(error.body)
        yield b"data: [DONE]\n\n"

    def _echo(self, index: int) -> bytes:
        prompt = self._plan.prompt(index)
        scores = self._generation.prompt_logprobs[index]
        first = self._engine.chat.token_bytes(prompt.ids[0])
        return self._chunk(index, prompt.text, self._tables[index].prompt(first, scores, len(prompt.text)))

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> bytes:
        shown = logprobs if self._plan.logprobs else None
        chunk: dict[str, Any] = {**self._head, "choices": [choice(index, text, shown, finish_reason)]}
        if self._plan.usage_so_far:
            chunk["usage"] = usage_so_far(sum(len(prompt.ids) for prompt in self._plan.prompts), self._made)
        elif self._plan.include_usage:
            chunk["usage"] = None
        return data(chunk)
