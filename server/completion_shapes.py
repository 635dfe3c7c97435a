"""The pieces of a completion's answer: choices with legacy log-probabilities, and usage over several prompts."""

import codecs
import math
from collections.abc import Iterable, Sequence
from typing import Any

from engine.events import TokenLogprob, Usage
from server import openai_shapes


class LegacyLogprobs:
    """Writes the `logprobs` of one choice part by part: the echoed prompt if there is one, then the answer.

    `text_offset` counts characters of the choice's own text. A token that goes on with a character which the token
    before it began has that character's offset. The tokens of a stop string are listed, although their text is cut.
    """

    def __init__(self) -> None:
        self._at = 0
        self._decoder = _decoder()

    def prompt(self, first: bytes, others: Iterable[TokenLogprob], characters: int) -> dict[str, Any]:
        """A prompt of so many characters; nothing foretold its `first` token, so that one has null for a number."""
        part = self.answer(others, first)
        self._at, self._decoder = characters, _decoder()
        return part

    def answer(self, tokens: Iterable[TokenLogprob], unforetold: bytes | None = None) -> dict[str, Any]:
        part: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        if unforetold is not None:
            self._add(part, unforetold, None, None)
        for token in tokens:
            top: dict[str, float] = {}
            for _, raw, logprob in (*token.top, (token.id, token.raw, token.logprob)):
                top.setdefault(_shown(raw), _number(logprob))
            self._add(part, token.raw, _number(token.logprob), top)
        return part

    def _add(self, part: dict[str, Any], raw: bytes, logprob: float | None, top: dict[str, float] | None) -> None:
        part["tokens"].append(_shown(raw))
        part["token_logprobs"].append(logprob)
        part["top_logprobs"].append(top)
        part["text_offset"].append(self._at)
        self._at += len(self._decoder.decode(raw))


def choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    """An entry of `choices`, of a whole answer or of a chunk."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Log-probabilities of several parts of a text as those of one."""
    return {key: [entry for part in parts for entry in part[key]] for key in parts[0]}


def usage(rows: Sequence[Usage], n: int) -> dict[str, Any]:
    """The usage of n answers to each of some prompts: a prompt is counted once, all that was made is summed."""
    first, made = rows[::n], [row.completion_tokens for row in rows]
    return openai_shapes.usage(
        [
            Usage(
                prompt_tokens=sum(row.prompt_tokens for row in first),
                completion_tokens=sum(made),
                cached_tokens=sum(row.cached_tokens for row in first),
                reasoning_tokens=sum(row.reasoning_tokens for row in rows),
                accepted_prediction_tokens=sum(row.accepted_prediction_tokens for row in rows),
                rejected_prediction_tokens=sum(row.rejected_prediction_tokens for row in rows),
            )
        ]
    )


def _shown(raw: bytes) -> str:
    """A token's text; one that is not whole characters as OpenAI writes it: `bytes:\\xf0\\x9f`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else -9999.0  # JSON has no infinity; so says OpenAI


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
