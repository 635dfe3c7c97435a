"""The tools of a request in one form, whatever API they came through."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.request import Grammar

Choice = Literal["auto", "none", "required"]

NAME = r"^[A-Za-z0-9_.-]{1,128}$"
"""Names of tools in OpenAI's APIs: what can stand in the tags of a call without being taken for more than a name."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that the model may call.

    Attributes:
        name: as the model is told it.
        shown: what the chat template gets: `{"type": "function", "function": {...}}` with the client's own fields.
        parameters: JSON schema of the arguments; empty where the client gave none.
        strict: arguments must fit the schema, whatever the model would like to write.
        grammar: for a tool whose one argument `input` is free text: what that text must look like.
    """

    name: str
    shown: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request, and whether they are to be called.

    Attributes:
        offered: in the client's order; the template shows all of them whatever `choice` says, so that a prompt's
            beginning stays the same from turn to turn. Empty for a request without tools.
        choice: auto leaves it to the model, required means at least one call.
        only: names that may be called; None for all of them.
        parallel: whether an answer may have more than one call.
    """

    offered: tuple[Tool, ...] = ()
    choice: Choice = "auto"
    only: frozenset[str] | None = None
    parallel: bool = True

    def named(self) -> dict[str, Tool]:
        """The tools that may be called, by name."""
        if self.choice == "none":
            return {}
        return {tool.name: tool for tool in self.offered if self.only is None or tool.name in self.only}
