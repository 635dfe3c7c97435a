"""The tools of an Anthropic request, and whether they are to be called."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from server.errors import invalid
from server.jsonbody import Fields
from server.tools import NAME, Tool, Tools


class ToolFields(Fields):
    type: str | None = None
    name: str | None = Field(None, pattern=NAME)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def tools_of(given: Sequence[ToolFields], choice: ToolChoice | None) -> tuple[Tools, list[str]]:
    """The tools, and the names of those that are not shown to the model and of fields of theirs that change nothing.

    Not shown are Anthropic's own (`web_search_...`, `bash_...` and so on): these come without a schema, because its
    models were trained on them. This one was not.

    Raises:
        ApiError: 400 for a tool that lacks something, or a choice that can not be kept.
    """
    offered: list[Tool] = []
    ignored: set[str] = set()
    for index, tool in enumerate(given):
        if tool.type not in (None, "custom") and tool.input_schema is None:
            ignored.add(f"tools.{tool.type}")
            continue
        ignored.update(f"tools.{name}" for name in tool.model_extra or ())
        offered.append(_tool(tool, f"tools[{index}]"))
        if tool.name in {other.name for other in offered[:-1]}:
            raise invalid(f"tools[{index}].name", f"{offered[-1].name[:40]!r} is the name of an earlier tool as well")
    return _chosen(tuple(offered), choice), sorted(ignored)


def _tool(tool: ToolFields, path: str) -> Tool:
    if tool.name is None:
        raise invalid(f"{path}.name", "is missing")
    if tool.input_schema is None:
        raise invalid(f"{path}.input_schema", "is missing")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    return Tool(
        tool.name,
        {"type": "function", "function": function},
        parameters=tool.input_schema,
        strict=bool(tool.strict),
    )


def _chosen(offered: tuple[Tool, ...], choice: ToolChoice | None) -> Tools:
    if choice is None:
        return Tools(offered)
    if not offered:
        if choice.type in ("any", "tool"):
            raise invalid("tool_choice", f"{choice.type!r} needs a tool that can be called, and there is none")
        return Tools()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "none":
        return Tools(offered, "none")
    if choice.type == "auto":
        return Tools(offered, parallel=parallel)
    if choice.type == "any":
        return Tools(offered, "required", parallel=parallel)
    if choice.name not in {tool.name for tool in offered}:
        raise invalid("tool_choice.name", "must be the name of one of the tools")
    return Tools(offered, "required", frozenset({choice.name}), parallel)
