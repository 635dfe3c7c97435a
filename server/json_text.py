"""One JSON value that arrives in pieces: checked as it comes, and passed on as far as it could be closed."""

import re
from typing import Literal

_RUN = re.compile(r'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))+')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{0,3})?")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_BLANK = re.compile(r"[ \t\r\n]*")

_Expected = Literal["value", "item or end", "key", "key or end", "colon", "comma or end", "string", "key's string"]


class JsonText:
    """Takes the text of a value, and gives it on byte for byte up to the last place where it can be closed.

    So what was given on is valid JSON together with `closing`, wherever the text breaks: keys, numbers, words and
    escapes are given on whole or not at all.

    Attributes:
        state: done once the value is whole, broken where the next character can not follow.
        rest: what came and was not given on, once it is done or broken.
    """

    def __init__(self) -> None:
        self.state: Literal["open", "done", "broken"] = "open"
        self._buffer = ""
        self._at = 0  # how far the buffer is read
        self._safe = 0  # how far of that it can be closed
        self._expected: _Expected = "value"
        self._closers: list[str] = []
        self._ending = False

    @property
    def in_string(self) -> bool:
        return self._expected in ("string", "key's string")

    @property
    def closing(self) -> str:
        """What makes valid JSON of all that was given on."""
        return ('"' if self._expected == "string" else "") + "".join(reversed(self._closers))

    @property
    def rest(self) -> str:
        return self._buffer

    def feed(self, text: str) -> str:
        """Add text; the answer is what can be given on now."""
        self._buffer += text
        while self.state == "open" and self._step():
            pass
        given, self._buffer = self._buffer[: self._safe], self._buffer[self._safe :]
        self._at, self._safe = self._at - self._safe, 0
        return given

    def end(self) -> str:
        """No more text comes: a number at the very end is whole. What was not given on after this is the rest."""
        self._ending = True
        return self.feed("")

    def _step(self) -> bool:
        """Read the next token; False where that needs more text."""
        if self.in_string:
            return self._string()
        blank = _BLANK.match(self._buffer, self._at)
        self._at = blank.end() if blank else self._at
        if self._at == len(self._buffer):
            return False
        match self._expected, self._buffer[self._at]:
            case (("value" | "item or end"), '"'):
                self._expected = "string"
                self._pass(1)
            case (("value" | "item or end"), "{"):
                self._closers.append("}")
                self._expected = "key or end"
                self._pass(1)
            case (("value" | "item or end"), "["):
                self._closers.append("]")
                self._expected = "item or end"
                self._pass(1)
            case ("item or end", "]") | ("key or end", "}"):
                self._close()
            case "comma or end", ("]" | "}") as closer if closer == self._closers[-1]:
                self._close()
            case "comma or end", ",":
                self._expected = "key" if self._closers[-1] == "}" else "value"
                self._at += 1
            case (("key" | "key or end"), '"'):
                self._expected = "key's string"
                self._at += 1
            case "colon", ":":
                self._expected = "value"
                self._at += 1
            case (("value" | "item or end"), _):
                return self._scalar()
            case _:
                self.state = "broken"
        return True

    def _string(self) -> bool:
        run = _RUN.match(self._buffer, self._at)
        inside = self._expected == "string"
        if run:
            self._pass(run.end() - self._at, safe=inside)
        if self._at == len(self._buffer):
            return False
        if self._buffer[self._at] == '"':
            self._pass(1, safe=inside)
            if inside:
                self._after_value()
            else:
                self._expected = "colon"
            return True
        if _HALF_ESCAPE.fullmatch(self._buffer, self._at):
            return False
        self.state = "broken"
        return True

    def _scalar(self) -> bool:
        word = _WORD.match(self._buffer, self._at)
        if word and word.end() == len(self._buffer) and not self._ending:
            return False
        if word and _SCALAR.fullmatch(word[0]):
            self._pass(len(word[0]))
            self._after_value()
        else:
            self.state = "broken"
        return True

    def _close(self) -> None:
        self._closers.pop()
        self._pass(1)
        self._after_value()

    def _after_value(self) -> None:
        self._expected = "comma or end"
        if not self._closers:
            self.state = "done"

    def _pass(self, count: int, safe: bool = True) -> None:
        self._at += count
        if safe:
            self._safe = self._at
