"""What an answer must look like where tools are to be called, or called in a certain way: one grammar over all of it.

- `required` is one call, or several where they may be, and nothing else. Arguments fit the tool's schema; where the
  tool is not `strict`, rules of the schema that can not be kept to are left out, as OpenAI has it.
- `auto` is free, so that most requests have no grammar at all, whatever schemas their tools have. Where a tool is
  strict, or its text has a grammar, its calls are held to that, and other calls to names that there are; where not all
  tools may be called, calls are held to those that may.
- `auto` with a format for the answer is a text of that format, or calls.

Tags are addressed as the tokens they are, so no text can have one in it by its letters.
"""

import json
import re
from typing import Any

from pydantic_core import from_json

from engine.chat import ChatFormat
from engine.errors import BadRequestError
from engine.request import MAX_GRAMMAR_BYTES, Grammar
from engine.text import ToolStyle
from server.errors import ApiError, invalid
from server.lark import Lark, literal
from server.schemas import require_shallow, rules_of
from server.tools import Tool, Tools
from server.xml_grammar import Unenforceable, XmlArguments, custom_input

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_INPUT = {"type": "object", "required": ["input"], "additionalProperties": False}


def answer_grammar(chat: ChatFormat, vocab_size: int, tools: Tools, answer: Grammar | None) -> Grammar | None:
    """`grammar` for a model, compiled ahead: the engine then only looks it up. Slow, so it belongs off the event loop.

    Raises:
        ApiError: 400 with the path of what can not be kept to, or compiled. BadRequestError: for the answer's format.
    """
    if answer is not None:
        answer.check()
    made = grammar(tools, chat.tool_style, chat.tool_ids, answer)
    if made is None:
        return None
    try:
        _compile(chat, vocab_size, made)
    except BadRequestError:
        if answer is not None:
            _compile(chat, vocab_size, answer)
        if made is answer:
            raise
        raise _blamed(chat, vocab_size, tools) from None
    return made


def _compile(chat: ChatFormat, vocab_size: int, made: Grammar) -> None:
    made.check()
    chat.grammars(vocab_size).compile(made, ())


def _blamed(chat: ChatFormat, vocab_size: int, tools: Tools) -> ApiError:
    """What the client is told where the tools' grammar can not be compiled: the first one whose own can not be."""
    for place, tool in enumerate(tools.offered):
        if tool.name not in _bound(tools):
            continue
        alone = grammar(Tools(tools.offered, "required", frozenset({tool.name})), chat.tool_style, chat.tool_ids)
        assert alone is not None
        try:
            _compile(chat, vocab_size, alone)
        except BadRequestError as error:
            return invalid(_path(place), f"the calls of {tool.name[:80]!r} can not be held to it: {_cause(error)}")
    return invalid("tools", "calls of so many tools can not be held to their schemas at once; offer fewer")


def _cause(error: BadRequestError) -> str:
    """Without the places and lines of the grammar, which is none that the client wrote."""
    text = re.sub(r"^The Lark grammar can not be used: (?:at )?(?:\d+\(\d+\): )?", "", str(error))
    lines = (line.strip() for line in text.split("\n") if not re.fullmatch(r"\s*\d+ \|.*|[\s^]*", line))
    return " ".join(lines)


def _path(place: int) -> str:
    return f"tools[{place}].function.parameters"


def grammar(
    tools: Tools, style: ToolStyle | None, tags: tuple[int, int] | None, answer: Grammar | None = None
) -> Grammar | None:
    """The grammar of the whole answer, behind the reasoning; None where it is free.

    Args:
        style: how the model writes calls, and `tags` the tokens around one; None where it can not call tools.
        answer: what text must look like.

    Raises:
        ApiError: 400 with the path of what can not be kept to. Whether it can be compiled is the engine's to say.
    """
    called, bound = tools.named(), _bound(tools)
    required = tools.choice == "required"
    if not called or not (bound or answer is not None or len(called) < len(tools.offered)):
        return answer
    if style is None or tags is None:
        path = "tool_choice" if required else "tools"
        raise invalid(path, "this model has no tokens around its tool calls, so they can not be held to anything")
    lark = Lark()
    calls = [
        _bound_call(lark, tool, style, _path(place)) for place, tool in enumerate(tools.offered) if tool.name in bound
    ]
    others = [name for name in called if name not in bound]
    if others:
        calls.append(_free_call(lark, others, style))
    call = lark.rule(f'<[{tags[0]}]> "\\n" ({" | ".join(calls)}) <[{tags[1]}]>')
    calls_only = f'{call} ("\\n"? "\\n"? {call})*' if tools.parallel else call
    if required:
        start = calls_only
    elif answer is not None:
        start = f"{_text(lark, answer)} | {calls_only}"
    else:
        free = lark.rule(f"<[^{tags[0]}]>*")
        start = f"{free} ({call} {free})*" if tools.parallel else f"{free} {call}?"
    return _checked(Grammar("lark", lark.text(start)))


