"""Texts and figures as SQLite takes them."""

import json
from collections.abc import Mapping
from typing import Any

TITLE_CHARS = 60


def pack(text: str) -> str | bytes:
    """Text as SQLite can take it: lone surrogates, which are not UTF-8, go in as bytes and come back as they were."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def unpack(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


def pack_json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value)


def unpack_json(value: str | None) -> dict[str, Any] | None:
    """A mapping; None where there is none, or where damage has made it another thing."""
    try:
        found = json.loads(value) if value else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def title(content: str) -> str:
    """The first words of a message, on one line, without control characters."""
    start = content.strip()[: TITLE_CHARS * 4]
    words = " ".join("".join(c if c.isprintable() else " " for c in start).split())
    return words if len(words) <= TITLE_CHARS else words[: TITLE_CHARS - 1] + "…"
