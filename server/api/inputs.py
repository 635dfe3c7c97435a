"""JSON schemas of the fields that endpoints read piece by piece, each with the path of what is wrong in it."""

from typing import Any

from engine.request import MAX_STOPS

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
NULL: Schema = {"type": "null"}
ANY_OBJECT: Schema = {"type": "object"}


def _object(required: dict[str, Schema], /, **optional: Schema) -> Schema:
    return {"type": "object", "properties": required | optional, "required": list(required)}


def _either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def _list(item: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": item, "minItems": least}


def _kind(kind: str, /, **more: Schema) -> Schema:
    """An object of this `type`, with further fields that it must have."""
    return _object({"type": {"const": kind}, **more})


NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}
TEXT: Schema = {"type": "string", "minLength": 1}
SAMPLING: dict[str, Schema] = {
    "stop": _either(STRING, {"type": "array", "items": STRING, "maxItems": MAX_STOPS}, NULL),
    "logit_bias": _either(
        {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,9}$"}, "additionalProperties": {"type": "number"}},
        NULL,
    ),
}
"""Of every endpoint that generates."""
TEXTS_OR_IDS = _either(TEXT, _list(TEXT, 1), _list({"type": "integer", "minimum": 0}, 1))

_TEXT = _either(STRING, _list(_kind("text", text=STRING), 1))
_CALL = _object({"function": _object({"name": STRING}, arguments=STRING)}, id=STRING, type={"const": "function"})
CHAT_MESSAGES = _list(
    _either(
        _object({"role": {"enum": ["system", "developer", "user"]}, "content": _TEXT}),
        _object(
            {"role": {"const": "assistant"}},
            content=_either(_TEXT, NULL),
            reasoning_content=_either(STRING, NULL),
            tool_calls=_either(_list(_CALL), NULL),
        ),
        _object(
            {"role": {"enum": ["tool", "function"]}}, content=_either(_TEXT, NULL), tool_call_id=STRING, name=STRING
        ),
    ),
    1,
)
TOOL_CHOICE = _either(
    {"enum": ["auto", "none", "required"]},
    _kind("function", function=_object({"name": STRING})),
    _kind(
        "allowed_tools",
        allowed_tools=_object(
            {
                "mode": {"enum": ["auto", "required"]},
                "tools": _list(_kind("function", function=_object({"name": STRING})), 1),
            }
        ),
    ),
    NULL,
)
FUNCTION_CALL = _either({"enum": ["auto", "none"]}, _object({"name": STRING}), NULL)
TEMPLATE_OPTIONS = _either({"type": "object", "properties": {"enable_thinking": {"type": "boolean"}}}, NULL)

_TEXT_BLOCKS = _list(_kind("text", text=STRING))
MESSAGES = _list(
    _either(
        _object(
            {
                "role": {"const": "user"},
                "content": _either(
                    STRING,
                    _list(
                        _either(
                            _kind("text", text=STRING),
                            _kind("tool_result", tool_use_id=STRING, content=_either(STRING, _TEXT_BLOCKS)),
                        ),
                        1,
                    ),
                ),
            }
        ),
        _object(
            {
                "role": {"const": "assistant"},
                "content": _either(
                    STRING,
                    _list(
                        _either(
                            _kind("text", text=STRING),
                            _kind("thinking", thinking=STRING, signature=STRING),
                            _kind("tool_use", id=STRING, name=STRING, input=ANY_OBJECT),
                        )
                    ),
                ),
            }
        ),
    ),
    1,
)
SYSTEM = _either(STRING, _TEXT_BLOCKS, NULL)
MESSAGE_TOOLS = _either(_list(_object({"name": NAME, "input_schema": ANY_OBJECT}, description=STRING)), NULL)

_INPUT_TEXT = _either(STRING, _list(_kind("input_text", text=STRING), 1))
_INPUT_ITEM = _either(
    _object({"role": {"enum": ["user", "system", "developer"]}, "content": _INPUT_TEXT}, type={"const": "message"}),
    _object({"role": {"const": "assistant"}, "content": STRING}, type={"const": "message"}),
    _kind("function_call", call_id=STRING, name=TEXT, arguments=STRING),
    _kind("function_call_output", call_id=STRING, output=STRING),
    _kind("reasoning", summary=_list(_kind("summary_text", text=STRING))),
)
RESPONSE_CHOICE = _either(
    {"enum": ["auto", "none", "required"]},
    _object({"type": {"enum": ["function", "custom"]}, "name": STRING}, namespace=STRING),
    _kind(
        "allowed_tools",
        mode={"enum": ["auto", "required"]},
        tools=_list(_object({"type": {"enum": ["function", "custom"]}, "name": STRING}), 1),
    ),
    NULL,
)
RESPONSE_INPUT = _either(STRING, _list(_INPUT_ITEM, 1))
RESPONSE_TOOLS = _either(_list(_kind("function", name=NAME, parameters=ANY_OBJECT)), NULL)

DOCUMENTS: Schema = {
    "type": "array",
    "minItems": 1,
    "maxItems": 2048,
    "items": _either(STRING, _object({"text": STRING})),
}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
