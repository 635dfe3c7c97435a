"""The arguments of an XML tool call as a grammar: where `server.call_xml` and the grammar read a text, they agree.

A string stands there as it is, so its rules (enum, const, pattern, lengths, formats) are rules of the text; any other
value is JSON. A parameter may come once, in the order of the schema; those that the schema does not name come last.

A value ends at the first closing tag that another parameter, or the function's own closing tag, follows. Which of the
two may follow is part of how the value is written down, because a text can be told from what closes it only there.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.request import Grammar
from server.call_values import ANY, STRING, types_of
from server.lark import Lark, can_be_kept_to, literal, regex
from server.schemas import moved, refers, target

_MORE = "\n</parameter>\n<parameter="
_LAST = "\n</parameter>\n</function>"
_FREE_MORE = r"/(?s:.*)\n?<\/parameter>\s*<parameter=/"
_FREE_LAST = r"/(?s:.*)\n?<\/parameter>\s*<\/function>/"
_ANYTHING = "/(?s:.*)/"
_NO_PARAMETER = rf"{_ANYTHING} & ~/(?s:.*)<\/parameter>\s*<parameter=(?s:.*)/"
_NO_CLOSE = r"~/(?s:.*)<\/parameter>(?s:.*)/"
_NO_JSON = r"~/\s*([\[{\-0-9](?s:.*)|(true|false|null)\s*)/"
"""Texts of which none is JSON, but for a string, whatever it may be as a whole."""

_NO_KEY = "\n"  # a name that no parameter can have, so its schema is that of all that have none of their own
_TEXT_RULES = frozenset({"format", "maxLength", "minLength", "pattern"})
_OBJECT_RULES = frozenset({"$defs", "additionalProperties", "definitions", "properties", "required", "type"})
_DATE, _TIME = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?"
_ZONE = r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_FORMATS = {
    "date": _DATE,
    "time": _TIME + _ZONE,
    "date-time": f"{_DATE}[Tt]{_TIME}{_ZONE}",
    "email": rf"[a-zA-Z0-9.!#$%&'*+/=?^_`{{|}}~-]+@{_LABEL}(\.{_LABEL})*",
    "hostname": rf"{_LABEL}(\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:[^\s<>\"{}|\\^`]+",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


class Unenforceable(Exception):
    """What of a schema can not be kept to in this style; its text says it."""


@dataclass(slots=True)
class _Forms:
    """What a value may be: texts, as terminals, and JSON, as schemas."""

    texts: list[str] = field(default_factory=list)
    json: list[Any] = field(default_factory=list)

    @property
    def free(self) -> bool:
        """Whether it may be any text."""
        return _ANYTHING in self.texts


class XmlArguments:
    """Writes the arguments of one tool.

    Where the tool is not strict, what can not be kept to is left out of its rules, as OpenAI has it.
    """

    def __init__(self, lark: Lark, parameters: Mapping[str, Any], strict: bool) -> None:
        """`parameters` is a schema as `schemas.rules_of` gives it."""
        self._lark = lark
        self._root = parameters
        self._strict = strict

    def rule(self) -> str:
        """The name of the rule from behind `<function=NAME>` and its line break to `</function>`.

        Raises:
            Unenforceable: for a strict tool with rules that can not be kept to.
        """
        properties, required, others = self._object()
        following = None if others is False else self._unnamed(properties, others)
        may_end = True
        for key, schema in reversed(properties.items()):
            if re.search(r"[<>\n]", key):
                raise Unenforceable(f"the name {key!r} can not be written in this model's tool calls")
            value = self._lark.rule(self._value(self._forms(key, schema), following, may_end))
            this = f"{literal(key + '>' + chr(10))} {value}"
            if key in required:
                following, may_end = self._lark.rule(this), False
            else:
                following = self._lark.rule(this if following is None else f"{this} | {following}")
        ways = [] if following is None else [f'"<parameter=" {following}']
        return self._lark.rule(" | ".join([*ways, '"</function>"'] if may_end else ways))

    def _object(self) -> tuple[dict[str, Any], frozenset[str], Any]:
        """Properties in order, which of them are required, and the schema of others (False where there are none)."""
        schema = self._followed(self._root)
        if set(schema) - _OBJECT_RULES:
            self._leave_out(schema, _OBJECT_RULES)
        given, required = schema.get("properties"), schema.get("required")
        others = schema.get("additionalProperties", True)
        needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
        properties = dict(given) if isinstance(given, Mapping) else {}
        properties |= {key: others for key in needed if key not in properties}
        return properties, frozenset(needed), others

    def _unnamed(self, properties: Mapping[str, Any], others: Any) -> str:
        """The rule of parameters that the schema does not name."""
        named = f" & ~({' | '.join(map(literal, properties))})" if properties else ""
        key = self._lark.terminal(rf"/[^<>\n]{{1,64}}/{named}")
        forms = self._forms(_NO_KEY, others)
        one = f'{key} ">\\n" '
        more = " | ".join(self._ends(forms, _MORE, _FREE_MORE))
        last = " | ".join(self._ends(forms, _LAST, _FREE_LAST))
        return self._lark.rule(f"({one} ({more}))* {one} ({last})")

    def _value(self, forms: _Forms, following: str | None, may_end: bool) -> str:
        """What stands behind a parameter's opening tag, up to the key of the next one, or to the function's end."""
        ways: list[str] = []
        if following is not None:
            ways += (f"{end} {following}" for end in self._ends(forms, _MORE, _FREE_MORE))
        if may_end:
            free = _FREE_LAST if following is not None else ""
            ways += self._ends(forms, _LAST, free)
        return " | ".join(ways)

    def _ends(self, forms: _Forms, closing: str, free: str) -> Iterator[str]:
        """The value with what closes it, once for each of its forms."""
        for text in forms.texts:
            if text != _ANYTHING:
                terminal = self._lark.terminal(f"({text}) & {_NO_CLOSE}")
                yield self._lark.ending(f"{terminal} {literal(closing)}")
            elif free:
                yield self._lark.ending(free)
            else:
                terminal = self._lark.terminal(_NO_PARAMETER)
                yield self._lark.ending(rf"{terminal} /\n?<\/parameter>\s*<\/function>/")
        for schema in forms.json:
            yield f"{self._lark.json(schema, self._strict)} {literal(closing)}"

    # --- from schemas to forms

    def _forms(self, key: str, schema: Any) -> _Forms:
        types = types_of(self._root, key)
        if "string" not in types:
            return _Forms(json=[self._rooted(schema)])
        forms = self._of(schema, 0)
        if forms.free:
            if all(_plain(each) for each in forms.json):
                return _Forms([_ANYTHING])
            forms.texts = [f"{_ANYTHING} & {_NO_JSON}"]
        elif types != STRING:
            forms.texts = [f"({text}) & {_NO_JSON}" for text in forms.texts]
        return forms

    def _of(self, schema: Any, depth: int) -> _Forms:
        if schema is True or schema == {}:
            return _Forms([_ANYTHING])
        if not isinstance(schema, Mapping) or depth > 16:
            return self._any(schema, "a schema that can not be read")
        rules = set(schema)
        if "enum" in rules or "const" in rules:
            return self._listed(schema)
        followed = self._followed(schema) if rules in ({"$ref"}, {"allOf"}) else schema
        if followed is not schema:
            return self._of(followed, depth + 1)
        for word in ("anyOf", "oneOf"):
            if rules == {word} and isinstance(schema[word], list):
                found = [self._of(each, depth + 1) for each in schema[word]]
                return _Forms([t for each in found for t in each.texts], [s for each in found for s in each.json])
        if "type" in rules:
            return self._typed(schema)
        return self._any(schema, f"{', '.join(sorted(rules))} without a type")

    def _any(self, schema: Any, what: str) -> _Forms:
        """Any text, which is what is left of rules that can not be kept to."""
        if self._strict:
            raise Unenforceable(f"{what} can not be enforced on a parameter that may be a string")
        return _Forms([_ANYTHING])

    def _listed(self, schema: Mapping[str, Any]) -> _Forms:
        self._leave_out(schema, {"enum", "const", "type"})
        values = [schema["const"]] if "const" in schema else schema["enum"]
        named = schema.get("type", list(ANY))
        if not isinstance(values, list) or not isinstance(named, str | list):
            return self._any(schema, "an enum that is no list, or a type that is none,")
        texts = [value for value in values if isinstance(value, str) and "string" in named]  # in the word or the list
        others = [value for value in values if not isinstance(value, str)]
        return _Forms(
            [" | ".join(map(literal, texts))] if texts else [],
            [{"enum": others} | ({"type": named} if "type" in schema else {})] if others else [],
        )

    def _typed(self, schema: Mapping[str, Any]) -> _Forms:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        forms = _Forms()
        for kind in named:
            if kind == "string":
                forms.texts.append(self._string(schema, alone=len(named) == 1))
            else:
                forms.json.append(self._rooted({**schema, "type": kind}))
        return forms

    def _string(self, schema: Mapping[str, Any], alone: bool) -> str:
        """The terminal of a string."""
        if alone:
            self._leave_out(schema, _TEXT_RULES | {"type"})
        rules = []
        least, most = (schema[word] if _count(schema.get(word)) else "" for word in ("minLength", "maxLength"))
        if least != "" or most != "":
            rules.append(f"/(?s:.){{{least or 0},{most}}}/")
        for word, made in (("pattern", _pattern), ("format", _FORMATS.get)):
            if word in schema:
                pattern = made(schema[word]) if isinstance(schema[word], str) else None
                if pattern is not None and can_be_kept_to(pattern):
                    rules.append(regex(pattern))
                elif self._strict:
                    raise Unenforceable(f"the {word} {json.dumps(schema[word])[:80]} can not be enforced on bare text")
        return " & ".join(rules) or _ANYTHING

    def _rooted(self, schema: Any) -> Any:
        """The schema of a value in a document of its own, with what its references point to."""
        if not refers(schema):
            return schema
        return {**moved(schema, "#/$defs/all"), "$defs": {"all": moved(self._root, "#/$defs/all")}}

    def _followed(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a schema stands for that is no more than a reference to another."""
        for _ in range(16):
            if isinstance(schema.get("$ref"), str):
                found = target(self._root, schema["$ref"])
            elif isinstance(schema.get("allOf"), list) and len(schema["allOf"]) == 1:
                found = schema["allOf"][0]
            else:
                return schema
            if set(schema) - {"$ref", "allOf", "$defs", "definitions"}:
                self._leave_out(schema, set())
            if not isinstance(found, Mapping):
                break
            schema = found
        raise Unenforceable("it is made of references that lead nowhere")

    def _leave_out(self, schema: Mapping[str, Any], kept: Any) -> None:
        left = set(schema) - kept
        if left and self._strict:
            raise Unenforceable(f"{', '.join(sorted(left))} can not be enforced here")


