"""A completion's body to engine requests: every field honoured, refused with its path, or listed as ignored."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from engine.handle import ModelInfo
from engine.request import SEED_MODULUS, Request
from server.backend import Backend
from server.chat_request import StreamOptions
from server.errors import ApiError, invalid
from server.fields import SamplingFields
from server.jsonbody import Whole, check, parse
from server.models import require_named, served
from server.text_inputs import each, token_id

MOST_ROWS = 64
"""Answers of one request. Each takes a place in the engine's queue, which has about twice as many by default."""
MOST_SCORED = 1 << 17
"""Prompt tokens of one request that are told with their numbers, where no single prompt has more. Each takes about 2 kB
on its way into the answer."""
MOST_LOGPROBS = 5  # as in OpenAI's API
DEFAULT_MAX_TOKENS = 16  # likewise


class CompletionFields(SamplingFields):
    """The body of POST /v1/completions."""

    model: str | None = None
    prompt: Any
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Whole | None = Field(None, ge=0, le=MOST_LOGPROBS)
    best_of: Whole | None = Field(None, ge=1)
    max_tokens: Whole | None = Field(None, ge=0)
    stream: bool | None = None
    stream_options: StreamOptions | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model gets it, with the `text` that echo gives back: the one sent, or what the ids sent say."""

    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A checked completion.

    Attributes:
        prompts, n: each prompt has n answers. requests: one an answer, those of a prompt beside each other; the first
            has the id that the client sees. ignored: fields that change nothing.
    """

    model: str
    prompts: tuple[Prompt, ...]
    n: int
    requests: tuple[Request, ...]
    echo: bool
    logprobs: bool
    stream: bool
    include_usage: bool
    usage_so_far: bool
    ignored: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.requests[0].id

    def prompt(self, index: int) -> Prompt:
        """The prompt of the answer at that index."""
        return self.prompts[index // self.n]


def plan_completion(backend: Backend, raw: bytes, completion_id: str, source: str) -> CompletionPlan:
    """Check a body and encode its prompts. Slow for long prompts, so it belongs off the event loop.

    Raises:
        ApiError: for all that can not be run.
    """
    model = served(backend)
    fields = check(CompletionFields, parse(raw))
    require_named(fields.model, model, backend.settings.value)
    n = fields.n or 1
    _refuse_unbuilt(fields, n)
    given = each(fields.prompt, "prompt")
    if len(given) * n > MOST_ROWS:
        raise invalid("prompt", f"{len(given)} prompts with n {n} ask for more than {MOST_ROWS} answers; send fewer")
    prompts = tuple(_prompt(backend, model, value, path) for path, value in given)
    if fields.echo and fields.logprobs is not None:
        _refuse_endless(n * sum(len(prompt.ids) for prompt in prompts), model.context)
    return CompletionPlan(
        model=model.name,
        prompts=prompts,
        n=n,
        requests=tuple(_requests(fields, model, prompts, n, completion_id, source)),
        echo=bool(fields.echo),
        logprobs=fields.logprobs is not None,
        stream=bool(fields.stream),
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        usage_so_far=bool(fields.stream_options and fields.stream_options.usage_so_far),
        ignored=tuple(_ignored(fields)),
    )


def _refuse_unbuilt(fields: CompletionFields, n: int) -> None:
    if fields.suffix:
        raise invalid("suffix", "this model continues texts and can not fill in between two; leave it out")
    if fields.best_of is not None and fields.best_of != n:
        raise invalid("best_of", f"is {fields.best_of} and n is {n}; every answer made is given, so both must be equal")
    if fields.max_tokens == 0 and not fields.echo:
        raise invalid("max_tokens", "0 leaves nothing to answer with, unless echo asks for the prompt and its logprobs")


def _refuse_endless(scored: int, context: int) -> None:
    most = max(MOST_SCORED, context)
    if scored > most:
        raise invalid("prompt", f"has {scored} tokens to score, and a request may have {most}; send fewer prompts")


def _prompt(backend: Backend, model: ModelInfo, given: str | list[object], path: str) -> Prompt:
    """One prompt, encoded or checked. A text that can not fit by far is refused before tokenising it takes minutes."""
    chat = backend.engine.chat
    if isinstance(given, str):
        size = len(given.encode())
        if size > max(backend.limits.prompt_bytes, 8 * model.context):
            raise _too_long(path, model.context, f"{size} bytes of text, which is more than can fit")
        prompt = Prompt(chat.encode(given), given)
        _check_length(len(prompt.ids), model.context, path)
        return prompt
    _check_length(len(given), model.context, path)
    size = model.vocab_size
    ids = tuple(token_id(token, f"{path}[{place}]", size, "a token id") for place, token in enumerate(given))
    return Prompt(ids, chat.decode(ids))


def _check_length(tokens: int, context: int, path: str) -> None:
    if not tokens:
        raise invalid(path, "is empty; nothing is put in front of a prompt, so it needs at least one token")
    if tokens >= context:
        raise _too_long(path, context, f"{tokens} tokens")


def _too_long(path: str, context: int, amount: str) -> ApiError:
    return ApiError(
        400,
        f"This model's maximum context length is {context} tokens. However, your prompt resulted in {amount}.",
        param=path,
        code="context_length_exceeded",
    )


def _requests(
    fields: CompletionFields, model: ModelInfo, prompts: Sequence[Prompt], n: int, completion_id: str, source: str
) -> Iterator[Request]:
    """One request an answer. Each prompt gets what it would get alone; its answers count the seed up."""
    wanted = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    scored = fields.logprobs if fields.echo else None
    first = Request(
        prompt=(),
        sampling=fields.sampling(model.sampling, model.vocab_size),
        stop=fields.stops(),
        ignore_eos=bool(fields.ignore_eos),
        min_tokens=fields.least(wanted),
        logprobs=fields.logprobs,
        prompt_logprobs=0 if scored is None and not wanted else scored,
        raw=True,
        source=source,
    )
    for place, prompt in enumerate(prompts):
        max_tokens = min(wanted, model.context - len(prompt.ids))
        min_tokens = min(first.min_tokens, max_tokens)
        for number in range(n):
            index = place * n + number
            yield replace(
                first,
                prompt=prompt.ids,
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                seed=None if fields.seed is None else (fields.seed + number) % SEED_MODULUS,
                id=f"{completion_id}-{index}" if index else completion_id,
            )


def _ignored(fields: CompletionFields) -> Iterable[str]:
    yield from fields.model_extra or ()
    if fields.stream_options is not None:
        yield from (f"stream_options.{name}" for name in fields.stream_options.model_extra or ())
