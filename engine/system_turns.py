"""System turns in mid-conversation, at their own place, for templates that know them at its beginning only.

Claude Code sends one with every request, and Qwen3.5's template refuses it. Moved to the front, each would change the
prompt's beginning, and nothing of the conversation could be taken from the cache.

Such a turn is rendered as a user's. Around its text stands `<tool_response>`, because templates of this kind take the
last user turn that is no tool's result for the question, and drop all reasoning before it. What is not the turn's own
is taken out of the text again, and where the turns of the template begin as ChatML's do, the role is put right.
Elsewhere the turn stays a user's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

_OPEN, _CLOSE = "<tool_response>", "</tool_response>"
_USER, _SYSTEM = "<|im_start|>user\n", "<|im_start|>system\n"
_PROBE = (("user", "first"), ("system", "second"), ("assistant", "third"), ("user", "fourth"))

Render = Callable[[Sequence[dict[str, Any]]], str]


def known_to(render: Render) -> bool:
    """Whether a template shows a later system turn, and shows it at its place."""
    try:
        text = render([{"role": role, "content": content} for role, content in _PROBE])
    except Exception:  # whatever a template raises where it does not know what to do
        return False
    return 0 <= text.find("first") < text.find("second") < text.find("third")


def later(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Places of system turns behind the first turn."""
    return [place for place, turn in enumerate(messages) if place and turn.get("role") == "system"]


def rendered_in_place(render: Render, messages: Sequence[dict[str, Any]], unused: Iterator[str]) -> str:
    """The text of a conversation whose template knows no later system turns.

    `unused` gives characters that the messages do not have.
    """
    mark = next(unused)
    places = set(later(messages))
    stand_ins = [_stand_in(turn, mark) if place in places else turn for place, turn in enumerate(messages)]
    text = render(stand_ins)
    for found, meant in ((_USER + _OPEN + mark, _SYSTEM), (_OPEN + mark, ""), (mark + _CLOSE, ""), (mark, "")):
        text = text.replace(found, meant)
    return text


def _stand_in(turn: dict[str, Any], mark: str) -> dict[str, Any]:
    content = turn.get("content")
    if not isinstance(content, str):
        return {**turn, "role": "user"}
    return {**turn, "role": "user", "content": f"{_OPEN}{mark}{content}{mark}{_CLOSE}"}
