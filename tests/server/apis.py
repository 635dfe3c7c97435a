"""The four ways to ask for an answer, so that what holds for one is tested with all."""

from typing import Any

APIS = {
    "/v1/chat/completions": lambda text: {"messages": [{"role": "user", "content": text}]},
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/messages": lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 400},
    "/v1/responses": lambda text: {"input": text},
}


def body(path: str, text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request to the API at `path` that says `text`."""
    return {"model": "demo-13m", **APIS[path](text), **fields}
