"""The items of a response while they are being made: each tells as events what happens to it."""

import secrets
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from server.responses_custom import CustomInput
from server.responses_tools import ClientName

Event = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]


class Item(Protocol):
    """One item of the output, begun once and done once."""

    def begin(self) -> Iterator[Event]:
        """It is there."""

    def add(self, text: str) -> Iterator[Event]:
        """It grows."""

    def done(self, status: Status) -> Iterator[Event]:
        """Nothing more comes."""

    def shown(self, status: Status) -> dict[str, Any]:
        """The item as it is now."""


class Message:
    def __init__(self, index: int) -> None:
        self._id = _new_id("msg")
        self._place = {"item_id": self._id, "output_index": index, "content_index": 0}
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield _added(self._index, {**self.shown("in_progress"), "content": []})
        yield {"type": "response.content_part.added", **self._place, "part": self._part()}

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield {"type": "response.output_text.delta", **self._place, "delta": text, "logprobs": []}

    def done(self, status: Status) -> Iterator[Event]:
        part = self._part()
        yield {"type": "response.output_text.done", **self._place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **self._place, "part": part}
        yield _done(self._index, self.shown(status))

    def shown(self, status: Status) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "status": status, "role": "assistant", "content": [self._part()]}

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self._texts), "annotations": [], "logprobs": []}


class Thought:
    """Reasoning. It is told as its own summary: whole, in the form that clients show and send back."""

    def __init__(self, index: int) -> None:
        self._id = _new_id("rs")
        self._place = {"item_id": self._id, "output_index": index, "summary_index": 0}
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield _added(self._index, {**self.shown("in_progress"), "summary": []})
        yield {"type": "response.reasoning_summary_part.added", **self._place, "part": self._part()}

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield {"type": "response.reasoning_summary_text.delta", **self._place, "delta": text}

    def done(self, status: Status) -> Iterator[Event]:
        part = self._part()
        yield {"type": "response.reasoning_summary_text.done", **self._place, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **self._place, "part": part}
        yield _done(self._index, self.shown(status))

    def shown(self, status: Status) -> dict[str, Any]:
        item = {"id": self._id, "type": "reasoning", "status": status, "summary": [self._part()]}
        return {**item, "encrypted_content": None}

    def _part(self) -> dict[str, Any]:
        return {"type": "summary_text", "text": "".join(self._texts)}


class FunctionCall:
    def __init__(self, index: int, name: ClientName) -> None:
        self._id = _new_id("fc")
        self._place = {"item_id": self._id, "output_index": index}
        self._index = index
        self._name = name
        self._call_id = _new_id("call")
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield _added(self._index, self.shown("in_progress"))

    def add(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        yield {"type": "response.function_call_arguments.delta", **self._place, "delta": text}

    def done(self, status: Status) -> Iterator[Event]:
        item = self.shown(status)
        told = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **self._place, **told}
        yield _done(self._index, item)

    def shown(self, status: Status) -> dict[str, Any]:
        head = {"id": self._id, "type": "function_call", "status": status, "call_id": self._call_id}
        return {**head, **_named(self._name), "arguments": "".join(self._texts)}


class CustomCall:
    """A call with text. What comes in is the JSON that the model wrote, what goes out the text in it."""

    def __init__(self, index: int, name: ClientName) -> None:
        self._id = _new_id("ctc")
        self._place = {"item_id": self._id, "output_index": index}
        self._index = index
        self._name = name
        self._call_id = _new_id("call")
        self._input = CustomInput()
        self._texts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield _added(self._index, self.shown("in_progress"))

    def add(self, text: str) -> Iterator[Event]:
        yield from self._grow(self._input.feed(text))

    def done(self, status: Status) -> Iterator[Event]:
        yield from self._grow(self._input.end())
        item = self.shown(status)
        yield {"type": "response.custom_tool_call_input.done", **self._place, "input": item["input"]}
        yield _done(self._index, item)

    def shown(self, status: Status) -> dict[str, Any]:
        head = {"id": self._id, "type": "custom_tool_call", "status": status, "call_id": self._call_id}
        return {**head, **_named(self._name), "input": "".join(self._texts)}

    def _grow(self, text: str) -> Iterator[Event]:
        if text:
            self._texts.append(text)
            yield {"type": "response.custom_tool_call_input.delta", **self._place, "delta": text}


def _added(index: int, item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _done(index: int, item: dict[str, Any]) -> Event:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _named(name: ClientName) -> dict[str, str]:
    return {"name": name.name} if name.namespace is None else {"name": name.name, "namespace": name.namespace}


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
