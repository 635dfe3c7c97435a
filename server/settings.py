"""What can be changed while the server runs: one frozen set of values, replaced as a whole.

Everything here holds from the next request on. What needs a new start (the model, its memory, the port) is no setting.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

from engine.config import Mode
from engine.request import Request, Sampling
from server.errors import invalid
from server.fields import GREEDY_BELOW
from server.jsonbody import Fields, check

LogLevel = Literal["error", "warning", "info"]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
"""Settings that stand in for the model's own where a request does not set them."""


def _names(value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("names", "must be a list of names")
    if any(value.count(name) > 1 for name in value):
        raise PydanticCustomError("names", "has a name twice")
    return tuple(value)


def _depth(value: object) -> object:
    if isinstance(value, bool):  # which Python takes for 0 or 1
        raise PydanticCustomError("depth", "must be auto or a number from 0 to 8")
    return value


class Settings(Fields):
    """The values. None means the model's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float | None = Field(default=None, ge=0, le=2, description="How freely tokens are drawn; 0 is greedy.")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="Keeps the likeliest tokens up to this share; 1 is all."
    )
    top_k: int | None = Field(default=None, ge=0, le=2**31 - 1, description="Keeps so many likeliest tokens; 0 is all.")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="Drops tokens below this share of the likeliest one's."
    )
    presence_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="Taken from tokens in the answer already."
    )
    frequency_penalty: float | None = Field(
        default=None, ge=-2, le=2, description="The same for each time that they occurred."
    )
    repetition_penalty: float | None = Field(
        default=None, gt=0, le=100, description="Divides the logits of tokens in the prompt or the answer; 1 is off."
    )
    max_tokens: int | None = Field(
        default=None, ge=1, le=2**31 - 1, description="Most tokens of an answer where a request names none."
    )
    depth: Annotated[Literal["auto", 0, 1, 2, 3, 4, 5, 6, 7, 8], BeforeValidator(_depth)] = Field(
        default="auto",
        description="Drafts a step. auto measures what pays; a number also turns copying from the context off.",
    )
    aliases: Annotated[tuple[Name, ...], Field(max_length=100), BeforeValidator(_names)] = Field(
        default=(), description="Further names that requests may call the model by."
    )
    serve_any_name: bool = Field(
        default=False, description="Answers requests for models of any name, such as those that Claude Code asks for."
    )
    # Some clients fail on comments, so it is long; Anthropic's expect a ping within ten seconds, so it is no longer.
    keep_alive_s: float = Field(
        default=10.0, gt=0, le=600, description="Seconds of silence on a stream before a sign of life is sent."
    )
    log_level: LogLevel = Field(
        default="warning", description="What the server logs; info has a line for each request."
    )

    def sampling(self, own: Sampling) -> Sampling:
        """The model's own sampling, with what is set here."""
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        if self.temperature is not None and self.temperature < GREEDY_BELOW:
            given["temperature"] = 0.0
        return replace(own, **given)

    def drafted(self, requests: Sequence[Request], mode: Mode) -> Sequence[Request]:
        """The requests, those that name no depth with the one that is set. A model in mode ar has no drafts to set."""
        if self.depth == "auto" or mode == "ar":
            return requests
        return [replace(each, depth=self.depth) if each.depth is None else each for each in requests]


class LiveSettings:
    """The settings that hold now.

    Attributes:
        value: all of them; read it once for each decision.
    """

    def __init__(self, value: Settings | None = None) -> None:
        self.value = value or Settings()
        self._lock = threading.Lock()
        self._listeners: tuple[Callable[[Settings], None], ...] = ()

    def listen(self, on_change: Callable[[Settings], None]) -> Callable[[], None]:
        """Have `on_change` called with the settings now and after each change; the answer ends that when called."""
        with self._lock:
            self._listeners = (*self._listeners, on_change)
            on_change(self.value)

        def unlisten() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not on_change)

        return unlisten

    def set(self, changes: Mapping[str, Any]) -> Settings:
        """Change some, all of them or none; null takes a setting back to its default. Gives what holds then.

        Raises:
            ApiError: 400 with the name of the first that is unknown or can not have that value.
        """
        unknown = next((name for name in changes if name not in Settings.model_fields), None)
        if unknown is not None:
            raise invalid(unknown[:40], f"there is no such setting; there are {', '.join(Settings.model_fields)}")
        with self._lock:
            kept = {name: value for name, value in self.value if name not in changes}
            given = {name: value for name, value in changes.items() if value is not None}
            self.value = check(Settings, kept | given)
            for listener in self._listeners:
                listener(self.value)
            return self.value


def asks_for_drafts(changes: Mapping[str, Any], mode: Mode) -> bool:
    """Whether a change sets a depth that a model without drafts can not have."""
    return mode == "ar" and changes.get("depth") not in (None, "auto", 0)


def describe(settings: Settings, own: Sampling | None) -> list[dict[str, Any]]:
    """Each setting for a screen or a command: its name, type, range, default, value, what holds, and help.

    `effective` is the value, or the model's own where there is none; `own` is that model's sampling, if it is loaded.
    """
    effective = None if own is None else settings.sampling(own)
    properties = Settings.model_json_schema()["properties"]
    return [
        {
            "name": name,
            **type_of(schema),
            "default": schema["default"],
            "value": getattr(settings, name),
            "effective": getattr(effective, name, None) if name in SAMPLING else getattr(settings, name),
            "help": schema["description"],
        }
        for name, schema in properties.items()
    ]


def type_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The type, the range and the choices out of a JSON schema of one field.

    `null` says whether it may be unset; `above` is a minimum that is itself outside.
    """
    names = ("type", "null", "minimum", "above", "maximum", "choices")
    told: dict[str, Any] = dict.fromkeys(names) | {"null": False}
    for each in schema.get("anyOf", [schema]):
        if each.get("type") == "null":
            told["null"] = True
        elif "enum" in each:
            told["type"], told["choices"] = "choice", each["enum"]
        else:
            told["type"] = "list" if each["type"] == "array" else each["type"]
            told["above"] = each.get("exclusiveMinimum")
            told["minimum"] = each.get("minimum", told["above"])
            told["maximum"] = each.get("maximum")
    return told


def use_log_level(settings: Settings) -> None:
    """Let the server's loggers say as much as is set."""
    logging.getLogger("server").setLevel(settings.log_level.upper())
