"""Which tokens a grammar lets come next: compiled and followed on the host, with llguidance. No mlx.

Where the grammar leaves one way on in bytes, llguidance lets only the tokenizer's own tokens for them pass: those are
forced, and free drafts. A mask is a function of the grammar and of the tokens so far, so the text that is drawn under
it does not depend on how it was drafted.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.chat import ChatFormat
from engine.errors import BadRequestError
from engine.grammar_guard import GrammarGuard
from engine.request import Grammar, GrammarKind

# A blank at most behind a colon or a comma, as Python's json writes them: more freedom lets a model write blanks for
# ever, less forces on it what it never saw.
_JSON = {
    "whitespace_flexible": False,
    "key_separator": ":[ ]?",
    "item_separator": ",[ ]?",
    "whitespace_pattern": None,  # these three so that a schema can not have them: what is not kept to is refused
    "lenient": False,
    "coerce_one_of": False,
}
LIMITS = LLParserLimits(verbose_errors=False, max_lexer_states=50_000)
"""Its own limits but for the states, which take up to 2 kB each: a mask took 0.14 s where the grammar was made to be
ambiguous, 15 microseconds for a JSON schema. What compiling may take is `engine.grammar_guard`'s to say."""
_NAMES: dict[GrammarKind, str] = {
    "json": "JSON grammar",
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "Lark grammar",
}
_ERROR_SHOWN = 400  # characters
MOST_KEPT = 32  # compiled grammars; those of requests between being read and being submitted must be among them
_TAG_BREAKS = 2  # behind `</think>`


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary. Any thread may use it.

    What llguidance needs of the vocabulary is made when the first grammar comes (0.05 s for 6,000 tokens). The last
    grammars are kept: compiling one takes milliseconds to seconds, a copy 20 microseconds, so one that was compiled
    ahead (where it may take its time) costs its request nothing.
    """

    def __init__(self, chat: ChatFormat, vocab_size: int) -> None:
        self._chat = chat
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        special = [
            (token, chat.token_bytes(token).decode("utf-8", "replace"))
            for token in chat.special_ids
            if token < vocab_size
        ]
        self._guard = GrammarGuard(vocab_size, special)
        self._line_breaks: dict[int, int] = {}
        self._kept: OrderedDict[Grammar, LLMatcher | str] = OrderedDict()  # a text says what is wrong with it

    def compile(self, grammar: Grammar, prompt: Sequence[int]) -> "Constraint":
        """The start of an answer to this prompt.

        Raises BadRequestError, with what is wrong, for a grammar that can not be compiled, is too complex, or lets
        no answer pass.
        """
        with self._lock:
            known = self._kept.get(grammar)
        if known is None:
            known = self._compiled(grammar)
        with self._lock:
            self._kept[grammar] = known
            self._kept.move_to_end(grammar)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            if isinstance(known, str):
                raise BadRequestError(known, "grammar")
            matcher = known.deep_copy()
        reasoning = self._chat.starts_in(prompt) == "reasoning"
        return Constraint(matcher, self._chat, self._vocab_size, reasoning, self._line_breaks)

    def _compiled(self, grammar: Grammar) -> LLMatcher | str:
        """The start of any answer, or what is wrong with the grammar."""
        name = _NAMES[grammar.kind]
        try:
            source = _source(grammar)
        except ValueError as error:  # not JSON at all, or nested too deep
            return f"The {name} can not be read: {error}."
        if grammar.kind != "json" and not self._guard.passes(source):
            return f"The {name} is too complex to be compiled; simplify it."
        matcher = LLMatcher(self._vocabulary(), source, log_level=0, limits=LIMITS)
        some = not matcher.is_error() and any(matcher.compute_bitmask())
        problem = _first_of(matcher.get_error())
        if problem.startswith("NoExtension") or not (some or problem):
            return f"The {name} lets no answer pass; change it so that one does."
        if problem:
            return f"The {name} can not be used: {problem}"
        return matcher

    def _vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                words = _Words(self._chat, self._vocab_size)
                self._tokenizer = LLTokenizer(words, eos_token=sorted(self._chat.eos_ids))  # type: ignore[arg-type]
                words.split = self._tokenizer.greedy_tokenize
                self._line_breaks = {t: len(b) for t, b in enumerate(words.tokens) if b in (b"\n", b"\n\n")}
            return self._tokenizer


class Constraint:
    """One answer's place in its grammar. Where the prompt ends inside reasoning, the grammar begins behind that; until
    then everything passes but the end of the answer and a tool call, which would leave it without its grammar.

    Up to two line breaks behind the end of reasoning belong to the tag, as in `engine.text.TextStream`: templates write
    them, so a model that was kept from them would begin as it never has.

    Only the engine thread may use it, once the request is submitted.

    Attributes:
        error: why the grammar can not be followed any further; None while all is well.
    """

    def __init__(
        self, matcher: LLMatcher, chat: ChatFormat, vocab_size: int, reasoning: bool, line_breaks: Mapping[int, int]
    ) -> None:
        """`line_breaks` are the tokens of nothing else, with how many each has."""
        self.error: str | None = None
        self._matcher = matcher
        self._eos_ids = chat.eos_ids
        self._width = 4 * -(-vocab_size // 32)
        self._anything = b"\xff" * self._width
        self._think_end = chat.think_ids[1] if reasoning and chat.think_ids is not None else None
        kept_out = set(chat.eos_ids) | ({chat.tool_ids[0]} if chat.tool_ids is not None else set())
        self._reasoning_mask = _without(self._anything, kept_out)
        self._reasoning = self._think_end is not None
        self._breaks = 0  # line breaks that may come yet before the grammar begins
        self._line_breaks = line_breaks
        self._next: bytes | None = None  # the mask of the next token, where it is known

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing may follow it."""
        outside = not self._reasoning and not self._breaks
        return outside and self._matcher.is_stopped() and not self._matcher.is_error()

    def forced(self) -> list[int]:
        """The tokens that must come next, where only one way leads on."""
        if self._reasoning or self._breaks or self.error is not None:
            return []
        return list(self._matcher.compute_ff_tokens())

    def take(self, token: int) -> None:
        """Go on by a token that the answer got."""
        self._next = None
        self._advance(token)

    def masks(self, drafts: Sequence[int]) -> list[bytes]:
        """Masks along the drafts: what may come behind none of them, behind the first, and so on.

        There are len(drafts) + 1, a bit a token, least significant first, in whole 32-bit words. Places that can not be
        reached, behind a draft that does not pass or ends the answer, let everything pass.
        """
        if self._next is None:
            self._next = self._mask()
        masks, place, taken = [self._next], (self._reasoning, self._breaks), 0
        for draft in drafts:
            if not _passes(masks[-1], draft) or draft in self._eos_ids:
                break
            taken += self._advance(draft)
            if self.complete or self.error is not None:
                break
            masks.append(self._mask())
        if taken and self.error is None:
            self._matcher.rollback(taken)
        self._reasoning, self._breaks = place
        return masks + [self._anything] * (len(drafts) + 1 - len(masks))

    def _advance(self, token: int) -> int:
        """Go on by a token; how many the matcher took, 0 or 1."""
        if self._reasoning:
            self._reasoning = token != self._think_end
            self._breaks = 0 if self._reasoning else _TAG_BREAKS
            return 0
        if self._line_breaks.get(token, self._breaks + 1) <= self._breaks:
            self._breaks -= self._line_breaks[token]
            return 0
        self._breaks = 0
        if self.error is not None or token in self._eos_ids:
            return 0
        if not self._matcher.consume_token(token):
            self._fail()
            return 0
        return 1

    def _mask(self) -> bytes:
        if self._reasoning:
            return self._reasoning_mask
        if self.error is None:
            mask = self._matcher.compute_bitmask()[: self._width]
            if any(mask):
                return _with(mask, [token for token, count in self._line_breaks.items() if count <= self._breaks])
            self._fail()
        return self._anything

    def _fail(self) -> None:
        why = _first_of(self._matcher.get_error()) or "no token of this model's goes on from here"
        self.error = f"The answer can not be kept to its grammar any further: {why}. Simplify the grammar."


