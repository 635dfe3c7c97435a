"""Tool calls as Hermes and Qwen3 write them: one JSON object with `name` and `arguments`."""

from collections.abc import Mapping
from json import loads
from typing import Literal

from server.call_syntax import CLOSE_TAG, CallState
from server.json_text import JsonText
from server.tools import Tool

_Expected = Literal["object", "key or end", "key", "colon", "value", "comma or end", "nothing"]


class JsonCall:
    """See CallSyntax. The arguments are the model's own text, byte for byte.

    `name` and `arguments` may come in either order, and other keys beside them, which mean nothing here. A call
    without arguments has `{}`. Where the JSON breaks inside the arguments, they are closed behind the last value that
    stands, and what came after that is the rest.

    A call begins at the opening brace of its arguments; where the name comes after them, at the end of the name; and
    where there are none, at its own end.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.name = ""
        self.state: CallState = "open"
        self.rest = ""
        self._tools = tools
        self._buffer = ""
        self._expected: _Expected = "object"
        self._scan: JsonText | None = None  # the key or value that is being read
        self._key: str | None = None
        self._seen: set[str] = set()
        self._parts: list[str] = []  # of the key, or of the name
        self._called = ""
        self._arguments: list[str] = []  # what came of them before the name

    def feed(self, text: str) -> str:
        self._buffer += text
        said = []
        while self.state == "open" and self._buffer:
            said.append(self._scanned(self._scan) if self._scan is not None else self._structure())
        return "".join(said)

    def close(self) -> str:
        if self._scan is not None and self._scan.in_string and self._key == "arguments":
            return self.feed(CLOSE_TAG)
        return self.stop()

    def stop(self) -> str:
        if self._expected == "nothing" and self._called:
            said = "" if self.name else "".join(self._arguments) or "{}"
            self.name, self.state = self._called, "whole"
            return said
        said = ""
        if self._scan is not None:
            said = self._given(self._scan.end())
            self._buffer = self._scan.rest
        return said + self._break()

    def _structure(self) -> str:
        """Read what stands between keys and values."""
        self._buffer = self._buffer.lstrip(" \t\r\n")
        if not self._buffer:
            return ""
        match self._expected, self._buffer[0]:
            case "object", "{":
                self._go_on("key or end")
            case (("key" | "key or end"), '"'):
                self._key, self._scan = None, JsonText()
            case "colon", ":":
                self._go_on("value")
            case "value", first if self._may_begin_with(first):
                self._scan = JsonText()
            case "comma or end", ",":
                self._go_on("key")
            case (("comma or end" | "key or end"), "}"):
                self._go_on("nothing")
            case _:
                return self._break()
        return ""

    def _go_on(self, expected: _Expected) -> None:
        self._buffer = self._buffer[1:]
        self._expected = expected

    def _may_begin_with(self, first: str) -> bool:
        needed = {"arguments": "{", "name": '"'}.get(self._key or "")
        return needed is None or (first == needed and self._key not in self._seen)

    def _scanned(self, scan: JsonText) -> str:
        """Read on in a key or value."""
        text = scan.feed(self._buffer)
        self._buffer = scan.rest if scan.state != "open" else ""
        said = self._given(text)
        if scan.state == "broken":
            return said + self._break()
        if scan.state == "done":
            self._scan = None
            said += self._key_end() if self._key is None else self._value_end(self._key)
        return said

    def _given(self, text: str) -> str:
        if self._key == "arguments":
            if self._called:
                self.name = self._called
                return text
            self._arguments.append(text)
        elif self._key in (None, "name"):
            self._parts.append(text)
        return ""

    def _key_end(self) -> str:
        self._key = self._text()
        self._expected = "colon"
        return ""

    def _value_end(self, key: str) -> str:
        self._seen.add(key)
        self._expected = "comma or end"
        if key != "name":
            return ""
        name = self._text()
        if name not in self._tools:
            return self._break()
        self._called = name
        if not self._arguments:
            return ""
        self.name = name
        return "".join(self._arguments)

    def _text(self) -> str:
        text: str = loads("".join(self._parts))
        self._parts.clear()
        return text

    def _break(self) -> str:
        """Nothing of what is in the buffer can follow."""
        closing = self._scan.closing if self._scan is not None and self._key == "arguments" else ""
        self.state, self.rest, self._scan = "broken", self._buffer, None
        return closing if self.name else ""
