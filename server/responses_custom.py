"""The text in a custom tool's call, taken out of the JSON that the model writes it in while it is being written."""

import json
import re

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_RUN = re.compile(
    r"""(?: [^"\\]
    | \\ ["\\/bfnrt]
    | \\u (?! [dD][89abAB]) [0-9a-fA-F]{4}
    | \\u [dD][89abAB] [0-9a-fA-F]{2} (?= [^\\] | \\ (?: [^u] | u[0-9a-fA-F]{4}))  # its other half may follow
    )*""",
    re.VERBOSE,
)


class CustomInput:
    """Takes the JSON text of a call's arguments in any pieces and gives the string under `input` as it grows.

    Arguments of another form are a model's slip. They are given as they are, once they are whole: none are lost.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._inside: bool | None = None  # the string; None before it, False behind it

    def feed(self, text: str) -> str:
        """Add text of the arguments; the answer is what the input grows by."""
        if self._inside is False:
            return ""
        self._buffer += text
        if self._inside is None:
            opening = _OPENING.match(self._buffer)
            if opening is None:
                return ""
            self._inside = True
            self._buffer = self._buffer[opening.end() :]
        run = _RUN.match(self._buffer)
        assert run is not None  # it matches nothing at all, too
        self._buffer = self._buffer[run.end() :]
        self._inside = not self._buffer.startswith('"')
        return _unescaped(run.group())

    def end(self) -> str:
        """No more text comes; the rest of the input."""
        return self._buffer if self._inside is None else ""


def _unescaped(text: str) -> str:
    """What stands between the quotes of a JSON string, read; half a character becomes U+FFFD."""
    read: str = json.loads(f'"{text}"', strict=False)
    return read.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
