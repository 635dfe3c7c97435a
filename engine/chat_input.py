"""What a chat template is given: plain data, in which the client's text can be told from the template's own."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_REASONING = ("reasoning_content", "thinking", "reasoning")


def plain(value: Any) -> Any:
    """The same as mappings, lists, strings and numbers of Python's own types, which a template can do no harm with."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(f"a {type(value).__name__} is no part of a message")


def message(given: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it.

    What is null is left out. Reasoning has all the names that templates know it by. Templates go through a tool call's
    arguments as an object; OpenAI's clients send that object's JSON text.
    """
    kept = {key: plain(value) for key, value in given.items() if value is not None}
    reasoning = next((kept[key] for key in _REASONING if key in kept), None)
    if reasoning is not None:
        kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
    if isinstance(kept.get("tool_calls"), list):
        kept["tool_calls"] = [_call(call) for call in kept["tool_calls"]]
    return kept


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def strings(value: Any) -> Iterator[str]:
    """All strings in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def unused_characters(value: Any) -> Iterator[str]:
    """Private characters that plain data does not have, to mark something in it with."""
    used: set[str] = set().union(*strings(value))
    return (character for character in map(chr, range(0xF0000, 0xFFFFE)) if character not in used)


def marked(value: Any, control: re.Pattern[str], mark: str) -> Any:
    """Plain data with a mark before and behind all that matches."""
    if isinstance(value, str):
        return control.sub(lambda match: mark + match.group() + mark, value)
    if isinstance(value, dict):
        return {marked(key, control, mark): marked(item, control, mark) for key, item in value.items()}
    if isinstance(value, list):
        return [marked(item, control, mark) for item in value]
    return value
