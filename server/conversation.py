"""One form of a conversation, whatever API it came through: the message dicts that the chat template takes.

Turns stay where they are and their text is passed on as it came. The only joining is of text parts within a message
(with nothing between, as templates do) and of the system turns that open a conversation (templates know one).
A conversation that ends with an assistant turn gets a new turn after it; nothing is continued.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json

from server.errors import invalid

Turn = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def from_chat(messages: Sequence[object], path: str = "messages") -> list[Turn]:
    """OpenAI chat messages as turns.

    Each turn has `role` (system, user, assistant, tool) and `content` (text); an assistant's may have
    `reasoning_content` and `tool_calls` with `arguments` as a mapping; a tool's may have `tool_call_id` and `name`.

    Raises:
        ApiError: 400 with the path of the first message or part that can not be taken.
    """
    turns = [_turn(message, f"{path}[{index}]") for index, message in enumerate(messages)]
    opening = next((index for index, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    if opening > 1:
        head = {"role": "system", "content": "\n\n".join(turn["content"] for turn in turns[:opening])}
        return [head, *turns[opening:]]
    return turns


def _turn(message: object, path: str) -> Turn:
    if not isinstance(message, dict):
        raise invalid(path, "a message is an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{path}.role", f"must be one of {', '.join(_ROLES)}")
    turn: Turn = {"role": _ROLES[role]}
    if turn["role"] == "assistant":
        return turn | _assistant(message, path)
    content = message.get("content")
    if content is None and turn["role"] != "tool":
        raise invalid(f"{path}.content", "is missing")
    turn["content"] = "" if content is None else _text(content, f"{path}.content")
    if turn["role"] == "tool":
        turn |= {key: message[key] for key in ("tool_call_id", "name") if isinstance(message.get(key), str)}
    return turn


def _assistant(message: dict[str, Any], path: str) -> Turn:
    content, key = message.get("content"), "content"
    if content is None:
        content, key = message.get("refusal"), "refusal"
    turn: Turn = {"content": "" if content is None else _text(content, f"{path}.{key}")}
    for key in _REASONING_KEYS:
        reasoning = message.get(key)
        if reasoning is not None:
            if not isinstance(reasoning, str):
                raise invalid(f"{path}.{key}", "must be a string")
            turn["reasoning_content"] = reasoning
            break
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise invalid(f"{path}.tool_calls", "must be a list")
    if calls:
        turn["tool_calls"] = [_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(calls)]
    elif message.get("function_call") is not None:
        turn["tool_calls"] = [_call({"function": message["function_call"]}, f"{path}.function_call")]
    return turn


def _call(call: object, path: str) -> Turn:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(path, "a tool call is an object with function.name and function.arguments")
    taken: Turn = {
        "type": "function",
        "function": {"name": function["name"], "arguments": _arguments(function.get("arguments"))},
    }
    if isinstance(call.get("id"), str):
        taken["id"] = call["id"]
    return taken


def _arguments(arguments: object) -> dict[str, Any]:
    """A call's arguments as the mapping that templates walk through.

    What is no JSON object was said by a model and is history: it is kept, as the text of one argument, because
    refusing it would end the session for good.
    """
    if isinstance(arguments, dict):
        return arguments
    if not arguments:
        return {}
    try:
        parsed = from_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        parsed = arguments
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}


def _text(content: object, path: str) -> str:
    """The text of a message's content, given as a string or as parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid(path, "must be a string or a list of at least one part")
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: object, path: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise invalid(path, "a part is an object with a type")
    if kind not in ("text", "refusal"):
        raise invalid(f"{path}.type", f"{kind[:40]!r} parts are not taken; this model reads text only")
    text = part.get(kind)
    if not isinstance(text, str):
        raise invalid(f"{path}.{kind}", "must be a string")
    return text
