"""One form of what a client asks, whatever API it came through, and the one way from there to engine requests."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json

from engine.handle import ModelInfo
from engine.request import SEED_MODULUS, Grammar, Request, Sampling
from server.backend import Backend
from server.conversation import Turn
from server.errors import context_overflow, invalid
from server.limits import Limits
from server.tool_grammar import answer_grammar
from server.tools import Tools


@dataclass(frozen=True, slots=True)
class Ask:
    """A checked question to the model.

    Attributes:
        turns: the conversation, as `server.conversation` has it. tools: what may be called.
        max_tokens: most that the answer may have; None means what the settings say, or what the context leaves. More
            than that is cut to it, and so are more `min_tokens`.
        seed: any integer. logprobs: None for none, else how many alternatives beside each token.
        options: of the chat template, beside its switch for thinking.
        answer: what the text of the answer must look like; None leaves it free.
        n: answers wanted. source: who asks, for the screens.
    """

    turns: list[Turn]
    sampling: Sampling
    tools: Tools = field(default_factory=Tools)
    thinking: bool = True
    options: Mapping[str, bool | str] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    answer: Grammar | None = None
    n: int = 1
    source: str = "api"


def prompt_of(backend: Backend, model: ModelInfo, ask: Ask) -> tuple[int, ...]:
    """Token ids of the conversation. Slow for long ones, so it belongs off the event loop.

    Raises:
        ApiError: for more than the context can hold. BadRequestError: from the model's template.
    """
    shown = [tool.shown for tool in ask.tools.offered]
    _refuse_endless([*ask.turns, *shown], model.context, backend.limits)
    prompt = backend.engine.chat.render(
        ask.turns, thinking=ask.thinking, tools=shown or None, options=dict(ask.options)
    )
    if len(prompt) >= model.context:
        raise context_overflow(model.context, len(prompt))
    return prompt


def requests_of(backend: Backend, model: ModelInfo, ask: Ask, request_id: str) -> tuple[Request, ...]:
    """An engine request for each answer wanted, the first with `request_id`. Raises as `prompt_of`."""
    if ask.tools.named() and backend.engine.chat.tool_style is None:
        raise invalid(
            "tools", "this model can not call tools; leave them out, or send a tool_choice that forbids calls"
        )
    prompt = prompt_of(backend, model, ask)
    wanted = backend.settings.value.max_tokens if ask.max_tokens is None else ask.max_tokens
    room = model.context - len(prompt)
    most = room if wanted is None else min(wanted, room)
    first = Request(
        prompt=prompt,
        sampling=ask.sampling,
        max_tokens=None if wanted is None else most,
        stop=ask.stop,
        seed=None if ask.seed is None else ask.seed % SEED_MODULUS,
        ignore_eos=ask.ignore_eos,
        min_tokens=min(ask.min_tokens, most),
        logprobs=ask.logprobs,
        grammar=answer_grammar(backend.engine.chat, model.vocab_size, ask.tools, ask.answer),
        single_call=not ask.tools.parallel,
        source=ask.source,
        id=request_id,
    )
    for name, value in (("ignore_eos", ask.ignore_eos), ("min_tokens", ask.min_tokens)):
        if first.grammar is not None and value:
            raise invalid(name, "can not be set where a format or the tools say where the answer ends")
    first.check(model.vocab_size)
    return tuple(_siblings(first, ask.n))


def _refuse_endless(shown: Sequence[Mapping[str, Any]], context: int, limits: Limits) -> None:
    """Refuse text that can not fit by far, before tokenising it keeps a core busy for minutes."""
    size = len(to_json(shown))
    if size > max(limits.prompt_bytes, 8 * context):
        raise context_overflow(context, size, unit="bytes of text, which is more than can fit")


def _siblings(first: Request, n: int) -> Iterable[Request]:
    """One request an answer. Answer 0 is what n = 1 would give; the others count the seed up."""
    for index in range(n):
        seed = None if first.seed is None else (first.seed + index) % SEED_MODULUS
        yield first if index == 0 else replace(first, seed=seed, id=f"{first.id}-{index}")
