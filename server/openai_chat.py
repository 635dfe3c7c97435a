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

from engine.events import TokenLogprob
from engine.handle import EngineHandle
from server.answer import Answer, Whole, by_row, gather, logprobs_of, tokens_of
from server.api import streams
from server.api.document import documented
from server.api.inputs import CHAT_MESSAGES, FUNCTION_CALL, NULL, SAMPLING, TEMPLATE_OPTIONS, TOOL_CHOICE
from server.api.openai import ChatCompletion
from server.backend import Backend
from server.chat_request import ChatFields, ChatPlan, plan_chat
from server.errors import ApiError
from server.generation import Batch, failure
from server.headers import ignored_header, source
from server.openai_shapes import call_delta, choice, logprobs, usage, usage_so_far
from server.pieces import CallEnd, Piece, Reasoning, Text
from server.stream import EventStream, data


def routes(backend: Backend) -> APIRouter:
    """The endpoint under its two paths."""
    router = APIRouter()
    engine, generations = backend.engine, backend.generations

    @router.post(
        "/v1/chat/completions",
        **documented(
            "Answer a conversation",
            ChatCompletion,
            errors=(404, 429),
            body=ChatFields,
            fields={
                "messages": CHAT_MESSAGES,
                **SAMPLING,
                "tool_choice": TOOL_CHOICE,
                "function_call": FUNCTION_CALL,
                "chat_template_kwargs": TEMPLATE_OPTIONS,
                "audio": NULL,
            },
            example={"messages": [{"role": "user", "content": "What is 2 + 3?"}], "max_tokens": 8},
            events=streams.frame(streams.Chat, "[DONE]"),
        ),
    )
    @router.post("/chat/completions", include_in_schema=False)
    async def chat(request: Request) -> Response:
        raw = await request.body()
        completion_id = "chatcmpl-" + secrets.token_hex(12)
        who = source(request.headers.get("user-agent", ""))
        plan = await asyncio.to_thread(plan_chat, backend, raw, completion_id, who)
        generation = generations.submit(plan.requests)
        headers = ignored_header(plan.ignored)
        if plan.stream:
            return EventStream(generations, generation, ChatChunks(plan, engine), headers)
        with generations.running(generation):
            answers = await gather(engine, generation, [Answer(engine.chat, plan.tools) for _ in plan.requests])
        return Response(to_json(_whole(plan, answers)), 200, headers, "application/json")

    return router


def _whole(plan: ChatPlan, answers: list[Whole]) -> dict[str, Any]:
    return {
        "id": plan.id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": plan.model,
        "system_fingerprint": None,
        "choices": [choice(index, answer, plan.logprobs) for index, answer in enumerate(answers)],
        "usage": usage([answer.usage for answer in answers]),
    }


class ChatChunks:
    """The stream of a chat completion: a role chunk a choice, deltas, a finish chunk a choice, usage, [DONE]."""

    def __init__(self, plan: ChatPlan, engine: EngineHandle) -> None:
        self._plan = plan
        self._engine = engine
        self._answers = [Answer(engine.chat, plan.tools) for _ in plan.requests]
        self._made = 0
        self._head = {
            "id": plan.id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": plan.model,
            "system_fingerprint": None,
        }

    def begin(self) -> Iterator[bytes]:
        for index in range(len(self._answers)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def step(self, batch: Batch) -> Iterator[bytes]:
        for index, events in by_row(batch):
            answer = self._answers[index]
            self._made += tokens_of(events)
            pieces = answer.take(events)
            yield from self._deltas(index, pieces, logprobs_of(events))
            if answer.finish is not None:
                error = failure(answer.finish, self._engine)
                if error is not None:
                    raise error
                yield self._chunk(index, {}, finish_reason=answer.reason)

    def silence(self) -> Iterator[bytes]:
        yield b": waiting\n\n"

    def end(self) -> Iterator[bytes]:
        if self._plan.include_usage:
            rows = [answer.finish.usage for answer in self._answers if answer.finish is not None]
            yield data({**self._head, "choices": [], "usage": usage(rows)})
        yield b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> Iterator[bytes]:
        yield data(error.body)
        yield b"data: [DONE]\n\n"

    def _deltas(self, index: int, pieces: list[Piece], tokens: list[TokenLogprob]) -> Iterator[bytes]:
        """A chunk, or more: clients read a delta's reasoning before its content, and one call in it at most."""
        delta: dict[str, Any] = {}
        for piece in pieces:
            if isinstance(piece, CallEnd):
                continue
            if delta and not (isinstance(piece, Text) and list(delta) == ["reasoning_content"]):
                yield self._chunk(index, delta, tokens)
                delta, tokens = {}, []
            if isinstance(piece, Text | Reasoning):
                delta["content" if isinstance(piece, Text) else "reasoning_content"] = piece.text
            else:
                delta["tool_calls"] = [call_delta(piece)]
        if delta or tokens:
            yield self._chunk(index, delta or {"content": ""}, tokens)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
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
        if self._plan.usage_so_far:
            chunk["usage"] = usage_so_far(len(self._plan.requests[0].prompt), self._made)
        elif self._plan.include_usage:
            chunk["usage"] = None
        return data(chunk)
