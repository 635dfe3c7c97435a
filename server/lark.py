"""Writes a grammar down in llguidance's dialect of Lark. Names in lower case are rules, in upper case terminals."""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, regex_to_lark

_COMPACT = {"whitespace_flexible": False, "key_separator": ":[ ]?", "item_separator": ",[ ]?"}
"""JSON as `engine.grammar` has it: in one line, with a blank at most behind a colon or a comma."""


def literal(text: str) -> str:
    """This very text. Lark's strings are JSON's."""
    return json.dumps(text)


def regex(pattern: str, ecma: bool = True) -> str:
    """A regular expression that a text as a whole must match, in the dialect of ECMA (JSON schemas) or of Rust."""
    return f"/{regex_to_lark(pattern, 'dw' if ecma else '')}/"


def can_be_kept_to(pattern: str) -> bool:
    """Whether there is a terminal for a pattern: none looks around, or back at what it has matched."""
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(f"start: {regex(pattern)}"))


class Lark:
    """A grammar that grows. What is written twice is one rule."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def rule(self, body: str) -> str:
        """The name of a rule."""
        return self._named("r", body, "")

    def ending(self, body: str) -> str:
        """The name of a rule of one terminal that takes as little text as it can: it ends where it may end."""
        return self._named("r", body, "[lazy]")

    def terminal(self, body: str) -> str:
        """The name of a terminal, which is read as one piece: as fast as a regular expression, whatever it holds."""
        return self._named("T", body, "")

    def json(self, schema: Mapping[str, Any], strict: bool = True) -> str:
        """The name of a rule for JSON that fits a schema. Where it is not strict, what can not be kept to is left out.

        The schema's own `x-guidance` would be directions to the compiler, which are not the client's to give.
        """
        options = _COMPACT if strict else {**_COMPACT, "lenient": True}
        return self.rule("%json " + json.dumps({**schema, "x-guidance": options}))

    def nested(self, grammar: str) -> str:
        """The name of a rule for a whole grammar in this dialect, whose names are its own."""
        return self.rule("%lark {\n" + grammar + "\n}")

    def text(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *(f"{name}: {body[2:]}" for body, name in self._names.items())])

    def _named(self, kind: str, body: str, options: str) -> str:
        key = f"{kind}{'l' if options else ' '}{body}"
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._names)}{options}"
        return self._names[key].removesuffix(options)
