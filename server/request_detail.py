"""What was sent to the model in one request and what it answered, token by token, and why the cache had no more of it.

Plain values, as the server tells them to its clients and the screens show them.
"""

import base64
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from engine.chat import ChatFormat
from engine.errors import EngineError
from engine.handle import EngineHandle
from server.journal import Entry

_NOT_ASKED = ("prompt", "id", "source", "cache_scope")  # what is told elsewhere, or is no client's choice
_ELSEWHERE = "The request did not come through this server, which has seen its events only."
_OUTLIVED = "Another model was loaded since then, which has other tokens."
_FORGOTTEN = "The request ended too long ago; its tokens are not kept any more."
ALL = slice(0, None)


def chat_of(engine: EngineHandle) -> ChatFormat | None:
    """The tokenizer; None where the engine has failed, and so can not tell what tokens mean."""
    try:
        return engine.chat
    except EngineError:
        return None


def figures(entry: Entry, why: str) -> dict[str, Any]:
    """One request without what was said in it, and why that is missing."""
    facts = entry.facts(time.monotonic())
    return {
        **asdict(facts),
        "asked": None,
        "cache": {"prompt_tokens": facts.prompt_tokens, "cached_tokens": facts.cached_tokens, "why": facts.miss},
        "prompt": _none(why),
        "answer": _none(why),
    }


def detail(entry: Entry, chat: ChatFormat | None, prompt: slice = ALL, answer: slice = ALL) -> dict[str, Any]:
    """One request with the tokens in these windows of its prompt and answer; their text where there is a tokenizer."""
    sent, made = entry.prompt, entry.answer  # read once: the engine's thread may forget them meanwhile
    body = figures(entry, _OUTLIVED if entry.outlived else _ELSEWHERE if entry.asked is None else _FORGOTTEN)
    if entry.asked is not None:
        asked = {name: value for name, value in asdict(entry.asked).items() if name not in _NOT_ASKED}
        seed = entry.asked.seed if entry.queued is None else entry.queued.seed
        body["asked"] = asked | {"seed": seed}
    if sent is not None:
        body["prompt"] = _tokens(sent, prompt, chat)
        for place, token in enumerate(body["prompt"]["tokens"], body["prompt"]["start"]):
            token["cached"] = place < entry.cached
    if made is not None:
        body["answer"] = _tokens(made, answer, chat)
    return body


def _tokens(ids: Sequence[int], window: slice, chat: ChatFormat | None) -> dict[str, Any]:
    """The tokens in a window of `ids`."""
    start = min(window.start, len(ids))
    return {"total": len(ids), "start": start, "tokens": list(_told(ids[window], chat)), "why": None}


def _none(why: str) -> dict[str, Any]:
    """No tokens, and the reason."""
    return {"total": None, "start": None, "tokens": None, "why": why}


def _told(ids: Sequence[int], chat: ChatFormat | None) -> Iterator[dict[str, Any]]:
    """Each token with its text; with its bytes as well, in base64, where these alone are no text."""
    special = frozenset[int]() if chat is None else chat.special_ids
    for token in ids:
        told: dict[str, Any] = {"id": token, "text": None, "special": token in special}
        if chat is not None:
            raw = chat.token_bytes(token)
            told["text"] = raw.decode("utf-8", "replace")
            if told["text"].encode() != raw:
                told["bytes"] = base64.urlsafe_b64encode(raw).decode()
        yield told
