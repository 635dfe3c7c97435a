"""The fields that say how to sample, shared by every OpenAI endpoint that generates."""

import re
from dataclasses import replace
from typing import Annotated

from pydantic import BeforeValidator, Field

from engine.request import Sampling
from server.errors import invalid
from server.jsonbody import Fields, Whole

GREEDY_BELOW = 1e-4
"""A temperature under this is greedy decoding in all but name, and dividing logits by it overflows."""

TOKEN_ID = re.compile(r"[0-9]{1,9}")


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


class SamplingFields(Fields):
    """Ranges are OpenAI's, with top_k, min_p and repetition_penalty as vLLM has them."""

    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Whole | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: dict[str, float] | None = None
    seed: Whole | None = None
    stop: Annotated[list[str], BeforeValidator(_one_or_many)] | None = None
    max_tokens: Whole | None = Field(None, ge=1)
    n: Whole | None = Field(None, ge=1, le=8)
    ignore_eos: bool | None = None
    min_tokens: Whole | None = Field(None, ge=0)

    def sampling(self, base: Sampling, vocab_size: int) -> Sampling:
        """`base`, the model's own settings, with what the client set. Raises ApiError for ids that are none."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "repetition_penalty": self.repetition_penalty,
        }
        changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
        if self.temperature is not None and self.temperature < GREEDY_BELOW:
            changes["temperature"] = 0.0
        if self.top_k is not None:
            changes["top_k"] = min(max(self.top_k, 0), vocab_size)
        if self.logit_bias is not None:
            changes["logit_bias"] = tuple(
                (_token_id(key, vocab_size), min(max(bias, -100.0), 100.0)) for key, bias in self.logit_bias.items()
            )
        return replace(base, **changes)  # type: ignore[arg-type]  # the names and types are those of the fields above

    def least(self, most: int | None) -> int:
        """`min_tokens`, where `most` tokens are allowed; None is as many as fit. Raises ApiError for more than that."""
        least = self.min_tokens or 0
        if most is not None and least > most:
            raise invalid("min_tokens", f"is {least}, and the answer may have {most} tokens at most")
        return least

    def stops(self) -> tuple[str, ...]:
        """The stop strings; empty ones say nothing and are left out."""
        return tuple(stop for stop in self.stop or () if stop)


def _token_id(key: str, vocab_size: int) -> int:
    # An id beyond the vocabulary would be an unchecked write in MLX's scatter, so it must not pass this line.
    if not TOKEN_ID.fullmatch(key) or int(key) >= vocab_size:
        raise invalid(f"logit_bias.{key[:40]}", f"keys are token ids from 0 to {vocab_size - 1}")
    return int(key)
