"""What a caller asks of the engine: plain frozen data, checked before it may reach the engine thread."""

import math
import secrets
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import BadRequestError

AcceptRule = Literal["rejection", "block", "coupled"]
Priority = Literal["interactive", "batch"]
GrammarKind = Literal["json", "json_schema", "regex", "lark"]

MAX_DEPTH = 8
MAX_STOPS = 16
MAX_STOP_BYTES = 1024
MAX_TOP_LOGPROBS = 20
MAX_GRAMMAR_BYTES = 1 << 16
"""A schema of 5,000 properties, 130 kB, took 3 s to compile; time grows with the square of their number."""
SEED_MODULUS = 2**64


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is drawn from the model's logits.

    Filters apply in this order, as OpenAI, Hugging Face and vLLM do (mlx-lm puts temperature last):
    bias and penalties, temperature, top-k, top-p, min-p, renormalise.

    Attributes:
        temperature: 0 is greedy; 1 is the model's own distribution.
        top_k: keep the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose mass reaches top_p; 1 keeps all.
        min_p: drop tokens below min_p times the likeliest one's probability; 0 drops none.
        repetition_penalty: divides (multiplies, where negative) the logits of tokens in prompt or output.
        presence_penalty: subtracted once from the logits of tokens in the output.
        frequency_penalty: subtracted once per occurrence in the output.
        logit_bias: (token id, bias) pairs added to the logits.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def check(self, vocab_size: int) -> None:
        """Raise BadRequestError where a value is out of its range."""
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, 2**31 - 1)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for token, bias in self.logit_bias:
            if not 0 <= token < vocab_size:
                raise BadRequestError(
                    f"logit_bias names token {token}; this model's ids are 0 to {vocab_size - 1}.", "logit_bias"
                )
            _in_range("logit_bias", bias, -100.0, 100.0)

    @property
    def penalised(self) -> bool:
        """True where the logits depend on the tokens so far, or on a bias."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias)
        )


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer must look like, as a whole.

    The grammar governs the answer alone: reasoning that the prompt has opened stays free. The answer ends where nothing
    may follow; where it may end or go on, the model decides.

    Attributes:
        kind: json is any JSON object. JSON is written in one line, with a blank at most behind a colon or a comma.
        text: the JSON schema, the regular expression or the Lark grammar (in llguidance's dialect); for json empty.
    """

    kind: GrammarKind
    text: str = ""

    def check(self) -> None:
        """Raise BadRequestError for a text that is not there, or too long; what it says is the compiler's to check."""
        size = len(self.text.encode("utf-8", "surrogatepass"))
        if size > MAX_GRAMMAR_BYTES:
            raise BadRequestError(f"The grammar has {size} bytes; at most {MAX_GRAMMAR_BYTES} are taken.", "grammar")
        if not self.text and self.kind in ("json_schema", "lark"):
            raise BadRequestError(f"A grammar of kind {self.kind} needs its text, and there is none.", "grammar")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to be continued.

    Attributes:
        prompt: token ids, at least one.
        depth: drafts a step; None lets the engine's policy choose, 0 is autoregressive decoding.
        seed: same seed, same text, at any depth and beside any neighbours; None draws a fresh one.
        accept_rule: None means coupled for a seeded request and the profile's rule otherwise.
        max_tokens: None means as many as the context holds.
        min_tokens: before so many the token that ends a turn ends nothing and is a token like any other; `ignore_eos`
            says so of all of them.
        stop: texts that end the answer; none of their characters is delivered.
        grammar: what the answer must look like; None leaves it free.
        logprobs: None for none, else how many alternatives to report beside each token's own.
        prompt_logprobs: the same for each prompt token but the first. The whole prompt is read then, cached or not.
            With it max_tokens may be 0: the prompt is scored and nothing is made.
        single_call: the answer ends behind its first finished tool call.
        raw: tags of thinking and tool calls are text like any other, so the text is all that the model wrote.
        cache_scope: prefixes are shared with requests of this scope alone, so that nobody can find out by the time an
            answer takes what others have asked.
        priority: interactive requests are begun before batch ones that wait.
        source: who asks, for the screens: chat, api, ask, bench, verify.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    seed: int | None = None
    depth: int | None = None
    accept_rule: AcceptRule | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    single_call: bool = False
    raw: bool = False
    cache_scope: str = ""
    priority: Priority = "interactive"
    source: str = "api"
    id: str = field(default_factory=lambda: "r" + secrets.token_hex(8))

    def check(self, vocab_size: int) -> None:
        """Raise BadRequestError where the engine could not run this as it stands."""
        if not self.prompt:
            raise BadRequestError("The prompt is empty; give at least one token.", "prompt")
        bad = next((t for t in self.prompt if not 0 <= t < vocab_size), None)
        if bad is not None:
            raise BadRequestError(
                f"The prompt holds token {bad}; this model's ids are 0 to {vocab_size - 1}.", "prompt"
            )
        least = 1 if self.prompt_logprobs is None else 0
        if self.max_tokens is not None and self.max_tokens < least:
            raise BadRequestError(f"max_tokens is {self.max_tokens}; it must be at least {least}.", "max_tokens")
        if self.min_tokens:
            _in_range("min_tokens", self.min_tokens, 0, math.inf if self.max_tokens is None else self.max_tokens)
        if self.depth is not None:
            _in_range("depth", self.depth, 0, MAX_DEPTH)
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.prompt_logprobs is not None:
            _in_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_TOP_LOGPROBS)
        if len(self.stop) > MAX_STOPS:
            raise BadRequestError(f"{len(self.stop)} stop strings were given; at most {MAX_STOPS} are taken.", "stop")
        for stop in self.stop:
            if not stop or len(stop.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
                raise BadRequestError(f"A stop string must have 1 to {MAX_STOP_BYTES} bytes.", "stop")
        self.sampling.check(vocab_size)
        if self.grammar is not None:
            self.grammar.check()
            if self.ignore_eos or self.min_tokens:
                name = "ignore_eos" if self.ignore_eos else "min_tokens"
                raise BadRequestError(f"A grammar says where the answer ends, so {name} can not be set.", "grammar")


def _in_range(name: str, value: float, low: float, high: float, open_low: bool = False) -> None:
    ok = math.isfinite(value) and value <= high and (value > low if open_low else value >= low)
    if not ok:
        bound = f"above {low:g}" if open_low else f"at least {low:g}"
        raise BadRequestError(f"{name} is {value}; it must be {bound} and at most {high:g}.", name)
