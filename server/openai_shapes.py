"""The pieces of OpenAI's answers: choices, usage, log-probabilities."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.events import FinishEvent, TokenEvent, TokenLogprob, Usage


@dataclass(frozen=True, slots=True)
class ToolTags:
    """What stands around a tool call in the model's text; empty where the model has no such tokens."""

    open: str
    close: str


@dataclass(slots=True)
class Choice:
    """Turns one row's events into pieces of `reasoning_content` and `content`.

    Nobody asked for tool calls on the endpoints that use this, so a call that the model makes all the same is
    content, tags included.
    """

    index: int
    tags: ToolTags
    finish: FinishEvent | None = None
    _in_tool: bool = False

    def take(self, events: Iterable[TokenEvent | FinishEvent]) -> list[tuple[str, str]]:
        """(`reasoning_content` or `content`, text) pairs in order, neighbours of a kind joined."""
        joined: list[tuple[str, str]] = []

        def add(name: str, text: str) -> None:
            if joined and joined[-1][0] == name:
                joined[-1] = (name, joined[-1][1] + text)
            elif text:
                joined.append((name, text))

        for event in events:
            if isinstance(event, FinishEvent):
                self.finish = event
                if event.reason == "stop" and event.stop is None:
                    add("content", self._tag(False))
                break
            for span in event.spans:
                add("content", self._tag(span.kind == "tool"))
                add("reasoning_content" if span.kind == "reasoning" else "content", span.text)
        return joined

    def _tag(self, tool: bool) -> str:
        if tool == self._in_tool:
            return ""
        self._in_tool = tool
        return self.tags.open if tool else self.tags.close


@dataclass(slots=True)
class WholeChoice:
    """A row's answer gathered until it has finished."""

    choice: Choice
    texts: dict[str, list[str]] = field(default_factory=lambda: {"reasoning_content": [], "content": []})
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def add(self, event: TokenEvent | FinishEvent) -> None:
        """Take the row's next event."""
        for name, text in self.choice.take([event]):
            self.texts[name].append(text)
        if isinstance(event, TokenEvent):
            self.logprobs += event.logprobs

    def body(self, with_logprobs: bool) -> dict[str, Any]:
        """The entry of `choices` once the row has finished."""
        assert self.choice.finish is not None
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self.texts["content"]), "refusal": None}
        if self.texts["reasoning_content"]:
            message["reasoning_content"] = "".join(self.texts["reasoning_content"])
        return {
            "index": self.choice.index,
            "message": message,
            "logprobs": logprobs(self.logprobs) if with_logprobs else None,
            "finish_reason": self.choice.finish.reason,
        }


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
