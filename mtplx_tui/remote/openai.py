"""A Link to any server with OpenAI's chat API: its answers as events, and what its metrics tell.

Such a server says nothing of steps, of its queue or of others' requests, so there are no events of these; the ids of
tokens are not known and stand as zeros.
"""

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from engine.errors import BadRequestError, EngineError
from engine.events import (
    Event,
    FinishEvent,
    FinishReason,
    LoadEvent,
    PrefillEvent,
    QueuedEvent,
    ReadyEvent,
    Span,
    Stats,
    TokenEvent,
    Usage,
)
from engine.front import Front
from engine.handle import EngineState, EventSink, ModelInfo
from engine.request import Sampling
from mtplx_tui.link import Question
from mtplx_tui.remote import http
from mtplx_tui.remote.figures import ServerFigures, figures_of

if TYPE_CHECKING:
    from mtplx_tui.sent import Sent

log = logging.getLogger(__name__)

POLL_S = 2.0
SILENCE_S = 600.0
"""Long prompts on busy servers are read for minutes without a sign of life."""
CLOSE_S = 2.0
CONTEXT_NAMES = ("max_model_len", "context_length", "context_window", "max_context_length")
FIRST_NAMES = ("reasoning_content", "reasoning")


@dataclass(slots=True, eq=False)
class _Answer:
    """One request that runs. `connection` is what a cancel shuts."""

    id: str
    sink: EventSink
    begun: float
    cancelled: bool = False
    connection: socket.socket | None = None
    tokens: int = 0
    first_at: float | None = None
    first_tokens: int = 0
    last_at: float = 0.0
    reason: str | None = None
    usage: Mapping[str, Any] | None = None
    calls: "_Calls" = field(default_factory=lambda: _Calls())


