"""The envelopes that every refusal and failure comes in."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

FORM = ConfigDict(extra="forbid", protected_namespaces=())


class Shape(BaseModel):
    """Base of the forms of answers: these fields and no others. One with a default may be absent."""

    model_config = FORM


class ErrorFacts(Shape):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Shape):
    """OpenAI's envelope."""

    error: ErrorFacts


class AnthropicErrorFacts(Shape):
    type: str
    message: str


class AnthropicError(Shape):
    """Anthropic's envelope."""

    type: Literal["error"]
    error: AnthropicErrorFacts
    request_id: str


AnyError = Error | AnthropicError
"""Anthropic's where the request has the header `anthropic-version`."""
