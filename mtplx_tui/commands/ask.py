"""`mtplx-tui ask`: one question, one answer."""

import dataclasses
import sys
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import (
    DepthOption,
    EngineOptions,
    JsonOption,
    KvBitsOption,
    ModelOption,
    ModeOption,
    ProfileOption,
    UsageError,
)

if TYPE_CHECKING:
    from engine.collect import Completion
    from engine.engine import ThreadEngine
    from engine.events import Event, TokenEvent
    from engine.request import Request, Sampling

CANCEL_SECONDS = 2.0
"""How long an interrupted answer may take to end; the engine stops after the step that now runs."""


def ask(
    prompt: Annotated[str, typer.Argument(help="The question; - reads it from standard input.")],
    model: ModelOption = None,
    mode: ModeOption = "mtp",
    depth: DepthOption = "auto",
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer, at any depth.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy. Default: the model's own.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens that make up this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Drop tokens below this share of the likeliest one.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Default: as many as the context holds.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Ends the answer; may be given again.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    no_think: Annotated[bool, typer.Option("--no-think", help="Ask the model to answer without reasoning.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Ask one question and print the answer as it comes.

    On a terminal the model's reasoning is shown dimmed before the answer; into a pipe goes the answer alone.
    """
    from engine.request import Request

    changes = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    sampling = {name: value for name, value in changes.items() if value is not None}
    config = EngineOptions(model, mode, depth, profile, kv_bits).config()
    # the prompt's tokens come when there is a model to render them
    request = Request((0,), max_tokens=max_tokens, stop=tuple(stop or ()), seed=seed, source="ask")
    question = Question(_read(prompt), system, not no_think, request, sampling)
    question.check()
    engine = common.start_engine(config)
    try:
        return _answer(engine, question, as_json)
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked for, before there is a model to ask."""

    text: str
    system: str | None
    thinking: bool
    request: "Request"
    """All but its prompt and sampling."""
    sampling: dict[str, Any]
    """What was given; the model's own settings fill the rest."""

    def check(self) -> None:
        """Raise UsageError or BadRequestError for what no model could run, before one is loaded."""
        from engine.request import Sampling

        if not self.text.strip():
            raise UsageError("The prompt is empty; write the question after ask, or - to read it from standard input.")
        for name, text in (("prompt", self.text), ("--system text", self.system or "")):
            with suppress(UnicodeEncodeError):
                text.encode()
                continue
            raise UsageError(f"The {name} is not valid UTF-8.")
        dataclasses.replace(self.request, sampling=Sampling(**self.sampling)).check(vocab_size=1)

    def messages(self) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.text}]

    def bind(self, engine: "ThreadEngine") -> "Request":
        """The request as this model takes it."""
        sampling: Sampling = dataclasses.replace(engine.model.sampling, **self.sampling)
        prompt = engine.chat.render(self.messages(), thinking=self.thinking)
        return dataclasses.replace(self.request, prompt=prompt, sampling=sampling)


def _answer(engine: "ThreadEngine", question: Question, as_json: bool) -> int:
    from engine.collect import Answer
    from engine.events import QueuedEvent, TokenEvent

    request = question.bind(engine)
    events: SimpleQueue[Event] = SimpleQueue()
    page = Page(silent=as_json)
    answer = Answer()
    seed = 0
    completion = None
    interrupted = False
    engine.submit(request, events.put)
    try:
        while completion is None:
            event = common.next_event(events)
            if isinstance(event, QueuedEvent):
                seed = event.seed
            elif isinstance(event, TokenEvent):
                page.show(event)
            completion = answer.add(event)
    except KeyboardInterrupt:
        interrupted = True
        engine.cancel(request.id)
        with suppress(Empty):
            while completion is None:
                completion = answer.add(events.get(timeout=CANCEL_SECONDS))
    finally:
        page.end()
    if completion is not None:
        if as_json:
            common.print_json(_report(completion, engine.model.name, seed))
        elif completion.error:
            common.say(completion.error)
    if interrupted:
        return exit_codes.INTERRUPTED
    return exit_codes.FAILED if completion is None or completion.error else exit_codes.OK


def _report(completion: "Completion", model: str, seed: int) -> dict[str, Any]:
    """The JSON of `ask`; other programs read these names."""
    failed = {"error": {"type": "generation", "message": completion.error, "param": None}} if completion.error else {}
    return failed | {
        "text": completion.text,
        "reasoning": completion.reasoning,
        "finish_reason": completion.finish_reason,
        "model": model,
        "seed": seed,
        "usage": dataclasses.asdict(completion.usage),
        "stats": dataclasses.asdict(completion.stats),
    }


class Page:
    """The answer on standard output: dimmed reasoning on a terminal only, and no control characters there."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._tty = sys.stdout.isatty()
        self._kind = ""
        self._last = ""

    def show(self, event: "TokenEvent") -> None:
        if self._silent:
            return
        for span in event.spans:
            if span.kind == "reasoning" and not self._tty:
                continue
            if span.kind != self._kind:
                self._turn(span.kind)
            text = span.text
            if self._tty:
                from mtplx_tui.glyphs import mask

                text = mask(text)
            self._write(text)
        sys.stdout.flush()

    def end(self) -> None:
        """Finish the last line and leave plain colours behind, however the answer ended."""
        if self._silent:
            return
        with suppress(OSError):  # it failed before, and that is being reported
            self._turn("")
            if self._last not in ("", "\n"):
                self._write("\n")
            sys.stdout.flush()

    def _turn(self, kind: str) -> None:
        """Start another channel: reasoning is dim, and a blank line stands between two."""
        if self._tty and self._kind == "reasoning":
            sys.stdout.write("\x1b[0m")
        if self._tty and self._kind and kind:
            self._write("\n\n" if self._last != "\n" else "\n")
        if self._tty and kind == "reasoning":
            sys.stdout.write("\x1b[2m")
        self._kind = kind

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        self._last = text[-1:] or self._last


def _read(prompt: str) -> str:
    if prompt != "-":
        return prompt
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"Standard input is not UTF-8 text: byte 0x{data[error.start]:02x} at position {error.start}."
        ) from None
