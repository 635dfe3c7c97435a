"""`response_format` of a chat completion to the grammar that the answer is held to."""

import json
from typing import Any, Literal

from pydantic import Field

from engine.request import Grammar
from server.errors import invalid
from server.jsonbody import Fields
from server.schemas import require_shallow


class JsonSchema(Fields):
    name: str = Field(min_length=1, max_length=64)
    description: str | None = None
    strict: bool | None = None
    answer: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def grammar(given: ResponseFormat | None) -> Grammar | None:
    """None where the answer is free. A schema is enforced whether it says `strict` or not.

    Raises:
        ApiError: 400 for a json_schema that is missing or too deep. What the schema says is the engine's to check.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return Grammar("json")
    if given.json_schema is None:
        raise invalid("response_format.json_schema", "is needed where the type is json_schema")
    require_shallow(given.json_schema.answer, "response_format.json_schema.schema")
    return Grammar("json_schema", json.dumps(given.json_schema.answer))
