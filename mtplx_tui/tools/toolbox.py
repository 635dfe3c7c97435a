"""The tools of a chat: what the model is told of them, and running one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from mtplx_tui.tools import files
from mtplx_tui.tools.arithmetic import calculate
from mtplx_tui.tools.errors import ToolError
from server.tools import Tool

CALCULATOR, TIME, READ_FILE = "calculator", "current_time", "read_file"


def _shown(name: str, description: str, needed: tuple[str, ...], **properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": dict(properties), "required": list(needed), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


_CALCULATOR = _shown(
    CALCULATOR,
    "Work out an arithmetic expression exactly: + - * / // % ^ brackets, sqrt, log, sin, round, min, max, pi and more.",
    ("expression",),
    expression={"type": "string", "description": "for example (47 + 85) * 3"},
)
_TIME = _shown(
    TIME,
    "The present date, weekday and time.",
    (),
    timezone={"type": "string", "description": "an IANA name such as Europe/Paris; the user's own where left out"},
)
_READ_FILE = _shown(
    READ_FILE,
    "Read a text file of the user's folder, or list a folder in it.",
    ("path",),
    path={"type": "string", "description": "relative to the user's folder; . lists it"},
    first_line={"type": "integer", "minimum": 1, "description": "where to begin in a long file"},
)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that are on.

    Attributes:
        folder: whose files may be read, as `files.chosen_folder` gives it; None means no files.
        wall: the time of day.
    """

    folder: Path | None
    wall: Callable[[], datetime]

    @property
    def shown(self) -> tuple[dict[str, Any], ...]:
        """What the chat template gets."""
        return (_CALCULATOR, _TIME, *((_READ_FILE,) if self.folder else ()))

    @property
    def named(self) -> dict[str, Tool]:
        """The tools by name, as calls are read by."""
        functions = [shown["function"] for shown in self.shown]
        return {function["name"]: Tool(function["name"], {}, function["parameters"]) for function in functions}

    def run(self, name: str, arguments: str) -> str:
        """The result of a call. `arguments` is the JSON text of an object. Raises ToolError."""
        given = _read(arguments)
        match name:
            case "calculator":
                return calculate(_text(given, "expression"))
            case "current_time":
                return self._time(_text(given, "timezone", ""))
            case "read_file" if self.folder is not None:
                return files.read(self.folder, _text(given, "path"), _number(given, "first_line", 1))
        raise ToolError(f"There is no tool {name!r}; there are {', '.join(self.named)}.")

    def _time(self, zone: str) -> str:
        try:
            now = self.wall().astimezone(ZoneInfo(zone) if zone else None)
        except (LookupError, OSError, ValueError):
            raise ToolError(f"{zone!r} is no time zone that is known here.") from None
        return f"{now:%A, %Y-%m-%d %H:%M:%S %z} ({zone or now.tzname()})"


def _read(arguments: str) -> dict[str, Any]:
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError(f"The arguments are no JSON: {error}.") from error
    if not isinstance(given, dict):
        raise ToolError("The arguments must be a JSON object.")
    return given


def _text(given: Mapping[str, Any], name: str, absent: str | None = None) -> str:
    value = given.get(name, absent)
    if not isinstance(value, str):
        raise ToolError(f"{name} is missing; it must be a text." if value is None else f"{name} must be a text.")
    return value


def _number(given: Mapping[str, Any], name: str, absent: int) -> int:
    value = given.get(name, absent)
    if type(value) is not int:
        raise ToolError(f"{name} must be a whole number.")
    return value
