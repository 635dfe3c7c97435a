"""The tool fields of a chat completion, today's and the `functions` of old, in the one form of `server.tools`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from server.errors import invalid
from server.jsonbody import Fields
from server.tools import NAME, Choice, Tool, Tools


class FunctionFields(Fields):
    name: str = Field(pattern=NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolFields(Fields):
    type: Literal["function"]
    function: FunctionFields


def tools_of(body: Mapping[str, Any]) -> Tools:
    """The tools of a chat completion whose `tools` and `functions` were checked.

    `functions` and `function_call` count where there are no `tools`. Calls of such functions are answered as
    `tool_calls` too; clients that still send `functions` read both.

    Raises:
        ApiError: 400 for a choice that is none, or that names a tool which is not there.
    """
    if body.get("tools"):
        path, given, choose = "tool_choice", body["tools"], _choice
    else:
        path, choose = "function_call", _old_choice
        given = [{"type": "function", "function": function} for function in body.get("functions") or ()]
    if not given:
        for unmet in ("tool_choice", "function_call"):
            if body.get(unmet) not in (None, "none", "auto"):
                raise invalid(unmet, 'must be "none" or "auto" where no tools are given')
        return Tools()
    offered = tuple(_tool(each) for each in given)
    choice, only = choose(body.get(path), {tool.name for tool in offered})
    return Tools(offered, choice, only, parallel=body.get("parallel_tool_calls") is not False)


def _tool(given: Mapping[str, Any]) -> Tool:
    function = given["function"]
    return Tool(function["name"], given, function.get("parameters") or {}, strict=function.get("strict") is True)


def _choice(given: object, names: set[str]) -> tuple[Choice, frozenset[str] | None]:
    match given:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function"}:
            return "required", frozenset({_named(given, names, "tool_choice")})
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as some},
        }:
            return ("auto" if mode == "auto" else "required"), _allowed(some, names)
        case {"type": "allowed_tools"}:
            raise invalid(
                "tool_choice.allowed_tools",
                'must be an object with a mode, "auto" or "required", and at least one tool',
            )
    raise invalid("tool_choice", 'must be "auto", "none", "required", or an object of type function or allowed_tools')


def _old_choice(given: object, names: set[str]) -> tuple[Choice, frozenset[str] | None]:
    match given:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case {"name": name}:
            return "required", frozenset({_known(name, names, "function_call.name")})
    raise invalid("function_call", 'must be "auto", "none", or an object with the name of a function')


def _allowed(tools: Sequence[object], names: set[str]) -> frozenset[str]:
    path = "tool_choice.allowed_tools.tools"
    return frozenset(_named(tool, names, f"{path}[{index}]") for index, tool in enumerate(tools))


def _named(given: object, names: set[str], path: str) -> str:
    match given:
        case {"type": "function", "function": {"name": name}}:
            return _known(name, names, f"{path}.function.name")
    raise invalid(path, 'must be {"type": "function", "function": {"name": ...}}')


def _known(name: object, names: set[str], path: str) -> str:
    if not isinstance(name, str) or name not in names:
        raise invalid(path, f"{str(name)[:128]!r} is none of the tools that were given")
    return name