class _Words:
    """The model's vocabulary as llguidance asks for it: the very bytes that the text is made of."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, chat: ChatFormat, vocab_size: int) -> None:
        self._chat = chat
        self.eos_token_id = min(chat.eos_ids)
        self.tokens = [chat.token_bytes(token) for token in range(vocab_size)]
        self.special_token_ids = sorted(token for token in chat.special_ids if token < vocab_size)
        self.split: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text; the longest ones that fit, where the tokenizer would change its bytes."""
        ids = self._chat.encode_as_text(text)
        return ids if b"".join(map(self._chat.token_bytes, ids)) == text.encode() else self.split(text)


def _source(grammar: Grammar) -> str:
    """The grammar as llguidance reads it. Raises ValueError where its text is not what its kind says."""
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.text)
    if grammar.kind == "lark":
        return LLMatcher.grammar_from_lark(grammar.text)
    schema = '{"type": "object"}' if grammar.kind == "json" else grammar.text
    return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON)  # type: ignore[arg-type]  # all keys are optional


def _passes(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _without(mask: bytes, tokens: set[int]) -> bytes:
    bits = bytearray(mask)
    for token in tokens:
        bits[token >> 3] &= ~(1 << (token & 7)) & 0xFF
    return bytes(bits)


def _with(mask: bytes, tokens: Sequence[int]) -> bytes:
    if not tokens:
        return mask
    bits = bytearray(mask)
    for token in tokens:
        bits[token >> 3] |= 1 << (token & 7)
    return bytes(bits)


def _first_of(error: str) -> str:
    """What llguidance says, without the dump of its state, and not for ever."""
    return re.split("<(?:state|backtrace|non-verbose)", error)[0].strip()[:_ERROR_SHOWN]