class OpenAILink:
    """Looks at the server every two seconds, on a thread of its own; answers run on a thread each.

    Args:
        url: as `http.base_url` gives it. listed: what `/v1/models` lists first, where it was asked already.

    Attributes:
        figures: what its metrics told last; None where there are none.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        self.figures: ServerFigures | None = None
        self._http = http.client(url, key)
        self._front = Front(())  # for its listeners
        self._model: ModelInfo | None = None
        self._vllm = False
        self._trouble = "connecting"
        self._running: dict[str, _Answer] = {}
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="remote-metrics", daemon=True)
        self._watcher.start()

    @property
    def state(self) -> EngineState:
        return "loading" if self._trouble else "ready"

    @property
    def model(self) -> ModelInfo:
        if self._model is None:
            raise EngineError(f"{self.url} has told of no model yet: {self._trouble}.")
        return self._model

    @property
    def line(self) -> str:
        """Where the server is and whether it can be reached, in words for a screen."""
        return f"{self.url}/v1: {self._trouble}" if self._trouble else f"{self.url}/v1"

    def ask(self, question: Question, on_event: EventSink) -> None:
        answer = _Answer(question.id, on_event, time.monotonic())
        request = self._http.build_request(
            "POST", "/v1/chat/completions", json=self._body(question), timeout=httpx.Timeout(10.0, read=SILENCE_S)
        )
        try:
            response = self._http.send(request, stream=True)
            if response.status_code != 200:
                response.read()
                why = http.refusal(response)
                raise BadRequestError(why) if response.status_code in (400, 422) else EngineError(why)
        except httpx.HTTPError as error:
            raise EngineError(f"Not sent to {self.url}: {http.trouble(error)}.") from error
        answer.connection = response.extensions["network_stream"].get_extra_info("socket")
        self._running[answer.id] = answer
        self._tell(answer, QueuedEvent(answer.id, answer.begun, question.source, 0, question.max_tokens or 0, 0))
        self._tell(answer, PrefillEvent(answer.id, time.monotonic(), 0, 0))
        threading.Thread(target=self._read, args=(answer, response), name="remote-answer", daemon=True).start()

    def count(self, text: str) -> int | None:
        return None

    def sent(self, request_id: str, start: int = 0) -> "Sent":
        raise EngineError(f"{self.url} has no way to tell what was sent to its model.")

    def cancel(self, request_id: str) -> None:
        answer = self._running.get(request_id)
        if answer is not None:
            answer.cancelled = True
            if answer.connection is not None:
                with suppress(OSError):
                    answer.connection.shutdown(socket.SHUT_RDWR)

    def listen(self, on_event: EventSink) -> Callable[[], None]:
        return self._front.listen(on_event)

    def close(self) -> None:
        """Cancel what runs, and end."""
        self._closing.set()
        for request_id in list(self._running):
            self.cancel(request_id)
        self._watcher.join(CLOSE_S)
        self._http.close()

    # An answer, on its own thread

    def _read(self, answer: _Answer, response: httpx.Response) -> None:
        error: str | None = None
        try:
            for line in http.stream_lines(response.iter_bytes()):
                data = http.data_of(line)
                if data == b"[DONE]":
                    break
                if data is not None:
                    self._chunk(answer, json.loads(data))
            if answer.reason is None:
                error = "The server ended the answer without saying why."
        except (httpx.HTTPError, OSError) as problem:
            error = f"The answer broke off: {http.trouble(problem)}. What came is kept."
        except EngineError as problem:
            error = str(problem)
        except (ValueError, LookupError, TypeError, AttributeError) as problem:
            error = f"The server sent what is no chat completion: {problem}"
        response.close()
        self._finish(answer, None if answer.cancelled else error)

    def _chunk(self, answer: _Answer, chunk: Mapping[str, Any]) -> None:
        if (error := chunk.get("error")) is not None:
            raise EngineError(str(error.get("message", error) if isinstance(error, dict) else error))
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk.get("choices") or ():
            spans = tuple(_spans(choice.get("delta") or {}, answer.calls))
            if spans:
                self._say(answer, spans)
            answer.reason = choice.get("finish_reason") or answer.reason

    def _say(self, answer: _Answer, spans: tuple[Span, ...]) -> None:
        """Tell of a piece. Where the server counts as it goes, its tokens are known; else a piece counts as one."""
        told = int((answer.usage or {}).get("completion_tokens") or 0)
        count = told - answer.tokens if self._vllm else 1
        now = time.monotonic()
        answer.tokens += max(count, 0)
        if answer.first_at is None:
            answer.first_at, answer.first_tokens = now, answer.tokens
        answer.last_at = now
        self._tell(answer, TokenEvent(answer.id, now, (0,) * max(count, 0), spans))

    def _finish(self, answer: _Answer, error: str | None) -> None:
        reason: FinishReason = "cancelled" if answer.cancelled else "length" if answer.reason == "length" else "stop"
        self._running.pop(answer.id, None)
        if error is None and (closing := tuple(answer.calls.end())):
            self._tell(answer, TokenEvent(answer.id, time.monotonic(), (), closing))
        usage = answer.usage or {}
        made = int(usage.get("completion_tokens") or answer.tokens)
        details = usage.get("completion_tokens_details") or {}
        read = usage.get("prompt_tokens_details") or {}
        counted = Usage(
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=made,
            cached_tokens=int(read.get("cached_tokens") or 0),
            reasoning_tokens=int(details.get("reasoning_tokens") or 0),
            accepted_prediction_tokens=int(details.get("accepted_prediction_tokens") or 0),
            rejected_prediction_tokens=int(details.get("rejected_prediction_tokens") or 0),
        )
        seconds = 0.0 if answer.first_at is None else answer.last_at - answer.first_at
        stats = Stats(
            ttft_s=None if answer.first_at is None else answer.first_at - answer.begun,
            decode_tok_s=(made - answer.first_tokens) / seconds if seconds > 0 else None,
        )
        reason = "error" if error is not None else reason
        self._tell(answer, FinishEvent(answer.id, time.monotonic(), reason, counted, stats, error))

    def _tell(self, answer: _Answer, event: Event) -> None:
        self._front.send(event, answer.sink)

    def _body(self, question: Question) -> dict[str, Any]:
        """The question as the API has it; what the user has not changed is left to the server."""
        options: dict[str, Any] = {"include_usage": True}
        if self._vllm:
            options["continuous_usage_stats"] = True
        body: dict[str, Any] = {
            "model": self.model.name,
            "messages": list(map(_message, question.messages)),
            "stream": True,
            "stream_options": options,
        }
        if question.sampling is not None:
            own = asdict(self.model.sampling)
            body |= {name: value for name, value in asdict(question.sampling).items() if value != own[name]}
        if not question.thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
        for name in ("max_tokens", "seed"):
            if (value := getattr(question, name)) is not None:
                body[name] = value
        if question.tools:
            body["tools"] = [dict(tool) for tool in question.tools]
        return body

    # The server, on the watcher's thread

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self._look()
            except httpx.HTTPError as error:
                self._down(http.trouble(error))
            except (ValueError, LookupError, TypeError) as error:
                self._down(f"it lists no models ({error})")
            self._closing.wait(POLL_S)

    def _look(self) -> None:
        if self._trouble:
            response = self._http.get("/v1/models")
            if response.status_code != 200:
                self._down(http.refusal(response))
                return
            self._up(response.json()["data"][0])
        response = self._http.get("/metrics")
        with suppress(ValueError):
            self.figures = figures_of(response.text) if response.status_code == 200 else None

    def _up(self, listed: Mapping[str, Any]) -> None:
        self._model, self._vllm = model_of(listed), listed.get("owned_by") == "vllm"
        self._trouble = ""
        self._front.send(ReadyEvent(time.monotonic(), self._model.name))

    def _down(self, why: str) -> None:
        self.figures = None  # what it told before is not so now
        trouble = f"reconnecting, {why}"
        if trouble != self._trouble:
            log.warning("%s: %s", self.url, why)
            where = self.url.partition("://")[2]
            self._front.send(LoadEvent(time.monotonic(), f"reconnecting to {where}"))  # why stands in `line`
        self._trouble = trouble


def model_of(listed: Mapping[str, Any]) -> ModelInfo:
    """A model as far as an entry of `/v1/models` tells of it; a context of 0 is one that is not told."""
    told = (listed.get(name) for name in CONTEXT_NAMES)
    context = next((value for value in told if isinstance(value, int) and value > 0), 0)
    return ModelInfo(
        name=str(listed["id"]), path="", family="", context=context, vocab_size=0, mode="ar", depth=None,
        head="n/a (this API does not tell)", quantization=None, dtype="", device="", weight_bytes=0,
        sampling=Sampling(), kv="",
    )  # fmt: skip


class _Calls:
    """Tool calls as the API streams them, told as a model would write them: JSON with `name` and `arguments`."""

    def __init__(self) -> None:
        self._open: tuple[object, object] | None = None
        self._told = False  # something of the open call's arguments

    def spans(self, call: Mapping[str, Any]) -> Iterator[Span]:
        """A piece of a call: the first of one has its name, all of one have the same index."""
        function = call.get("function") or {}
        name, arguments = function.get("name"), function.get("arguments") or ""
        here = (call.get("index"), None if call.get("index") is not None else call.get("id"))
        if isinstance(name, str) and name and here != self._open:
            yield from self.end()
            self._open, self._told = here, False
            yield Span("tool", f'{{"name": {json.dumps(name)}, "arguments": ', opens=True)
        if arguments:
            self._told = True
            yield Span("tool", str(arguments))

    def end(self) -> Iterator[Span]:
        """The call that is open has ended."""
        if self._open is not None:
            yield Span("tool", "}" if self._told else "{}}")
        self._open = None


def _spans(delta: Mapping[str, Any], calls: _Calls) -> Iterator[Span]:
    for name in FIRST_NAMES:
        if isinstance(text := delta.get(name), str) and text:
            yield Span("reasoning", text)
            break
    if isinstance(text := delta.get("content"), str) and text:
        yield Span("text", text)
    for call in delta.get("tool_calls") or ():
        yield from calls.spans(call)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as the API has it: earlier thinking is no part of it, and a call's arguments are text."""
    turn = {name: value for name, value in message.items() if name != "reasoning_content"}
    if calls := turn.get("tool_calls"):
        turn["tool_calls"] = [_call(call) for call in calls]
    return turn


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {"type": "function", "id": call.get("id") or f"call_{secrets.token_hex(8)}", "function": function}
