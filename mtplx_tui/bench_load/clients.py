"""The clients, in a process of their own so that they take no turn from what is measured: `python -m`, JSON to JSON.

Reads an order from standard input: {"url", "model", "max_tokens", "timeout", "prompts": [[text, ...] per client],
"fields": {name: value} of every body besides}.
Writes what came, one record for each request: {"client", "sent", "frames": [[at, text], ...], "ended", "finish",
"error"}. Times are seconds of one monotonic clock; frames are those that carry text, reasoning included.
"""

import asyncio
import json
import sys
import time
from typing import Any

import httpx


async def run(order: dict[str, Any]) -> list[dict[str, Any]]:
    """All clients at once; each sends its next request when the answer before has ended."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=order["url"], timeout=order["timeout"], limits=limits, trust_env=False
    ) as http:
        answers = await asyncio.gather(
            *(_client(http, order, number, prompts) for number, prompts in enumerate(order["prompts"]))
        )
    return [record for records in answers for record in records]


async def _client(
    http: httpx.AsyncClient, order: dict[str, Any], number: int, prompts: list[str]
) -> list[dict[str, Any]]:
    return [await _ask(http, order, number, prompt) for prompt in prompts]


async def _ask(http: httpx.AsyncClient, order: dict[str, Any], number: int, prompt: str) -> dict[str, Any]:
    body = {
        "model": order["model"],
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": order["max_tokens"],
        "temperature": 0,
        "stream": True,
        **order.get("fields", {}),
    }
    record: dict[str, Any] = {"client": number, "sent": time.monotonic(), "frames": [], "finish": None, "error": None}
    try:
        async with http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode("utf-8", "replace")
                record["error"] = f"HTTP {response.status_code}: {text[:200]}"
            else:
                await _take(response, record)
    except httpx.HTTPError as error:
        record["error"] = f"{type(error).__name__}: {error}"
    record["ended"] = time.monotonic()
    if record["error"] is None and record["finish"] is None:
        record["error"] = "the stream ended without a finish_reason"
    return record


async def _take(response: httpx.Response, record: dict[str, Any]) -> None:
    async for line in response.aiter_lines():
        if not line.startswith("data:") or line.removeprefix("data:").strip() == "[DONE]":
            continue
        frame = json.loads(line.removeprefix("data:"))
        if "error" in frame:
            record["error"] = str(frame["error"])
        for choice in frame.get("choices", ()):
            delta = choice.get("delta") or {}
            text = "".join(delta.get(key) or "" for key in ("reasoning_content", "reasoning", "content"))
            if text:
                record["frames"].append([time.monotonic(), text])
            record["finish"] = choice.get("finish_reason") or record["finish"]


if __name__ == "__main__":
    json.dump(asyncio.run(run(json.load(sys.stdin))), sys.stdout)
