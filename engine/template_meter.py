"""What a chat template may cost: processor time, and the size of all that it makes.

A template is a program from the checkpoint, and Python can not stop native code from outside. So each value is kept
small enough for any one operation on it to be over soon, and between operations the time is looked at. Operations that
make much of little, such as repeating a text, are charged before they run.
"""

import re
import time
from collections.abc import Iterable, Mapping, MappingView, Sequence, Set
from typing import Any, cast

from jinja2.utils import Namespace

SECONDS = 10.0
"""Processor time of one rendering; a conversation of 1,000 turns takes 0.1 s."""
FREE_SIZE = 16 << 20
SIZE_A_CHARACTER = 256  # some templates copy the conversation once a turn
LARGEST_WIDTH = 100_000
LARGEST_BITS = 4096
WORK_A_LOOK = 1000  # steps, or values looked at, between two looks at the time: a millisecond


class TemplateLimitError(Exception):
    """The template was stopped."""


class Meter:
    """The budget of one rendering, larger for a larger input. The unit of size is a character, or a value of a list."""

    def __init__(self, given: Any) -> None:
        self._sizes: dict[int, tuple[Any, int]] = {}  # a container is kept, so that its id stays its own
        self._until = time.thread_time() + SECONDS
        self._work = 0
        self._left = FREE_SIZE + SIZE_A_CHARACTER * self.size(given)

    def step(self, work: int = 1) -> None:
        """A loop goes round, something is called, or so many values are looked at."""
        self._work += work
        if self._work >= WORK_A_LOOK:
            self._work = 0
            if time.thread_time() > self._until:
                raise TemplateLimitError(f"it ran for more than {SECONDS:g} s")

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TemplateLimitError("it makes more text than it could need")

    def made(self, value: Any) -> Any:
        """Charge a value that an operation gave; the value."""
        self.spend(self.size(value))
        return value

    def size(self, value: Any) -> int:
        """Size of a value with all that it holds; what it holds twice counts twice, as it would when written out."""
        if isinstance(value, str | bytes):
            return len(value) + 1
        if isinstance(value, Mapping | list | tuple | Set | MappingView):
            known = self._sizes.get(id(value))
            if known is not None:
                return known[1]
            self.step(len(value))
            parts: Iterable[Any] = value.items() if isinstance(value, Mapping) else cast("Iterable[Any]", value)
            size = 1 + sum(self.size(part) for part in parts)
            if not isinstance(value, MappingView):
                self._sizes[id(value)] = (value, size)
            return size
        if isinstance(value, range):
            return len(value)
        if isinstance(value, Namespace):
            raise TemplateLimitError("it takes a namespace for a value")
        return 1

    def operation(self, operator: str, left: Any, right: Any) -> None:
        """Charge a binary operation before it runs."""
        if operator == "%" and isinstance(left, str | bytes):
            self.spend(_widths(left) + len(left) + left.count(_like("%", left)) * self.size(right))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * abs(right))
        elif operator == "*":
            times, value = (left, right) if isinstance(left, int) else (right, left)
            if isinstance(times, int):
                self.spend(self.size(value) * max(times, 0))
        elif operator == "+":
            self.spend(self.size(left) + self.size(right))

    def method(self, owner: str | bytes | int, name: str, args: Sequence[Any]) -> None:
        """Charge a method of a text or a number before it runs."""
        if name in ("format", "format_map"):
            assert isinstance(owner, str)
            self.format(owner, args)
        elif name == "join":
            self.join(self.size(owner), args[0] if args else ())
        elif name == "replace":
            self.replace(owner, *args[:2])
        elif name == "expandtabs":
            self.spend(self.size(owner) * self.width(args[0] if args else 8))
        elif name in ("translate", "maketrans"):
            raise TemplateLimitError(f"it calls {name}")
        else:
            for arg in args:
                self.width(arg)

    def format(self, text: str, values: Any) -> None:
        if re.search(r"\{[^{}]*\{", text):
            raise TemplateLimitError("it formats with a width that is computed")
        self.spend(_widths(text) + len(text) + text.count("{") * self.size(values))

    def join(self, separator: int, items: Any) -> None:
        self.spend(sum(self.size(item) + separator for item in items))

    def replace(self, text: Any, old: Any = "", new: Any = "") -> None:
        same = isinstance(text, str) and isinstance(old, str)
        self.spend(self.size(text) + (text.count(old) if same else self.size(text)) * self.size(new))

    def width(self, value: Any) -> int:
        """A width, given as a number or as the blanks themselves, checked; 1 for what is none."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, int):
            return 1
        if abs(value) > LARGEST_WIDTH:
            raise TemplateLimitError(f"it asks for a width of {value:.3g}")
        return abs(value)


def _check_bits(bits: int) -> None:
    if bits > LARGEST_BITS:
        raise TemplateLimitError("it computes with numbers of more than a thousand digits")


def _widths(text: str | bytes) -> int:
    """Most characters that the widths in a format can ask for."""
    shown = text if isinstance(text, str) else text.decode("latin-1")
    if "%" in shown and re.search(r"%[^a-zA-Z%]*\*", shown):
        raise TemplateLimitError("it formats with a width that is computed")
    return sum(int(digits[:9]) for digits in re.findall(r"\d+", shown))


def _like(text: str, kind: str | bytes) -> Any:
    return text if isinstance(kind, str) else text.encode()
