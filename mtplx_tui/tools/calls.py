"""One tool call, from its text to its result, and the form in which it is saved."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

CallState = Literal["coming", "waiting", "allowed", "denied", "failed", "done", "not run"]
"""coming: its arguments are still being written. waiting: for the user's word. allowed: it runs. The others are ends;
`not run` is that of calls which nobody decided."""

NOT_RUN = "This call was not run."
DENIED = "The user did not allow this call, so it was not run."
DENIED_WRITING_ON = "The user did not allow this call, so it was not run; the user wrote the next message instead."


@dataclass(slots=True, eq=False)
class ToolCall:
    """`arguments` is the JSON text of an object, as the model made it. `result` is what the model is told."""

    id: str
    name: str
    arguments: str = ""
    state: CallState = "coming"
    result: str = ""

    @property
    def decided(self) -> bool:
        return self.state in ("denied", "failed", "done")

    def end(self, state: CallState, result: str) -> None:
        self.state, self.result = state, result

    def message_part(self) -> dict[str, Any]:
        """The call in the turn that made it."""
        return {"type": "function", "id": self.id, "function": {"name": self.name, "arguments": self.arguments or "{}"}}

    def result_message(self) -> dict[str, Any]:
        """What the model is told of it."""
        content = self.result if self.decided else NOT_RUN
        return {"role": "tool", "content": content, "tool_call_id": self.id, "name": self.name}

    def saved(self) -> dict[str, str]:
        """The call as it is kept beside the answer that made it."""
        return {"id": self.id, "name": self.name, "arguments": self.arguments}

    def saved_result(self) -> dict[str, str]:
        """What is kept beside the result's text."""
        return {"call": self.id, "tool": self.name, "state": self.state}


def call_id(request_id: str, index: int) -> str:
    """The same id wherever an answer is read. Nine letters and digits, since some templates take no other length."""
    return hashlib.sha256(f"{request_id} {index}".encode()).hexdigest()[:9]


def saved_calls(stats: Mapping[str, Any] | None) -> list[ToolCall]:
    """The calls that an answer's row has; what damage made of them is left out."""
    calls = (stats or {}).get("calls")
    return [
        ToolCall(call["id"], call["name"], call["arguments"], "not run")
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict) and all(isinstance(call.get(name), str) for name in ("id", "name", "arguments"))
    ]


def take_result(calls: list[ToolCall], stats: Mapping[str, Any] | None, content: str) -> ToolCall:
    """The call that a saved result belongs to, now with that result; one of its own where there is none."""
    kept = stats or {}
    states: dict[Any, CallState] = {state: state for state in get_args(CallState)}
    found = next((call for call in calls if call.id == kept.get("call")), None)
    call = found or ToolCall(str(kept.get("call", "")), str(kept.get("tool", "tool")))
    call.end(states.get(kept.get("state"), "done"), content)
    return call
