"""The input of a Responses request as turns.

A model's turn comes back as several items (reasoning, message, calls). They are one turn again here, so that the
template renders them as the model made them. Ids, statuses and whatever else items carry never reach the prompt.
"""

from collections.abc import Callable
from typing import Any

from server.conversation import Turn, from_chat
from server.errors import invalid
from server.responses_tools import ToolList, flat_name

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_KEYS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_REASONING_KINDS = {"content": "reasoning_text", "summary": "summary_text"}

Item = dict[str, Any]


class Input:
    """Reads the items of one request.

    Attributes:
        ignored: names of what was there and can not be used.
    """

    def __init__(self, tools: ToolList) -> None:
        """`tools` gets those that come along as an item."""
        self.ignored: list[str] = []
        self._tools = tools
        self._messages: list[dict[str, Any]] = []
        self._last = ""  # kind of the item before
        self._kinds: dict[str, Callable[[Item, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "function_call_output": self._output,
            "custom_tool_call": self._custom_call,
            "custom_tool_call_output": self._output,
            "additional_tools": self._additional_tools,
        }

    def turns(self, given: object, instructions: str | None) -> list[Turn]:
        """The whole conversation, `instructions` in front.

        Raises:
            ApiError: 400 with the path of the first item or part that can not be taken.
        """
        if instructions:
            self._messages.append({"role": "system", "content": instructions})
        if isinstance(given, str):
            self._messages.append({"role": "user", "content": given})
        elif not isinstance(given, list):
            raise invalid("input", "must be a string or a list of items")
        else:
            for index, item in enumerate(given):
                self._item(item, f"input[{index}]")
        if not self._messages or (instructions and len(self._messages) == 1):
            raise invalid("input", "holds no message")
        return from_chat(self._messages)

    def _item(self, item: object, at: str) -> None:
        if not isinstance(item, dict):
            raise invalid(at, "an item is an object with a type")
        kind = item.get("type")
        if kind is None:
            kind = "message" if "role" in item else "item_reference"
        if kind == "item_reference":
            raise invalid(at, "nothing is stored here that could be referred to; send the item itself")
        take = self._kinds.get(kind) if isinstance(kind, str) else None
        if take is None:
            raise invalid(f"{at}.type", f"must be one of {', '.join(self._kinds)}; got {str(kind)[:40]!r}")
        take(item, at)
        self._last = str(kind) if kind != "message" else f"message of {item['role']}"

    def _message(self, item: Item, at: str) -> None:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or role not in _ROLES:
            raise invalid(f"{at}.role", f"must be one of {', '.join(_ROLES)}")
        if role == "assistant":
            text = "" if content is None or content == [] else _text(content, f"{at}.content")
            self._turn("message of assistant")["content"] += text
        else:
            self._messages.append({"role": role, "content": _text(content, f"{at}.content")})

    def _reasoning(self, item: Item, at: str) -> None:
        told = {key: _reasoning_text(item.get(key), kind, f"{at}.{key}") for key, kind in _REASONING_KINDS.items()}
        if item.get("encrypted_content") is not None:
            self.ignored.append("input.reasoning.encrypted_content")
        turn = self._turn("reasoning")
        turn["reasoning_content"] = turn.get("reasoning_content", "") + (told["content"] or told["summary"])

    def _function_call(self, item: Item, at: str) -> None:
        arguments = item.get("arguments")
        if arguments is not None and not isinstance(arguments, str):
            raise invalid(f"{at}.arguments", "must be a string")
        self._call(item, at, arguments)

    def _custom_call(self, item: Item, at: str) -> None:
        text = item.get("input")
        if not isinstance(text, str):
            raise invalid(f"{at}.input", "must be a string")
        self._call(item, at, {"input": text})

    def _call(self, item: Item, at: str, arguments: object) -> None:
        name, namespace = item.get("name"), item.get("namespace")
        if not isinstance(name, str) or not name:
            raise invalid(f"{at}.name", "must be a string of at least one character")
        if namespace is not None and not isinstance(namespace, str):
            raise invalid(f"{at}.namespace", "must be a string")
        function = {"name": flat_name(name, namespace), "arguments": arguments}
        call = {"type": "function", "function": function, "id": _call_id(item, at)}
        self._turn("call").setdefault("tool_calls", []).append(call)

    def _output(self, item: Item, at: str) -> None:
        output = item.get("output")
        text = "" if output is None or output == [] else _text(output, f"{at}.output")
        self._messages.append({"role": "tool", "tool_call_id": _call_id(item, at), "content": text})

    def _additional_tools(self, item: Item, at: str) -> None:
        tools = item.get("tools")
        if not isinstance(tools, list):
            raise invalid(f"{at}.tools", "must be a list of tools")
        self._tools.add(tools, f"{at}.tools")

    def _turn(self, kind: str) -> dict[str, Any]:
        """The assistant's turn that an item of this kind belongs to.

        A model's turn never has two messages or two reasonings side by side, so the second one begins another.
        """
        last = self._messages[-1] if self._messages else None
        if last is None or last["role"] != "assistant" or kind == self._last:
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        return last


def _call_id(item: Item, at: str) -> str:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or not call_id:
        raise invalid(f"{at}.call_id", "must be a string of at least one character")
    return call_id


def _text(content: object, at: str) -> str:
    """The text of a message or of a tool's output, given as a string or as parts; nothing comes between parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(at, "must be a string or a list of at least one part")
    return "".join(_part(part, f"{at}[{index}]") for index, part in enumerate(content))


def _part(part: object, at: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise invalid(at, "a part is an object with a type")
    if kind not in _TEXT_KEYS:
        raise invalid(f"{at}.type", f"{kind[:40]!r} parts are not taken; this model reads text only")
    return _string(part, _TEXT_KEYS[kind], at)


def _reasoning_text(parts: object, kind: str, at: str) -> str:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise invalid(at, "must be a list of parts")
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != kind:
            raise invalid(f"{at}[{index}]", f"must be an object of type {kind!r}")
    return "".join(_string(part, "text", f"{at}[{index}]") for index, part in enumerate(parts))


def _string(part: Item, key: str, at: str) -> str:
    text = part.get(key)
    if not isinstance(text, str):
        raise invalid(f"{at}.{key}", "must be a string")
    return text
