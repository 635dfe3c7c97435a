"""Arithmetic from a text: a small parser of its own, so that nothing but numbers is ever worked with."""

import math
import operator
import re
from collections.abc import Callable

from mtplx_tui.tools.errors import ToolError

MOST_CHARACTERS = 500
MOST_DEPTH = 50
MOST_BITS = 4096
"""Whole numbers are exact up to this size; a power that would be larger is refused before it is made."""

Number = int | float


def _round(value: Number, digits: int = 0) -> Number:
    """Python's own would work for minutes on a billion digits to the left of the point."""
    return round(value, max(min(digits, 999), -999)) if digits else round(value)


FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs, "ceil": math.ceil, "cos": math.cos, "exp": math.exp, "floor": math.floor, "gcd": math.gcd,
    "ln": math.log, "log": math.log, "log10": math.log10, "log2": math.log2, "max": max, "min": min, "round": _round,
    "sin": math.sin, "sqrt": math.sqrt, "tan": math.tan,
}  # fmt: skip
CONSTANTS = {"pi": math.pi, "e": math.e}

_SUMS: dict[str, Callable[[Number, Number], Number]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[Number, Number], Number]] = {
    "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_AS_TYPED = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_TOKEN = re.compile(
    r"\s*(?:((?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))", re.ASCII
)


def calculate(expression: str) -> str:
    """The value of an expression, as text. `^` and `**` are powers. Raises ToolError."""
    if len(expression) > MOST_CHARACTERS:
        raise ToolError(f"The expression has {len(expression)} characters; at most {MOST_CHARACTERS} are taken.")
    try:
        value = _Parser(_tokens(expression.translate(_AS_TYPED))).whole()
        return _written(value)
    except ZeroDivisionError:
        raise ToolError("The expression divides by zero.") from None
    except OverflowError:
        raise ToolError("A number in the expression is too large.") from None
    except (TypeError, ValueError) as error:  # a function was given what it is not defined for
        raise ToolError(f"The expression has no value: {error}.") from None


def _written(value: Number) -> str:
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise OverflowError
    return f"{value:.15g}"


def _tokens(text: str) -> list[str]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ToolError(f"{text[place:].lstrip()[:20]!r} can not stand in an expression; only arithmetic can.")
        found.append(match[0].strip())
        place = match.end()
    return found


class _Parser:
    """Sums of products of signed powers. Each method reads one level and gives its value."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._place = 0
        self._depth = 0

    @property
    def _next(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next
        self._place += 1
        return token

    def whole(self) -> Number:
        value = self._sum()
        if self._next:
            raise ToolError(f"{self._next!r} is not expected where it stands.")
        return value

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise ToolError(f"The expression is nested deeper than {MOST_DEPTH}.")
        value = self._product()
        while self._next in _SUMS:
            value = _checked(_SUMS[self._take()](value, self._product()))
        self._depth -= 1
        return value

    def _product(self) -> Number:
        value = self._signed()
        while self._next in _PRODUCTS:
            value = _checked(_PRODUCTS[self._take()](value, self._signed()))
        return value

    def _signed(self) -> Number:
        negative = False
        while self._next in ("+", "-"):
            negative ^= self._take() == "-"
        value = self._power()
        return -value if negative else value

    def _power(self) -> Number:
        base = self._atom()
        if self._next not in ("**", "^"):
            return base
        self._take()
        self._depth += 1  # a tower of powers nests to the right
        if self._depth > MOST_DEPTH:
            raise ToolError(f"The expression is nested deeper than {MOST_DEPTH}.")
        exponent = self._signed()
        self._depth -= 1
        if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MOST_BITS:
            raise OverflowError
        return _checked(base**exponent)

    def _atom(self) -> Number:
        token = self._take()
        if token == "(":
            value = self._sum()
            self._close()
            return value
        if token[:1].isdigit() or token[:1] == ".":
            return _checked(float(token) if re.search("[.eE]", token) else int(token))
        if token in CONSTANTS:
            return CONSTANTS[token]
        if token in FUNCTIONS and self._next == "(":
            self._take()
            arguments = [self._sum()]
            while self._next == ",":
                self._take()
                arguments.append(self._sum())
            self._close()
            return _checked(FUNCTIONS[token](*arguments))
        known = ", ".join([*FUNCTIONS, *CONSTANTS])
        raise ToolError(f"{token!r} is not expected where it stands; there are numbers and {known}." if token
                        else "The expression ends too early.")  # fmt: skip

    def _close(self) -> None:
        if self._take() != ")":
            raise ToolError("A bracket is not closed.")


def _checked(value: Number | complex) -> Number:
    if isinstance(value, complex):
        raise ToolError("The expression has no real value.")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise OverflowError
    return value