def custom_input(lark: Lark, grammar: Grammar) -> str:
    """The rule of a text that has a grammar of its own, with what closes it and the function."""
    if grammar.kind == "regex":
        terminal = lark.terminal(f"{regex(grammar.text, ecma=False)} & {_NO_CLOSE}")
        return lark.ending(f"{terminal} {literal(_LAST)}")
    return lark.rule(f"{lark.nested(grammar.text)} {literal(_LAST)}")


def _plain(schema: Any) -> bool:
    """Whether it asks for no more than a type."""
    return isinstance(schema, Mapping) and set(schema) == {"type"}


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _pattern(pattern: str) -> str | None:
    """A pattern that finds its match anywhere as one that matches the whole; None where its anchors are not simple."""
    body = pattern.removeprefix("^")
    ended = body.endswith("$") and not re.search(r"(?<!\\)(\\\\)*\\\$$", body)
    body = body[:-1] if ended else body
    bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "", body, flags=re.DOTALL)
    if re.search(r"[\^$]", bare) or (body != pattern and _splits(bare)):
        return None
    before, after = "" if pattern.startswith("^") else "(?s:.*)", "" if ended else "(?s:.*)"
    return f"{before}(?:{body}){after}"


def _splits(bare: str) -> bool:
    """Whether a pattern without its classes and escapes has alternatives outside of all groups."""
    depth = 0
    for letter in bare:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            return True
    return False