def _bound(tools: Tools) -> set[str]:
    """Names of the tools whose arguments are held to something."""
    return {
        name
        for name, tool in tools.named().items()
        if tools.choice == "required" or tool.strict or tool.grammar is not None
    }


def _checked(grammar: Grammar) -> Grammar:
    size = len(grammar.text.encode())
    if size > MAX_GRAMMAR_BYTES:
        raise invalid(
            "tools",
            f"the schemas of what may be called come to {size} bytes without what describes them; at most "
            f"{MAX_GRAMMAR_BYTES} can be held to. Choose one tool, or offer fewer",
        )
    return grammar


def _text(lark: Lark, answer: Grammar) -> str:
    """The rule of a text that has a format."""
    if answer.kind == "json":
        return lark.json({"type": "object"})
    if answer.kind == "json_schema":
        return lark.json(from_json(answer.text))
    raise invalid("tools", f"can not be called where the answer is held to a {answer.kind} grammar")


def _free_call(lark: Lark, names: list[str], style: ToolStyle) -> str:
    """A call of one of these tools, with whatever arguments."""
    shown = lark.terminal(" | ".join(literal(_named(name, style)) for name in names))
    return lark.rule(f"{shown} /(?s:.*)/")


def _named(name: str, style: ToolStyle) -> str:
    """How a call begins."""
    return f"<function={name}>" if style == "xml" else f'{{"name": {json.dumps(name, ensure_ascii=False)}'


def _bound_call(lark: Lark, tool: Tool, style: ToolStyle, path: str) -> str:
    """A call of this tool, with arguments that fit."""
    begin = literal(_named(tool.name, style) + ("\n" if style == "xml" else ', "arguments": '))
    end = '"\\n"' if style == "xml" else '"}\\n"'
    if tool.grammar is not None:
        arguments = _input(lark, tool.grammar, style, path)
    else:
        require_shallow(dict(tool.parameters), path)
        schema = rules_of(tool.parameters) if tool.parameters else _NO_ARGUMENTS
        if schema.get("type", "object") != "object":
            raise invalid(path, "the schema of a tool's arguments must be of type object")
        arguments = _arguments(lark, tool, {**schema}, style, path)
    return lark.rule(f"{begin} {arguments} {end}")


def _arguments(lark: Lark, tool: Tool, schema: dict[str, Any], style: ToolStyle, path: str) -> str:
    if style == "json":
        return lark.json({"type": "object", **schema}, tool.strict)
    if re.search(r"[\s<>]", tool.name):
        raise invalid(path, f"the name {tool.name[:80]!r} can not be written in this model's tool calls")
    try:
        return XmlArguments(lark, schema, tool.strict).rule()
    except Unenforceable as problem:
        raise invalid(path, f"{problem}. Change the schema, or leave out strict") from None


def _input(lark: Lark, text: Grammar, style: ToolStyle, path: str) -> str:
    """The one argument of a tool whose text has a grammar."""
    if style == "xml":
        return lark.rule(f'"<parameter=input>\\n" {custom_input(lark, text)}')
    if text.kind == "regex":
        pattern = {"type": "string", "pattern": f"^(?:{text.text})$"}
        return lark.json({**_INPUT, "properties": {"input": pattern}})
    raise invalid(path, "this model writes tool calls in JSON, in which a Lark grammar can not be held to")
