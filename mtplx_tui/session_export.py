"""A conversation as a document: Markdown to read, JSON with everything that is kept."""

import json
import re
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Literal

from mtplx_tui.store import MessageRow, SessionFacts
from mtplx_tui.tools.calls import saved_calls

Form = Literal["md", "json"]
NAMES = {"system": "System", "user": "You", "assistant": "Model", "tool": "Tool"}


def document(facts: SessionFacts, rows: list[MessageRow], form: Form) -> str:
    """The path that is shown."""
    return _json(facts, rows) if form == "json" else _markdown(facts, rows)


def write(folder: Path, facts: SessionFacts, rows: list[MessageRow], form: Form, now: datetime) -> Path:
    """Write it under a name of its title and the time, never over another file. Raises OSError."""
    words = "-".join(re.findall(r"\w+", facts.title)[:6])[:50] or "chat"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = f"{words}-{now:%Y%m%d-%H%M%S}"
    number, file = 1, folder / f"{stem}.{form}"
    while file.exists():
        number += 1
        file = folder / f"{stem}-{number}.{form}"
    file.write_text(document(facts, rows, form), encoding="utf-8", errors="replace")
    return file


def _markdown(facts: SessionFacts, rows: list[MessageRow]) -> str:
    parts = [f"# {facts.title or 'Chat'}", f"Model: {facts.model}"]
    if facts.system:
        parts.append(f"## System\n\n{facts.system}")
    for row in rows:
        parts.append(f"## {NAMES[row.role]}")
        if row.reasoning.strip():
            quoted = "\n".join(f"> {line}".rstrip() for line in row.reasoning.strip().split("\n"))
            parts.append(f"> Thinking:\n>\n{quoted}")
        stats = row.stats or {}
        if row.role == "tool":
            parts.append(f"{stats.get('tool', 'tool')}, {stats.get('state', 'done')}:\n\n{_fenced(row.content)}")
        elif row.content:
            parts.append(row.content)
        for call in saved_calls(row.stats):
            parts.append(f"Calls the tool {call.name}:\n\n{_fenced(call.arguments)}")
        if row.finish_reason not in (None, "stop"):
            parts.append(f"*({row.finish_reason})*")
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    """The text as it is, in a fence that it can not end."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{fence}\n{text}\n{fence}"


def _json(facts: SessionFacts, rows: list[MessageRow]) -> str:
    # ASCII only, so that half a character, which JSON can say and UTF-8 can not, comes back as it was
    return json.dumps({**asdict(facts), "messages": [asdict(row) for row in rows]}, indent=2) + "\n"
