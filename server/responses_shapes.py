"""The objects of the Responses API that are not items: the response itself, its usage, its error."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.events import Usage
from server.errors import ApiError

_OWN_CODES = ("context_length_exceeded", "rate_limit_exceeded")


def response(
    head: Mapping[str, Any],
    status: str,
    output: Sequence[Mapping[str, Any]],
    *,
    usage: Usage | None = None,
    completed_at: int | None = None,
    error: ApiError | None = None,
) -> dict[str, Any]:
    """A response as it stands; `head` are the fields that stay the same while it is made."""
    return {
        **head,
        "status": status,
        "completed_at": completed_at,
        "error": None if error is None else {"code": _code(error), "message": error.message},
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": list(output),
        "usage": None if usage is None else _usage(usage),
    }


def _usage(row: Usage) -> dict[str, Any]:
    """`output_tokens_details` counts drafts as the chat endpoint does; nothing is charged for writing to the cache."""
    return {
        "input_tokens": row.prompt_tokens,
        "input_tokens_details": {"cached_tokens": row.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": row.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": row.reasoning_tokens,
            "accepted_prediction_tokens": row.accepted_prediction_tokens,
            "rejected_prediction_tokens": row.rejected_prediction_tokens,
        },
        "total_tokens": row.prompt_tokens + row.completion_tokens,
    }


def _code(error: ApiError) -> str:
    if error.code in _OWN_CODES:
        return error.code
    # Codex asks again up to five times on any code but this one, which would undo what the operator did.
    return "invalid_prompt" if error.headers.get("x-should-retry") == "false" else "server_error"
