"""Requests as real clients sent them, at their full size. Their texts were replaced by their lengths, and are made up
here again; texts that were cut for the record share what is missing of the body's size."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

CASES = Path(__file__).parent / "cases"
WORDS = "the server reads one more line of this text and then goes on to the next of them "
CUT = (162, 163, 164)
"""Lengths that a longer text was recorded as."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a client's session; `number` counts them from its start. `size`: bytes of the body as sent."""

    client: str
    number: int
    path: str
    query: str
    headers: dict[str, str]
    size: int
    body: dict[str, Any]

    def send(self, client: httpx.Client, **fields: Any) -> httpx.Response:
        """The request as it was, but for `fields`."""
        headers = {**self.headers, "content-type": "application/json"}
        content = _packed({**self.body, **fields})
        return client.post(f"{self.path}?{self.query}", content=content, headers=headers)


def recorded(name: str) -> list[Recorded]:
    """The requests in a file of `cases`."""
    record = json.loads((CASES / name).read_text())
    requests = []
    missing: dict[tuple[str, str], int] = {}
    for each in record["requests"]:
        body = each["body"]
        if body.get("tools"):
            body["tools"] = [record["tools"][index] for index in body["tools"]]
        more = _missing(body, each["bytes"])
        if body.get("tools"):  # a session's requests repeat the texts of its first
            more = missing.setdefault((each["client"], json.dumps(body["tools"])), more)
        requests.append(
            Recorded(
                each["client"],
                each["n"],
                each["path"],
                each["query"],
                each["headers"],
                each["bytes"],
                _filled(body, more),
            )
        )
    return requests


def _missing(body: dict[str, Any], size: int) -> int:
    """How many characters each of the texts that were cut has to have more, for the body to have its size."""
    cut = len(re.findall(rf'"<text ({"|".join(map(str, CUT))})>"', json.dumps(body)))
    return max(0, size - len(_packed(_filled(body, 0)))) // cut if cut else 0


def _filled(value: Any, more: int) -> Any:
    """The value with its texts; those that were cut have so many characters `more`."""
    if isinstance(value, dict):
        return {key: _filled(each, more) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, more) for each in value]
    match = re.fullmatch(r"<text (\d+)>", value) if isinstance(value, str) else None
    if match is None:
        return value
    length = int(match[1]) + (more if int(match[1]) in CUT else 0)
    return (WORDS * (length // len(WORDS) + 1))[:length]


def _packed(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
