"""POST /v1/chat/completions: body -> engine requests -> events -> one JSON answer, or a stream of chunks."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from engine.events import FinishEvent, TokenEvent, TokenLogprob
from engine.handle import EngineHandle
from server.chat_request import ChatPlan, plan_chat
from server.errors import ApiError
from server.generation import Batch, ClientGone, Generation, Generations, failure
from server.headers import ignored_header, source
from server.limits import Limits
from server.openai_shapes import Choice, ToolTags, WholeChoice, logprobs, usage
from server.stream import EventStream, data


def routes(engine: EngineHandle, generations: Generations, limits: Limits) -> APIRouter:
    """The endpoint under its two paths."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    @router.post("/chat/completions", include_in_schema=False)
    async def chat(request: Request) -> Response:
        raw = await request.body()
        completion_id = "chatcmpl-" + secrets.token_hex(12)
        who = source(request.headers.get("user-agent", ""))
        plan = await asyncio.to_thread(plan_chat, engine, limits, raw, completion_id, who)
        generation = generations.submit(plan.requests)
        if plan.stream:
            return EventStream(generations, generation, ChatChunks(plan, engine), ignored_header(plan.ignored))
        async with generations.watched(generation, request.receive):
            try:
                return await _whole(plan, engine, generation)
            except ClientGone:
                return Response(status_code=499)  # nobody reads it

    return router


async def _whole(plan: ChatPlan, engine: EngineHandle, generation: Generation) -> Response:
    created = int(time.time())
    tags = tool_tags(engine)
    choices = [WholeChoice(Choice(index, tags)) for index in range(len(plan.requests))]
    finished: dict[int, FinishEvent] = {}
    async for batch in generation.batches():
        for index, event in batch:
            choices[index].add(event)
            if isinstance(event, FinishEvent):
                finished[index] = event
                error = failure(event, engine)
                if error is not None:
                    raise error
    body = {
        "id": plan.id,
        "object": "chat.completion",
        "created": created,
        "model": plan.model,
        "system_fingerprint": None,
        "choices": [choice.body(plan.logprobs) for choice in choices],
        "usage": usage([finished[index].usage for index in range(len(choices))]),
    }
    return Response(to_json(body), 200, ignored_header(plan.ignored), "application/json")


class ChatChunks:
    """The stream of a chat completion: a role chunk a choice, deltas, a finish chunk a choice, usage, [DONE]."""

    def __init__(self, plan: ChatPlan, engine: EngineHandle) -> None:
        self._plan = plan
        self._engine = engine
        tags = tool_tags(engine)
        self._choices = [Choice(index, tags) for index in range(len(plan.requests))]
        self._head = {
            "id": plan.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": plan.model,
            "system_fingerprint": None,
        }

    def begin(self) -> Iterator[bytes]:
        for choice in self._choices:
            yield self._chunk(choice.index, {"role": "assistant", "content": ""})

    def step(self, batch: Batch) -> Iterator[bytes]:
        rows: dict[int, list[TokenEvent | FinishEvent]] = {}
        for index, event in batch:
            rows.setdefault(index, []).append(event)
        for index, events in rows.items():
            choice = self._choices[index]
            pieces = choice.take(events)
            tokens = [token for event in events if isinstance(event, TokenEvent) for token in event.logprobs]
            yield from self._deltas(index, pieces, tokens)
            if choice.finish is not None:
                error = failure(choice.finish, self._engine)
                if error is not None:
                    raise error
                yield self._chunk(index, {}, finish_reason=choice.finish.reason)

    def silence(self) -> Iterator[bytes]:
        yield b": waiting\n\n"

    def end(self) -> Iterator[bytes]:
        if self._plan.include_usage:
            rows = [choice.finish.usage for choice in self._choices if choice.finish is not None]
            yield data({**self._head, "choices": [], "usage": usage(rows)})
        yield b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> Iterator[bytes]:
        yield data(error.body)
        yield b"data: [DONE]\n\n"

    def _deltas(self, index: int, pieces: list[tuple[str, str]], tokens: list[TokenLogprob]) -> Iterator[bytes]:
        """One chunk, or more where text goes back to reasoning: within a delta clients read reasoning first."""
        delta: dict[str, str] = {}
        for name, text in pieces:
            if "content" in delta:
                yield self._chunk(index, delta, tokens)
                delta, tokens = {}, []
            delta[name] = text
        if delta or tokens:
            yield self._chunk(index, delta or {"content": ""}, tokens)

    def _chunk(
        self,
        index: int,
        delta: dict[str, str],
        tokens: list[TokenLogprob] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs(tokens) if tokens else None,
            "finish_reason": finish_reason,
        }
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._plan.include_usage:
            chunk["usage"] = None
        return data(chunk)


def tool_tags(engine: EngineHandle) -> ToolTags:
    """The model's own text around a tool call."""
    chat = engine.chat
    if chat.tool_ids is None:
        return ToolTags("", "")
    opening, closing = chat.tool_ids
    return ToolTags(chat.decode([opening]), chat.decode([closing]))
