"""The settings that a chat can have of its own: their names, ranges and how they are written."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """A number; `whole` ones are integers. None as an end of the range means that there is none."""

    name: str
    low: float | None
    high: float | None
    whole: bool
    help: str


OPTIONS = (
    Option("temperature", 0.0, 2.0, False, "0 takes the likeliest token, 1 is the model's own spread"),
    Option("top_p", 0.01, 1.0, False, "keep the likeliest tokens up to this share; 1 keeps all"),
    Option("top_k", 0, 1_000_000, True, "keep so many likeliest tokens; 0 keeps all"),
    Option("min_p", 0.0, 1.0, False, "drop tokens below this share of the likeliest one's"),
    Option("repetition_penalty", 0.01, 100.0, False, "above 1 makes words of the chat less likely"),
    Option("presence_penalty", -2.0, 2.0, False, "above 0 makes words of the answer less likely"),
    Option("frequency_penalty", -2.0, 2.0, False, "the same for each time that they came"),
    Option("max_tokens", 1, 10_000_000, True, "most tokens of an answer"),
    Option("seed", None, None, True, "the same seed gives the same answer"),
)
BY_NAME = {option.name: option for option in OPTIONS}


class OptionError(ValueError):
    """A setting can not be that; the text can be shown to a user."""


def read(name: str, text: str) -> float | int | None:
    """The value of a setting as it was typed; None for nothing, which is the model's own.

    Raises OptionError with what can be given instead.
    """
    option = BY_NAME.get(name)
    if option is None:
        raise OptionError(f"There is no setting {name!r}; there are {', '.join(BY_NAME)}.")
    if not text:
        return None
    try:
        value: float | int = int(text) if option.whole else float(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; give a {'whole ' if option.whole else ''}number.") from None
    low = -math.inf if option.low is None else option.low
    high = math.inf if option.high is None else option.high
    if not low <= value <= high:
        raise OptionError(f"{name} is {text}; it must be from {low:g} to {high:g}.")
    return value


def changed(options: Mapping[str, Any], name: str, text: str) -> dict[str, Any]:
    """The settings with one of them set, or taken back to the model's own. Raises OptionError."""
    value = read(name, text)
    kept = {key: old for key, old in options.items() if key != name}
    return kept if value is None else kept | {name: value}
