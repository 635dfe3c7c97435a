"""System turns in mid-conversation, for models whose templates know none.

Claude Code sends one with every request. Moved to the front, each would change the prompt's beginning, and nothing of
the conversation could be taken from the cache.
"""

from engine.chat import ChatFormat
from engine.errors import BadRequestError
from server.conversation import Turn


def in_place(turns: list[Turn], chat: ChatFormat) -> list[Turn]:
    """The turns as the template can show them: where it refuses or drops a later system turn (Qwen3.5's refuses), the
    turn keeps its place and its text and is shown as the user's."""
    late = [index for index, turn in enumerate(turns) if index and turn["role"] == "system"]
    if not late or _shown(chat):
        return turns
    return [{**turn, "role": "user"} if index in late else turn for index, turn in enumerate(turns)]


def _shown(chat: ChatFormat) -> bool:
    probe = [("system", "first"), ("user", "second"), ("system", "third"), ("user", "fourth")]
    try:
        ids = chat.render([{"role": role, "content": text} for role, text in probe])
    except BadRequestError:
        return False
    text = chat.decode(ids)
    return text.find("second") < text.find("third") < text.find("fourth")
