"""Bodies of embedding and rerank requests to what the models read, every field honoured or refused with its path."""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from engine.errors import BadRequestError
from engine.retrieval.card import Card, Role
from engine.retrieval.retriever import Retrieval
from engine.retrieval.texts import Reader, Tokens
from server.backend import Backend
from server.errors import ApiError, invalid
from server.health import require_ready
from server.jsonbody import Fields, Whole, check, parse
from server.text_inputs import each, token_id

MOST_INPUTS = 2048  # as in OpenAI's API
_OPTIONS: dict[Role, tuple[str, str]] = {
    "embedding": ("embedding model", "--embedding-model"),
    "rerank": ("reranker", "--rerank-model"),
}


class EmbeddingFields(Fields):
    """The body of POST /v1/embeddings."""

    model: str | None = None
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Whole | None = Field(None, ge=1)


class RerankFields(Fields):
    """The body of POST /v1/rerank, in the form of Jina and Cohere; `instruction` is for models that take one."""

    model: str | None = None
    query: str = Field(min_length=1)
    documents: list[Any] = Field(min_length=1, max_length=MOST_INPUTS)
    top_n: Whole | None = Field(None, ge=1)
    return_documents: bool | None = None
    instruction: str | None = Field(None, min_length=1)


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """A checked request for vectors.

    Attributes:
        dimensions: values to keep of each vector; None is all. ignored: fields that change nothing.
    """

    retrieval: Retrieval
    card: Card
    inputs: list[Tokens]
    dimensions: int | None
    base64: bool
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RerankPlan:
    """A checked request for scores; `documents` are their texts, `pairs` each of them with the query."""

    retrieval: Retrieval
    card: Card
    documents: list[str]
    pairs: list[Tokens]
    top_n: int
    return_documents: bool
    ignored: tuple[str, ...]


def plan_embeddings(backend: Backend, raw: bytes) -> EmbeddingPlan:
    """Check a body and encode its texts. Slow for many, so it belongs off the event loop.

    Raises:
        ApiError: for all that can not be run. EngineError: the model's tokenizer can not be made.
    """
    fields = check(EmbeddingFields, parse(raw))
    retrieval, card = _model(backend, "embedding", fields.model)
    if fields.dimensions is not None and fields.dimensions > card.dimensions:
        raise invalid("dimensions", f"is {fields.dimensions}, and the vectors of {card.name} have {card.dimensions}")
    given = each(fields.input, "input")
    if len(given) > MOST_INPUTS:
        raise invalid("input", f"has {len(given)} inputs; send at most {MOST_INPUTS} at once")
    reader = retrieval.reader(card)
    return EmbeddingPlan(
        retrieval=retrieval,
        card=card,
        inputs=[_input(backend, card, reader, value, path) for path, value in given],
        dimensions=fields.dimensions,
        base64=fields.encoding_format == "base64",
        ignored=tuple(fields.model_extra or ()),
    )


def plan_rerank(backend: Backend, raw: bytes) -> RerankPlan:
    """Check a body and encode each document with the query. Otherwise as `plan_embeddings`."""
    fields = check(RerankFields, parse(raw))
    retrieval, card = _model(backend, "rerank", fields.model)
    documents = [_document(given, f"documents[{place}]") for place, given in enumerate(fields.documents)]
    _refuse_endless(backend, card, fields.query, "query")
    reader = retrieval.reader(card)
    pairs = []
    for place, document in enumerate(documents):
        path = f"documents[{place}]"
        _refuse_endless(backend, card, document, path)
        try:
            pair = reader.pair(fields.query, document, fields.instruction)
        except BadRequestError as error:
            raise invalid(error.param or "instruction", str(error)) from None
        _check_length(pair.ids, card, path, "the query and this document")
        pairs.append(pair)
    return RerankPlan(
        retrieval=retrieval,
        card=card,
        documents=documents,
        pairs=pairs,
        top_n=min(fields.top_n or len(documents), len(documents)),
        return_documents=bool(fields.return_documents),
        ignored=tuple(fields.model_extra or ()),
    )


def _model(backend: Backend, role: Role, name: str | None) -> tuple[Retrieval, Card]:
    """The model for this role, which `name` must mean where it is given. A name never loads anything."""
    retrieval = backend.retrieval
    card = None if retrieval is None else retrieval.card(role)
    kind, option = _OPTIONS[role]
    if retrieval is None or card is None:
        message = f"This server has no {kind}; start it with {option} and a folder or a repository that is here."
        raise ApiError(404, message, param="model", code="model_not_found")
    if name not in (None, card.name) and not backend.settings.value.serve_any_name:
        shown = repr(name if name is None or len(name) <= 100 else name[:100] + "…")
        message = f"The model {shown} is not this server's {kind}; that is {card.name!r}."
        raise ApiError(404, message, param="model", code="model_not_found")
    require_ready(backend.engine)
    return retrieval, card


def _input(backend: Backend, card: Card, reader: Reader, given: str | list[Any], path: str) -> Tokens:
    if not given:
        raise invalid(path, "is empty, and nothing has no embedding")
    if isinstance(given, str):
        _refuse_endless(backend, card, given, path)
        tokens = reader.text(given)
        _check_length(tokens.ids, card, path, "your input")
        return tokens
    _check_length(given, card, path, "your input")
    what = f"a token id of {card.name},"
    ids = [token_id(token, f"{path}[{place}]", card.vocab_size, what) for place, token in enumerate(given)]
    return Tokens(ids, len(given))


def _document(given: Any, path: str) -> str:
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise invalid(path, "must be a text, or an object with a text")
    return text


def _refuse_endless(backend: Backend, card: Card, text: str, path: str) -> None:
    """Refuse a text that can not fit by far, before tokenising it takes long."""
    size = len(text.encode())
    if size > max(backend.limits.prompt_bytes, 8 * card.window):
        raise _too_long(card, path, f"this has {size} bytes of text, which is more than can fit")


def _check_length(ids: Any, card: Card, path: str, what: str) -> None:
    if len(ids) > card.window:
        raise _too_long(card, path, f"{what} resulted in {len(ids)} tokens")


def _too_long(card: Card, path: str, amount: str) -> ApiError:
    return ApiError(
        400,
        f"{path}: the maximum context length of {card.name} is {card.window} tokens. However, {amount}. "
        "Nothing is cut off here; split it, or send less.",
        param=path,
        code="context_length_exceeded",
    )
