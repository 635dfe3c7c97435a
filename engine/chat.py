"""Messages to prompt ids, by the model's own chat template."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import BadRequestError, ModelBrokenError
from engine.events import SpanKind
from engine.vocabulary import Vocabulary

Message = Mapping[str, Any]
"""An OpenAI-style message: role, content, and for the assistant reasoning_content and tool_calls."""


class ChatFormat:
    """The model's tokenizer and chat template. Stateless after construction, so any thread may use it.

    Attributes:
        eos_ids: tokens that end an answer.
        think_ids, tool_ids: (open, close) ids of `<think>` and `<tool_call>`, or None where the vocabulary has no
            single tokens for them.
    """

    def __init__(self, tokenizer: Any, eos_ids: Collection[int] = ()) -> None:
        """`tokenizer` is a fast transformers tokenizer, as such or as mlx-lm wraps it; `eos_ids` adds to its own."""
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer.backend_tokenizer)
        self._template = _template_source(tokenizer)
        self._control = self._control_pattern()
        own = getattr(tokenizer, "eos_token_ids", None)  # mlx-lm's wrapper has a set of them
        self.eos_ids = frozenset({tokenizer.eos_token_id, *eos_ids, *(own if isinstance(own, set) else ())} - {None})
        self.think_ids = self._vocabulary.pair("<think>", "</think>")
        self.tool_ids = self._vocabulary.pair("<tool_call>", "</tool_call>")

    def render(
        self, messages: Sequence[Message], *, thinking: bool = True, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[int, ...]:
        """Prompt ids of a conversation, ending where the assistant's answer begins.

        Control tokens in the messages (`<|im_end|>`, `<think>` and the like) are encoded as the text they are; only
        the template itself writes real ones. A tool call's arguments may be a JSON object or, as OpenAI sends them,
        its text.

        Args:
            thinking: False asks the template to leave the reasoning out, where it knows how.
        Raises:
            BadRequestError: the template refuses the messages, with its own words; there is no template; or there are
                tools and the template has no place for them.
        """
        if self._template is None:
            raise BadRequestError(
                "This model has no chat template, so it takes plain prompts only, not messages.", "messages"
            )
        if not messages:
            raise BadRequestError("There are no messages; give at least one.", "messages")
        if tools and "tools" not in self._template:
            raise BadRequestError("This model's chat template has no place for tools; ask without them.", "tools")
        try:
            given: list[Any] = [
                list(map(_with_parsed_arguments, messages)),
                [dict(t) for t in tools] if tools else None,
            ]
            mark = self._mark_for(given)
            if mark is not None:
                given = _marked(given, self._control, mark)
            prompt = self._tokenizer.apply_chat_template(
                given[0], tools=given[1], add_generation_prompt=True, tokenize=False, enable_thinking=thinking
            )
        except Exception as error:  # a template is code from the checkpoint, and may fail on a message in any way
            raise BadRequestError(f"The model's chat template refused the messages: {error}", "messages") from error
        return self.encode(prompt) if mark is None else tuple(self._encode_marked(prompt, mark))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a plain prompt: no template, nothing added. Names of special tokens mean those tokens."""
        return tuple(self._vocabulary.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def encode_as_text(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is a special token, whatever it says."""
        return self._vocabulary.encode_as_text(text)

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that mean something beside their text: special ones, and those that open or close a span."""
        special = {token for token, added in self._vocabulary.added.items() if added.special}
        return frozenset({*special, *self.eos_ids, *(self.think_ids or ()), *(self.tool_ids or ())})

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; an id beyond the vocabulary (padding of the weights) adds none."""
        return self._vocabulary.token_bytes(token)

    def starts_in(self, prompt: Sequence[int]) -> SpanKind:
        """What the answer to this prompt begins as: the prompt's last turn may end inside an open block."""
        think, tool = self.think_ids or (-1, -1), self.tool_ids or (-1, -1)
        for token in reversed(prompt):
            if token == think[0]:
                return "reasoning"
            if token == tool[0]:
                return "tool"
            if token in (think[1], tool[1]) or token in self.eos_ids:
                return "text"
        return "text"

    def _control_pattern(self) -> re.Pattern[str]:
        """Matches what only the template may write: special tokens, and other added tokens that it uses."""
        template = self._template or ""
        control = [
            token.content
            for token in self._vocabulary.added.values()
            if not token.content.isspace() and (token.special or token.content in template)
        ]
        return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)")

    def _mark_for(self, given: Any) -> str | None:
        """A character to mark control tokens with that the input does not have; None where nothing needs marking."""
        strings = list(_strings(given))
        if not any(self._control.search(s) for s in strings):
            return None
        used = set().union(*strings)
        return next(c for c in map(chr, range(0xF0000, 0xFFFFE)) if c not in used)

    def _encode_marked(self, prompt: str, mark: str) -> Iterator[int]:
        # A template may cut a string between the two marks of a token; a mark left over is dropped.
        pieces = re.split(f"{mark}({self._control.pattern}){mark}|{mark}", prompt)
        for i, piece in enumerate(pieces):
            if piece:
                yield from self._vocabulary.encode_as_text(piece) if i % 2 else self._vocabulary.encode(piece)


def load_chat_format(path: Path) -> ChatFormat:
    """The chat format of a checked model folder, with every end-of-answer token that its files name.

    Raises ModelBrokenError where the tokenizer can not be built.
    """
    from transformers import PreTrainedTokenizerFast

    try:
        # Not AutoTokenizer: that may build a class's own idea of the vocabulary instead of what tokenizer.json says.
        tokenizer = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except Exception as error:  # the Rust library raises plain Exception
        raise ModelBrokenError(
            f"The tokenizer in {path} can not be loaded: {error}. Copy or download its tokenizer files again."
        ) from error
    return ChatFormat(tokenizer, _named_eos_ids(path))


def _named_eos_ids(path: Path) -> set[int]:
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        file = path / name
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for place in (config, config.get("text_config") or {}):
            named = place.get("eos_token_id")
            listed = named if isinstance(named, list) else [named] if named is not None else []
            if not all(isinstance(token, int) for token in listed):
                raise ModelBrokenError(
                    f"{file} gives eos_token_id as {named!r}; it must be a token id, or a list of them."
                )
            ids.update(listed)
    return ids


def _template_source(tokenizer: Any) -> str | None:
    """The template, or all of them one after another where the model has several."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or None


def _with_parsed_arguments(message: Message) -> dict[str, Any]:
    """Templates go through a tool call's arguments as an object; OpenAI's clients send that object's JSON text."""
    message = dict(message)
    if isinstance(message.get("tool_calls"), Sequence):
        message["tool_calls"] = [_parsed_call(call) for call in message["tool_calls"]]
    return message


def _parsed_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


def _marked(value: Any, control: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        return control.sub(lambda match: mark + match.group() + mark, value)
    if isinstance(value, Mapping):
        return {_marked(key, control, mark): _marked(item, control, mark) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_marked(item, control, mark) for item in value]
    return value
