"""What a link asks of a server of ours, each answer as the type that it is."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter

from engine.errors import BadRequestError, EngineError
from engine.handle import EngineState, ModelInfo
from engine.request import Sampling
from mtplx_tui.link import Question
from mtplx_tui.remote import http
from server.facts import AnswerFacts, RequestFacts

if TYPE_CHECKING:
    from mtplx_tui.sent import Sent

log = logging.getLogger(__name__)

T = TypeVar("T")

SILENCE_S = 60.0
"""The server gives a sign of life every ten seconds, unless it was told to do so less often."""
CANCEL_S = 10.0
GONE = (404, 410)
PASSING = (429, 502, 503, 504)
"""What a server, or a proxy before it, answers for a while."""

_ANSWER = TypeAdapter(AnswerFacts)


class NotNowError(Exception):
    """The server can not be used just now; the text says why."""


class LostError(Exception):
    """The server can not tell an answer any more; the text says why."""


class UnsentError(EngineError):
    """Whether a question has reached the server is not known."""


class EngineThere(BaseModel):
    """How the engine of a server is."""

    state: EngineState
    model: ModelInfo | None


class _Listed(BaseModel):
    requests: tuple[RequestFacts, ...]


class Api:
    """All methods but `ask` and `cancel` raise NotNowError where the server does not answer, or not as ours does."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._http = http.client(url, key)

    def ask(self, question: Question, own: Sampling | None) -> None:
        """Hand a question in; `own` is the sampling of the model there.

        Raises UnsentError, BadRequestError, or EngineError with the server's words.
        """
        for last in (False, True):
            try:
                response = self._http.post("/v1/mtplx/ask", json=_body(question, own))
            except httpx.TransportError as error:
                if last:
                    raise UnsentError(f"Not sent to {self.url}: {http.trouble(error)}.") from error
                continue
            if response.status_code == 202 or (last and response.status_code == 409):  # the first one had arrived
                return
            why = http.refusal(response)
            raise BadRequestError(why) if response.status_code == 400 else EngineError(why)

    def cancel(self, request_id: str, timeout: float = CANCEL_S) -> None:
        """End a request. That it could not be is logged."""
        try:
            response = self._http.post(f"/v1/mtplx/requests/{request_id}/cancel", json={}, timeout=timeout)
        except httpx.HTTPError as error:
            log.warning("%s was not cancelled at %s: %s", request_id, self.url, http.trouble(error))
            return
        if response.status_code not in (200, 404):
            log.warning("%s was not cancelled at %s: %s", request_id, self.url, http.refusal(response))

    def answer(self, request_id: str) -> AnswerFacts:
        """What was answered so far. Raises LostError."""

        def read(response: httpx.Response) -> AnswerFacts:
            if response.status_code in GONE:
                raise LostError("the server knows nothing of it any more, so it was probably started again")
            if response.status_code != 200:
                raise LostError(http.refusal(response))
            return _ANSWER.validate_json(response.content)

        return self._get(f"/v1/mtplx/requests/{request_id}/answer", read)

    def sent(self, request_id: str, start: int) -> "Sent":
        """A request as the model got it, from token `start` of its prompt on. Raises LostError."""
        from mtplx_tui.sent import Sent

        def read(response: httpx.Response) -> Sent:
            if response.status_code != 200:
                raise LostError(http.refusal(response))
            return Sent.read(response.content)

        return self._get(f"/v1/mtplx/requests/{request_id}?prompt_start={start}", read)

    def requests(self) -> tuple[RequestFacts, ...]:
        """Those that run, and the last that ended."""
        return self._get("/v1/mtplx/requests", lambda response: _Listed.model_validate_json(response.content).requests)

    def engine(self) -> EngineThere:
        """How the engine is, and which model it has."""
        return self._get("/v1/mtplx/server", lambda response: EngineThere.model_validate_json(response.content))

    def events(self, on_open: Callable[[Any], None], on_line: Callable[[bytes], None]) -> None:
        """Read the stream of events until it ends; `on_open` gets its socket. Always raises NotNowError."""
        timeout = httpx.Timeout(http.TIMEOUT.connect, read=SILENCE_S)
        try:
            with self._http.stream("GET", "/v1/mtplx/events", timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                    raise NotNowError(http.refusal(response))
                on_open(response.extensions["network_stream"].get_extra_info("socket"))
                for line in http.stream_lines(response.iter_bytes()):
                    on_line(line)
        except (httpx.HTTPError, OSError) as error:
            raise NotNowError(http.trouble(error)) from error
        raise NotNowError("the server ended the connection")

    def close(self) -> None:
        self._http.close()

    def _get(self, path: str, read: Callable[[httpx.Response], T]) -> T:
        try:
            response = self._http.get(path)
            if response.status_code in PASSING:
                raise NotNowError(http.refusal(response))
            return read(response)
        except (httpx.HTTPError, OSError) as error:
            raise NotNowError(http.trouble(error)) from error
        except ValueError as error:
            log.warning("%s%s: %s", self.url, path, error)
            raise NotNowError("it does not answer as a server of this version does") from error


def _body(question: Question, own: Sampling | None) -> dict[str, Any]:
    """What is the model's `own` is left to the server, whose settings may say otherwise."""
    body: dict[str, Any] = {
        "id": question.id,
        "messages": [dict(message) for message in question.messages],
        "thinking": question.thinking,
        "max_tokens": question.max_tokens,
        "seed": question.seed,
        "logprobs": question.logprobs,
    }
    if question.tools:
        body["tools"] = [dict(tool) for tool in question.tools]
    if question.sampling is not None:
        bias = {str(token): bias for token, bias in question.sampling.logit_bias}
        sampling = asdict(question.sampling) | {"logit_bias": bias}
        kept = {} if own is None else asdict(own)
        body |= {name: value for name, value in sampling.items() if name == "logit_bias" or value != kept.get(name)}
    return body
