"""Tool calls as Qwen3.5 writes them: `<function=NAME>`, then for each argument `<parameter=KEY>`, text and a close."""

import json
import re
from collections.abc import Callable, Mapping

from server.call_syntax import CLOSE_TAG, CallState
from server.call_values import STRING, Types, as_json, types_of
from server.tools import Tool


def _begins(literal: str, then: str = "") -> str:
    """A pattern for everything, but nothing at all, that goes on to `literal` and then `then`."""
    pattern = then
    for letter in reversed(literal):
        pattern = re.escape(letter) + (f"(?:{pattern})?" if pattern else "")
    return pattern


_CALL_CLOSE = _begins(CLOSE_TAG, r"\s*")
_CLOSES = _begins("</function>", rf"\s*(?:{_CALL_CLOSE})?") + "|" + _CALL_CLOSE
_PARAMETER = _begins("<parameter=", r"[^<>\n]*")

_HEAD = re.compile(r"\s*<function=([^\s<>]+)>")
_MAYBE_HEAD = re.compile(r"\s*(?:" + _begins("<function=", r"[^\s<>]*") + ")?")
_FIRST = re.compile(r"\s*(?:<parameter=([^<>\n]+)>|</function>)")
_MAYBE_FIRST = re.compile(r"\s*(?:" + _PARAMETER + "|" + _begins("</function>") + ")?")
_SPACE = re.compile(r"\s*")
_NEXT = re.compile(r"</parameter>\s*<parameter=([^<>\n]+)>")
_END = re.compile(r"\n?</parameter>\s*</function>\s*")
_MAYBE_END = re.compile(_begins("</parameter>", rf"\s*(?:{_PARAMETER}|{_CLOSES})?") + "|" + _CLOSES)
_ANY_END = re.compile(rf"\n?(?=<)(?:</parameter>\s*)?(?:</function>\s*)?(?:{CLOSE_TAG}\s*)?")


class XmlCall:
    """See CallSyntax. The arguments are written here, in the order and with the very text that the model gave them.

    A value ends where `</parameter>` is followed by another parameter, one that was not given yet, or by
    `</function>` and the call's closing tag. Any of these tags in other company is part of the value. One line break
    behind the opening tag and one before the closing tag belong to the tags.

    Values that can only be strings are given on as they come, others at their end: as they stand where they are JSON
    of a type that the tool's schema allows, else as a string.

    A call begins at its first parameter, or where it has none at its end; until then it is broken by anything
    unexpected. After that only the end of the answer breaks it: the value that is open then ends there, or at whatever
    closing tags stand last.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.name = ""
        self.state: CallState = "open"
        self.rest = ""
        self._tools = tools
        self._buffer = ""
        self._step: Callable[[], str | None] = self._head
        self._called = ""
        self._given: set[str] = set()
        self._types: Types = STRING
        self._value: list[str] = []  # what came of a value that is given on at its end
        self._fresh = False  # nothing of the value came yet

    def feed(self, text: str) -> str:
        self._buffer += text
        said = []
        while self.state == "open":
            piece = self._step()
            if piece is None:
                break
            said.append(piece)
        return "".join(said)

    def close(self) -> str:
        if self._step == self._behind:
            return self._finish("{}")
        if not self.name:
            self.state = "broken"
            return ""
        if _END.fullmatch(self._buffer):
            return self._finish(self._value_end() + "}")
        return self.feed(CLOSE_TAG)

    def stop(self) -> str:
        if self._step == self._behind or not self.name:
            return self.close()
        last = "" if _ANY_END.fullmatch(self._buffer) else self._more(self._buffer)
        return self._finish(last + self._value_end() + "}")

    def _finish(self, said: str) -> str:
        self.name, self.state = self._called, "whole"
        return said

    def _head(self) -> str | None:
        head = _HEAD.match(self._buffer)
        if head and head[1] in self._tools:
            self._called = head[1]
            self._buffer = self._buffer[head.end() :]
            self._step = self._first
            return ""
        self._break_unless(_MAYBE_HEAD)
        return None

    def _first(self) -> str | None:
        first = _FIRST.match(self._buffer)
        if first is None:
            self._break_unless(_MAYBE_FIRST)
            return None
        self._buffer = self._buffer[first.end() :]
        if first[1] is None:
            self._step = self._behind
            return ""
        self.name = self._called
        self._step = self._inside
        return self._value_begin("{", first[1])

    def _behind(self) -> str | None:
        """Behind the end of a function without parameters."""
        self._break_unless(_SPACE)
        return None

    def _break_unless(self, maybe: re.Pattern[str]) -> None:
        """Go on waiting while the buffer may become what `maybe` describes the beginnings of."""
        if not maybe.fullmatch(self._buffer):
            self.state = "broken"

    def _inside(self) -> str | None:
        """Within a value."""
        if not self._buffer:
            return None
        if self._fresh:
            self._fresh = False
            self._buffer = self._buffer.removeprefix("\n")
        end, following = self._border()
        said = self._more(self._buffer[:end])
        if following is None:
            self._buffer = self._buffer[end:]
            return said or None
        self._buffer = self._buffer[following.end() :]
        return said + self._value_end() + self._value_begin(",", following[1])

    def _border(self) -> tuple[int, re.Match[str] | None]:
        """How much of the buffer is certain to be the value's, and the next parameter where that is what ends it."""
        at = self._buffer.find("<")
        while at >= 0:
            following = _NEXT.match(self._buffer, at)
            if following and following[1] in self._given:
                following = None
            if following or _MAYBE_END.fullmatch(self._buffer, at):
                return at - self._buffer.endswith("\n", 0, at), following
            at = self._buffer.find("<", at + 1)
        return len(self._buffer) - self._buffer.endswith("\n"), None

    def _value_begin(self, before: str, key: str) -> str:
        self._given.add(key)
        self._types = types_of(self._tools[self._called].parameters, key)
        self._fresh = True
        return before + json.dumps(key, ensure_ascii=False) + ":" + ('"' if self._types == STRING else "")

    def _more(self, text: str) -> str:
        if self._types == STRING:
            return json.dumps(text, ensure_ascii=False)[1:-1]
        self._value.append(text)
        return ""

    def _value_end(self) -> str:
        if self._types == STRING:
            return '"'
        text = "".join(self._value)
        self._value.clear()
        return as_json(text, self._types)
