"""What a request may choose of the model's chat template."""

from collections.abc import Mapping
from typing import Any

from engine.chat import OPTIONS, ChatFormat
from server.errors import invalid

_SWITCH = "enable_thinking"
_EFFORT = "reasoning_effort"
_KINDS = {bool: "true or false", str: "a string"}


def template_options(
    kwargs: Mapping[str, Any] | None, effort: str | None, chat: ChatFormat
) -> tuple[bool, dict[str, bool | str]]:
    """Whether the model may think first, and the other options, from `chat_template_kwargs` and `reasoning_effort`.

    A template is code, and names such as `messages` or `chat_template` would replace its input; so what may be set is
    what this model's template reads, of a list. The template's own switch outranks the effort; an effort goes to
    templates that read one.

    Raises:
        ApiError: 400 with the path of what can not be set.
    """
    allowed = {_SWITCH, *chat.options}
    given = {name: value for name, value in (kwargs or {}).items() if value is not None}
    for name, value in given.items():
        path = f"chat_template_kwargs.{name[:40]}"
        if name not in allowed:
            raise invalid(path, f"this model's template lets nobody set it; it takes {', '.join(sorted(allowed))}")
        if type(value) is not OPTIONS[name]:
            raise invalid(path, f"must be {_KINDS[OPTIONS[name]]}")
    if effort not in (None, "none") and _EFFORT in allowed:
        given.setdefault(_EFFORT, effort)
    return bool(given.pop(_SWITCH, effort != "none")), given
