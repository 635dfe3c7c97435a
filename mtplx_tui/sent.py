"""One request as the model got it and answered it, token by token, the same wherever its engine is."""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Token:
    """`text` is None where there is no tokenizer to tell it. `cached`: it did not have to be read."""

    id: int
    text: str | None
    special: bool
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """The prompt or the answer, `total` tokens, of which `tokens` are those from `start` on; or why there are none."""

    total: int | None
    start: int | None
    tokens: tuple[Token, ...] | None
    why: str | None


@dataclass(frozen=True, slots=True)
class Cache:
    """How much of the prompt was in the cache, and in words why it was not more."""

    prompt_tokens: int
    cached_tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class Sent:
    """One request.

    Attributes:
        asked: how its answer is drawn, as `engine.request.Request` has it; None where that is not known.
        error: why it failed.
    """

    prompt: Part
    answer: Part
    cache: Cache
    asked: dict[str, Any] | None
    error: str | None

    @classmethod
    def read(cls, told: bytes) -> "Sent":
        """What `GET /v1/mtplx/requests/{id}` tells, in JSON. Raises EngineError where it is nothing of the kind."""
        try:
            return _SENT.validate_json(told)
        except ValidationError as error:
            raise EngineError("What the server tells of this request is not what this version understands.") from error


_SENT = TypeAdapter(Sent)
