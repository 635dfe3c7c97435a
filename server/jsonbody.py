"""Request bodies: strict JSON in, checked against a model of the fields, with the path of what is wrong."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import from_json

from server.errors import ApiError, invalid


class Fields(BaseModel):
    """Base of the field models. `null` means absent, unknown fields are kept aside, nothing is coerced."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=())


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_integral)]
"""An integer; 4.0 is one, as JavaScript clients see it, and true is none."""

Model = TypeVar("Model", bound=Fields)


def parse(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`.

    Raises:
        ApiError: 400 for what is no JSON object: broken, not UTF-8, NaN, lone surrogates, nested more than 200 deep.
    """
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    return data


def check(model: type[Model], data: dict[str, Any]) -> Model:
    """`data` as the typed fields of `model`. Raises ApiError 400 that names the first field at fault."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        message = first["msg"][:1].lower() + first["msg"][1:]
        got = "" if first["type"] == "missing" else f"; got {_short(first['input'])}"
        raise invalid(json_path(first["loc"]), message + got) from None


def json_path(loc: Iterable[str | int]) -> str:
    """("stop", 0) as `stop[0]`, ("stream_options", "include_usage") as `stream_options.include_usage`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in loc).removeprefix(".")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
