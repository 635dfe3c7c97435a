"""Messages to prompt ids, by the model's own chat template."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import system_turns
from engine.chat_input import marked, message, plain, strings, unused_characters
from engine.errors import BadRequestError, ModelBrokenError
from engine.events import SpanKind
from engine.text import ToolStyle
from engine.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engine.grammar import GrammarCompiler
    from engine.templates import Template

Message = Mapping[str, Any]
"""An OpenAI-style message: role, content, and for the assistant reasoning_content and tool_calls."""

OPTIONS: Mapping[str, type[bool] | type[str]] = {
    "clear_thinking": bool,
    "enable_thinking": bool,
    "preserve_thinking": bool,
    "reasoning_effort": str,
    "thinking": bool,
}
"""What templates let a caller choose, with its type. Any other name could stand for a part of the template's input."""


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
        self._sources = _template_sources(tokenizer)
        self._template = "\n".join(self._sources.values()) or None
        self._special = dict(tokenizer.special_tokens_map)
        self._known: dict[Template, bool] = {}  # whether a template knows later system turns
        self._compilers: dict[int, GrammarCompiler] = {}
        self._control = self._control_pattern()
        own = getattr(tokenizer, "eos_token_ids", None)  # mlx-lm's wrapper has a set of them
        self.eos_ids = frozenset({tokenizer.eos_token_id, *eos_ids, *(own if isinstance(own, set) else ())} - {None})
        self.think_ids = self._vocabulary.pair("<think>", "</think>")
        self.tool_ids = self._vocabulary.pair("<tool_call>", "</tool_call>")

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, bool | str] | None = None,
    ) -> tuple[int, ...]:
        """Prompt ids of a conversation, ending where the assistant's answer begins.

        Control tokens in the messages (`<|im_end|>`, `<think>` and the like) are encoded as the text they are; only
        the template itself writes real ones. A tool call's arguments may be a JSON object or, as OpenAI sends them,
        its text. A system turn in mid-conversation stays where it is, see `engine.system_turns`.

        Args:
            thinking: False asks the template to leave the reasoning out, where it knows how.
            options: of OPTIONS; those that the template does not know change nothing, see `options`.
        Raises:
            BadRequestError: the template refuses the messages, with its own words; it takes too long over them; there
                is no template; there are tools and the template has no place for them; or an option is none.
        """
        if self._template is None:
            raise BadRequestError(
                "This model has no chat template, so it takes plain prompts only, not messages.", "messages"
            )
        if not messages:
            raise BadRequestError("There are no messages; give at least one.", "messages")
        if tools and "tools" not in self._template:
            raise BadRequestError("This model's chat template has no place for tools; ask without them.", "tools")
        chosen = {"enable_thinking": thinking, **(options or {})}
        for name, value in chosen.items():
            if type(value) is not OPTIONS.get(name):
                path = f"chat_template_kwargs.{name}"
                raise BadRequestError(f"{name!r} is no option of chat templates, or {value!r} no value of it.", path)
        try:
            given = {"messages": list(map(message, messages)), "tools": plain(tools) or None, "options": plain(chosen)}
            prompt, mark = self._rendered(given)
        except BadRequestError:
            raise
        except Exception as error:  # a template is code from the checkpoint, and may fail on a message in any way
            raise BadRequestError(f"The model's chat template refused the messages: {error}", "messages") from error
        return self.encode(prompt) if mark is None else tuple(self._encode_marked(prompt, mark))

    @property
    def options(self) -> frozenset[str]:
        """Names of OPTIONS that the model's template knows."""
        return frozenset(name for template in self._templates.values() for name in OPTIONS if name in template.names)

    def grammars(self, vocab_size: int) -> "GrammarCompiler":
        """The compiler of grammars for a model of this vocabulary; always the same one, so that a grammar that was
        compiled ahead is found again."""
        from engine.grammar import GrammarCompiler

        return self._compilers.setdefault(vocab_size, GrammarCompiler(self, vocab_size))

    @cached_property
    def _compiled(self) -> "dict[str, Template] | str":
        """Templates by name, or what is wrong with one of them: finding it out again might take as long."""
        from engine.templates import Template

        try:
            return {name: Template(source) for name, source in self._sources.items()}
        except Exception as error:  # a source that is no template, or that nests too deep to be compiled
            return f"The model's chat template can not be used: {error}"

    @property
    def _templates(self) -> "dict[str, Template]":
        if isinstance(self._compiled, str):
            raise BadRequestError(self._compiled, "messages")
        return self._compiled

    def _rendered(self, given: dict[str, Any]) -> tuple[str, str | None]:
        """The prompt's text, and the mark around control tokens in it that are text; None where there are none."""
        mark = None
        if any(self._control.search(string) for string in strings(given)):
            mark = next(unused_characters(given))
            given = marked(given, self._control, mark)
        template = self._templates.get("tool_use" if given["tools"] else "default") or self._templates["default"]

        def render(messages: Sequence[Message]) -> str:
            return template.render(
                **{**self._special, **given["options"]},
                messages=messages, tools=given["tools"], documents=None, add_generation_prompt=True,
            )  # fmt: skip

        messages = given["messages"]
        if not system_turns.later(messages) or self._knows_later_system_turns(template):
            return render(messages), mark
        return system_turns.rendered_in_place(render, messages, unused_characters(given)), mark

    def _knows_later_system_turns(self, template: "Template") -> bool:
        if template not in self._known:
            self._known[template] = system_turns.known_to(
                lambda messages: template.render(**self._special, messages=messages, add_generation_prompt=True)
            )
        return self._known[template]

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

    @property
    def tool_style(self) -> ToolStyle | None:
        """How the model writes tool calls, by its template; None where it can not call tools, or not with tags."""
        if self.tool_ids is None or self._template is None or "tools" not in self._template:
            return None
        return "xml" if "<function=" in self._template else "json"

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


def _template_sources(tokenizer: Any) -> dict[str, str]:
    """Sources of the model's templates by name; one that is alone is named default."""
    template = tokenizer.chat_template
    return dict(template) if isinstance(template, dict) else {"default": template} if template else {}
