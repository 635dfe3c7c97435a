"""The bundled model with room for an agent's prompts, told what to say: tokens, cache and cancels are the engine's own.

It is too small to follow an agent's prompt of 20,000 tokens, so a grammar with one sentence in it leads it.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.engine import ThreadEngine
from engine.handle import EventSink
from engine.models.locate import ASSETS
from engine.request import Grammar, Request
from server.lark import literal

CONTEXT = 131_072
FOR_EVER = "Count for ever"
"""A prompt with these words is answered without an end."""
USERS_TURN = "<|im_start|>user\n"


@dataclass(frozen=True)
class Coaching:
    """What is said: a call of this tool to a user's words, and `answer` to the tool's result and where the tool is not
    offered. `title` is what a request for JSON without tools gets."""

    tool: str
    arguments: Mapping[str, str]
    answer: str = "The tool has run."
    title: str = '{"title": "A test"}'


def roomy_demo(folder: Path) -> Path:
    """A copy of the bundled model that takes long prompts, and answers at once: what it thinks has no end there."""
    model = Path(shutil.copytree(ASSETS / "demo-13m", folder / "demo-13m"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    template = (model / "chat_template.jinja").read_text()
    open_thinking = "enable_thinking is defined and enable_thinking is false"
    assert open_thinking in template
    (model / "chat_template.jinja").write_text(template.replace(open_thinking, "true"))
    return model


class CoachedEngine:
    """An EngineHandle: the engine given to it, with each request led to what `coaching` says."""

    def __init__(self, engine: ThreadEngine) -> None:
        self._engine = engine
        self.coaching = Coaching("bash", {"command": "true"})
        self.prompts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: Request, on_event: EventSink) -> None:
        prompt = self._engine.chat.decode(request.prompt)
        self.prompts.append(prompt)
        self._engine.submit(self._led(request, prompt), on_event)

    def _led(self, request: Request, prompt: str) -> Request:
        said = self.coaching
        turn = prompt.rpartition(USERS_TURN)[2]
        if FOR_EVER in turn and request.grammar is None:
            return replace(request, ignore_eos=True, max_tokens=None)
        if request.grammar is not None and f'"name": "{said.tool}"' not in prompt:
            text = literal(said.title)
        elif turn.startswith("<tool_response>") or f'"name": "{said.tool}"' not in prompt:
            text = literal(said.answer)
        else:
            assert self._engine.chat.tool_ids is not None
            opened, closed = self._engine.chat.tool_ids
            parts = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in said.arguments.items())
            call = literal(f"\n<function={said.tool}>\n{parts}</function>\n")
            text = f"<[{opened}]> {call} <[{closed}]>"
        return replace(request, grammar=Grammar("lark", f"start: {text}"))
