"""The pieces of OpenAI's answers: choices, usage, log-probabilities."""

import math
import secrets
from collections.abc import Sequence
from typing import Any

from engine.events import TokenLogprob, Usage
from server.answer import Whole
from server.pieces import CallArguments, CallBegin


def choice(index: int, answer: Whole, with_logprobs: bool) -> dict[str, Any]:
    """The entry of `choices` for a finished answer."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return {
        "index": index,
        "message": message,
        "logprobs": logprobs(answer.logprobs) if with_logprobs else None,
        "finish_reason": answer.reason,
    }


def call_id() -> str:
    """A new id of a tool call."""
    return "call_" + secrets.token_hex(12)


def call_delta(piece: CallBegin | CallArguments) -> dict[str, Any]:
    """The entry of a delta's `tool_calls`. A call's id comes once: with a second one clients begin a second call."""
    if isinstance(piece, CallArguments):
        return {"index": piece.index, "function": {"arguments": piece.text}}
    function = {"name": piece.name, "arguments": ""}
    return {"index": piece.index, "id": call_id(), "type": "function", "function": function}


def usage(rows: Sequence[Usage]) -> dict[str, Any]:
    """The usage of sibling rows: the prompt they share is counted once, what they made is summed.

    `accepted_prediction_tokens` are delivered tokens that the model's own head had drafted, so they are part of
    `completion_tokens`; `rejected_prediction_tokens` are drafts that verification refused, and are not.
    """
    prompt, made = rows[0].prompt_tokens, sum(row.completion_tokens for row in rows)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": rows[0].cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(row.reasoning_tokens for row in rows),
            "accepted_prediction_tokens": sum(row.accepted_prediction_tokens for row in rows),
            "rejected_prediction_tokens": sum(row.rejected_prediction_tokens for row in rows),
            "audio_tokens": 0,
        },
    }


def usage_so_far(prompt: int, made: int) -> dict[str, Any]:
    """The usage within a stream. What the tokens were is told at the end."""
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`logprobs` of a choice: the model's own, one entry a token, with the exact bytes beside the text."""
    return {
        "content": [
            {
                **_token(token.raw, token.logprob),
                "top_logprobs": [_token(raw, logprob) for _, raw, logprob in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _token(raw: bytes, logprob: float) -> dict[str, Any]:
    # -9999.0 is what OpenAI sends for a token that can not come; JSON has no infinity.
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": logprob if math.isfinite(logprob) else -9999.0,
        "bytes": list(raw),
    }
