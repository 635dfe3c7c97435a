"""The tools of a Responses request in the server's one form, and the way back from a call's name to the client's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import Grammar
from server.errors import invalid
from server.tools import NAME, Tool, Tools

CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""What a custom tool, which takes free text, is for a model that calls functions only."""

_FIELDS = {
    "function": {"type", "name", "description", "parameters", "strict"},
    "custom": {"type", "name", "description", "format"},
    "namespace": {"type", "name", "description", "tools"},
}


@dataclass(frozen=True, slots=True)
class ClientName:
    """How the client knows a tool. `custom`: its calls carry text instead of a JSON object."""

    name: str
    namespace: str | None = None
    custom: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """The name that the model calls a tool by: templates know no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


class ToolList:
    """Collects the tools of one request, which may stand in several places.

    Attributes:
        as_sent: those that the model is offered, in the client's form.
        ignored: names of what changes nothing: fields, and kinds of tools that a provider would run itself.
    """

    def __init__(self) -> None:
        self.as_sent: list[dict[str, Any]] = []
        self.ignored: set[str] = set()
        self._tools: dict[str, Tool] = {}
        self._places: list[str] = []  # of the tools, each with the field that says what its calls must look like
        self._names: dict[str, ClientName] = {}

    def add(self, given: Sequence[object], path: str) -> None:
        """Take in a list of tools.

        Tools that a provider would run itself (web_search, mcp and whatever comes) are dropped, not refused: agents
        send them with every request.

        Raises:
            ApiError: 400 with the path of what can not be used.
        """
        for index, tool in enumerate(given):
            at = f"{path}[{index}]"
            kind = tool.get("type") if isinstance(tool, dict) else None
            if not isinstance(tool, dict) or not isinstance(kind, str):
                raise invalid(at, "a tool is an object with a type")
            if kind not in _FIELDS:
                self.ignored.add(f"tools.{kind}")
                continue
            self._note_fields(tool)
            if self._add_namespace(tool, at) if kind == "namespace" else self._add(tool, at, None, None):
                self.as_sent.append(tool)

    def client_name(self, flat: str) -> ClientName:
        """What the client calls the tool that the model has called; a name that nobody offered stays as it is."""
        return self._names.get(flat, ClientName(flat))

    def own_path(self, path: str) -> str:
        """Where the client finds what code that all endpoints share calls `tools[3].function.parameters`."""
        place = re.fullmatch(r"tools\[([0-9]+)\]\.function\.parameters", path)
        return self._places[int(place[1])] if place else path

    def chosen(self, choice: object, parallel: bool) -> Tools:
        """The tools with the request's `tool_choice`.

        Raises:
            ApiError: 400 for a choice that is none, or that no tool is here for.
        """
        offered = tuple(self._tools.values())
        if choice is None or choice == "auto":
            return Tools(offered, "auto", parallel=parallel)
        if choice == "none":
            return Tools(offered, "none", parallel=parallel)
        if choice == "required":
            if not offered:
                raise invalid("tool_choice", 'is "required", and there is no tool that could be called')
            return Tools(offered, "required", parallel=parallel)
        if not isinstance(choice, dict):
            raise invalid("tool_choice", 'must be "auto", "none", "required" or an object with a type')
        if choice.get("type") == "allowed_tools":
            return self._allowed(choice, offered, parallel)
        return Tools(offered, "required", frozenset({self._lookup(choice, "tool_choice")}), parallel)

    def _add_namespace(self, namespace: dict[str, Any], at: str) -> bool:
        name = _name(namespace, at)
        inner = namespace.get("tools")
        if not isinstance(inner, list):
            raise invalid(f"{at}.tools", "must be a list of tools")
        heading = _optional(namespace, "description", str, "a string", at)
        new = False
        for index, tool in enumerate(inner):
            if not isinstance(tool, dict) or tool.get("type") not in ("function", "custom"):
                raise invalid(f"{at}.tools[{index}]", "a namespace holds function and custom tools")
            self._note_fields(tool)
            # Templates have no place for what is said of a namespace, so its first tool carries it.
            new |= self._add(tool, f"{at}.tools[{index}]", name, heading if index == 0 else None)
        return new

    def _add(self, given: dict[str, Any], at: str, namespace: str | None, heading: str | None) -> bool:
        """Whether the tool is new; the same one may come twice, in the list and in the input."""
        name = _name(given, at)
        described = [heading, _optional(given, "description", str, "a string", at)]
        description = "\n\n".join(text for text in described if text)
        custom = given["type"] == "custom"
        parameters = CUSTOM_PARAMETERS if custom else _optional(given, "parameters", dict, "an object", at)
        function: dict[str, Any] = {"name": flat_name(name, namespace)}
        if description:
            function["description"] = description
        if parameters is not None:
            function["parameters"] = parameters
        tool = Tool(
            name=function["name"],
            shown={"type": "function", "function": function},
            parameters=parameters or {},
            strict=bool(_optional(given, "strict", bool, "true or false", at)),
            grammar=_grammar(given.get("format"), f"{at}.format") if custom else None,
        )
        known, client_name = self._tools.get(tool.name), ClientName(name, namespace, custom)
        if known is not None:
            if (known, self._names[tool.name]) != (tool, client_name):
                raise invalid(f"{at}.name", f"there is another tool {tool.name[:80]!r}")
            return False
        self._tools[tool.name], self._names[tool.name] = tool, client_name
        self._places.append(f"{at}.format.definition" if custom else f"{at}.parameters")
        return True

    def _note_fields(self, given: Mapping[str, Any]) -> None:
        known = _FIELDS[given["type"]]
        self.ignored.update(f"tools.{key}" for key, value in given.items() if key not in known and value is not None)

    def _allowed(self, choice: dict[str, Any], offered: tuple[Tool, ...], parallel: bool) -> Tools:
        mode, tools = choice.get("mode"), choice.get("tools")
        if mode not in ("auto", "required"):
            raise invalid("tool_choice.mode", 'must be "auto" or "required"')
        if not isinstance(tools, list) or not tools:
            raise invalid("tool_choice.tools", "must be a list of at least one tool")
        only = frozenset(self._lookup(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(tools))
        return Tools(offered, mode, only, parallel)

    def _lookup(self, reference: object, at: str) -> str:
        """The flat name of the tool that `reference` names."""
        if not isinstance(reference, dict) or not isinstance(reference.get("type"), str):
            raise invalid(at, "must be an object with type and name")
        kind, name = reference["type"], reference.get("name")
        if kind not in ("function", "custom"):
            raise invalid(f"{at}.type", f"{kind[:40]!r} tools are not run here, so none can be chosen")
        if isinstance(name, str):
            namespace = reference.get("namespace")
            flat = flat_name(name, namespace if isinstance(namespace, str) else None)
            if flat in self._tools and self._names[flat].custom == (kind == "custom"):
                return flat
        raise invalid(f"{at}.name", f"there is no {kind} tool of that name among the tools")


def _grammar(given: object, at: str) -> Grammar | None:
    """What the text of a custom tool must look like; None where it is free."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in ("text", "grammar"):
        raise invalid(at, 'must be an object of type "text" or "grammar"')
    if kind == "text":
        return None
    syntax, definition = given.get("syntax"), given.get("definition")
    if syntax not in ("lark", "regex"):
        raise invalid(f"{at}.syntax", 'must be "lark" or "regex"')
    if not isinstance(definition, str) or not definition:
        raise invalid(f"{at}.definition", "must be the text of the grammar")
    return Grammar(syntax, definition)


def _name(given: dict[str, Any], at: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise invalid(f"{at}.name", "must be 1 to 128 letters, digits, and characters of '_', '-' and '.'")
    return name


def _optional(given: dict[str, Any], key: str, kind: type, what: str, at: str) -> Any:
    value = given.get(key)
    if value is not None and not isinstance(value, kind):
        raise invalid(f"{at}.{key}", f"must be {what}")
    return value
