"""Anthropic's messages as turns: each block at its place, as text that the model reads.

A message becomes several turns where its blocks need them: each `tool_result` is a tool turn, and an assistant's block
that would have to move to an earlier place in its turn begins another.

Nothing is hoisted, moved or added. What is left out was never meant for the model: cache_control, redacted thinking,
`is_error` (what went wrong is in the result's content), and one line of text, see `_BILLING`.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

from server.conversation import Turn, from_chat
from server.errors import ApiError, invalid

_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""The line with which Claude Code begins its system prompt: its version, with a part that differs from conversation to
conversation, and in some builds from request to request. It is for Anthropic's accounts. Left in, nothing behind it
could be taken from the cache, which is the whole of a conversation."""

_RANKS = {"thinking": 0, "text": 1, "tool_use": 2}
"""The order within an assistant's turn."""

_SEAL = "mtplx-tui."


def from_messages(messages: Sequence[object], system: object = None) -> list[Turn]:
    """The conversation of a request, in the form of `server.conversation`.

    Text blocks of a message are joined with nothing between; a document is set off by blank lines.

    Raises:
        ApiError: 400 with the path of the first message or block that can not be taken.
    """
    head = "".join(_system(system))
    turns = [{"role": "system", "content": head}] if head else []
    for index, message in enumerate(messages):
        turns += _message(message, f"messages[{index}]")
    return from_chat(turns)


def seal(text: str) -> str:
    """A thinking block's signature, which carries the thinking itself where the block does not show it."""
    return _SEAL + base64.b64encode(text.encode()).decode()


def _unseal(signature: object) -> str:
    """The thinking that a signature carries; none where it is another server's."""
    if not isinstance(signature, str) or not signature.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(signature.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _system(system: object) -> Iterator[str]:
    if isinstance(system, str):
        yield _BILLING.sub("", system)
        return
    for index, block in enumerate(_blocks(system, "system")):
        yield _BILLING.sub("", _text(block, f"system[{index}]", ("text",)))


def _message(message: object, path: str) -> Iterator[Turn]:
    if not isinstance(message, dict):
        raise invalid(path, "a message is an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise invalid(f"{path}.role", "must be one of user, assistant, system")
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = _blocks(content, f"{path}.content")
    if role == "assistant":  # alone it may be empty, as an answer is that was cut before it began
        yield from _assistant(blocks, f"{path}.content")
        return
    if not blocks:
        raise invalid(f"{path}.content", "must be a string or a list of at least one block")
    yield from _told(role, blocks, f"{path}.content")


def _told(role: str, blocks: list[Any], path: str) -> Iterator[Turn]:
    """The turns of a user's or a system's message."""
    kinds = ("text", "document") if role == "user" else ("text",)
    texts: list[str] = []
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        if role == "user" and _kind(block, where) == "tool_result":
            if texts:
                yield {"role": role, "content": "".join(texts)}
                texts = []
            yield _result(block, where)
        else:
            texts.append(_text(block, where, kinds))
    if texts:
        yield {"role": role, "content": "".join(texts)}


def _result(block: dict[str, Any], path: str) -> Turn:
    content, called = block.get("content"), block.get("tool_use_id")
    if not isinstance(called, str):
        raise invalid(f"{path}.tool_use_id", "must be the id of a tool_use block")
    text = content if isinstance(content, str) else "".join(_texts(content, f"{path}.content"))
    return {"role": "tool", "tool_call_id": called, "content": text}


def _assistant(blocks: list[Any], path: str) -> list[Turn]:
    turns: list[Turn] = [{"role": "assistant", "content": ""}]
    rank = 0
    for index, block in enumerate(blocks):
        where = f"{path}[{index}]"
        kind = _kind(block, where)
        if kind == "redacted_thinking":
            continue
        if kind not in _RANKS:
            raise _refusal(kind, where)
        if _RANKS[kind] < rank:
            turns.append({"role": "assistant", "content": ""})
        rank = _RANKS[kind]
        turn = turns[-1]
        if kind == "thinking":
            turn["reasoning_content"] = turn.get("reasoning_content", "") + _thinking(block, where)
        elif kind == "text":
            turn["content"] += _text(block, where, ("text",))
        else:
            turn.setdefault("tool_calls", []).append(_call(block, where))
    return turns


def _thinking(block: dict[str, Any], path: str) -> str:
    text = block.get("thinking")
    if text is not None and not isinstance(text, str):
        raise invalid(f"{path}.thinking", "must be a string")
    return text or _unseal(block.get("signature"))


def _call(block: dict[str, Any], path: str) -> Turn:
    for key in ("id", "name"):
        if not isinstance(block.get(key), str):
            raise invalid(f"{path}.{key}", "must be a string")
    return {
        "type": "function",
        "id": block["id"],
        "function": {"name": block["name"], "arguments": block.get("input")},
    }


def _text(block: object, path: str, kinds: Sequence[str] = ("text", "document")) -> str:
    """The text of a block that is one of `kinds`."""
    kind = _kind(block, path)
    assert isinstance(block, dict)
    if kind not in kinds:
        raise _refusal(kind, path)
    if kind == "document":
        return _document(block, path)
    if not isinstance(block.get("text"), str):
        raise invalid(f"{path}.text", "must be a string")
    return str(block["text"])


def _texts(content: object, path: str) -> list[str]:
    return [_text(block, f"{path}[{index}]") for index, block in enumerate(_blocks(content, path))]


def _document(block: dict[str, Any], path: str) -> str:
    """What a document says, under its title and context where it has them."""
    source, citations = block.get("source"), block.get("citations")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or not isinstance(kind, str):
        raise invalid(f"{path}.source", "must be an object with a type")
    if isinstance(citations, dict) and citations.get("enabled"):
        raise invalid(f"{path}.citations", "this model can not cite; leave citations out")
    if kind not in ("text", "content"):
        raise invalid(f"{path}.source.type", f"{kind[:40]!r} documents are not taken; this model reads text only")
    key = "data" if kind == "text" else "content"
    said = source.get(key)
    if kind == "content" and not isinstance(said, str):
        said = "".join(
            _text(each, f"{path}.source.content[{index}]", ("text",))
            for index, each in enumerate(_blocks(said, f"{path}.source.content"))
        )
    if not isinstance(said, str):
        raise invalid(f"{path}.source.{key}", "must be a string")
    above = [block.get(name) or "" for name in ("title", "context")]
    if not all(isinstance(text, str) for text in above):
        raise invalid(path, "title and context must be strings")
    return "".join(f"{text}\n\n" for text in (*above, said) if text)


def _kind(block: object, path: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise invalid(path, "a block is an object with a type")
    return kind


def _blocks(content: object, path: str) -> list[Any]:
    if content is None:
        return []
    if not isinstance(content, list):
        raise invalid(path, "must be a string or a list of blocks")
    return content


def _refusal(kind: str, path: str) -> ApiError:
    return invalid(f"{path}.type", f"{kind[:40]!r} blocks are not taken here; this model reads text only")
