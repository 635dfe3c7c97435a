"""Texts for a model in the forms that completions and embeddings both take: a text or token ids, one or many."""

from typing import Any

from server.errors import invalid

_FORMS = "must be a text, a list of texts, a list of token ids, or a list of lists of token ids"


def each(given: object, field: str) -> list[tuple[str, str | list[Any]]]:
    """What was sent in `field`, piece by piece: a text or a list of ids yet to be checked, with its path.

    Raises ApiError 400 for any other form, and for pieces of two kinds.
    """
    if isinstance(given, str) or (isinstance(given, list) and given and not isinstance(given[0], str | list)):
        return [(field, given)]
    if not isinstance(given, list) or not given:
        raise invalid(field, _FORMS)
    kind = type(given[0])
    odd = next((place for place, piece in enumerate(given) if not isinstance(piece, kind)), None)
    if odd is not None:
        raise invalid(f"{field}[{odd}]", f"is not what the first {field} is; the {field} {_FORMS}")
    return [(f"{field}[{place}]", piece) for place, piece in enumerate(given)]


def token_id(given: object, path: str, vocab_size: int, expected: str) -> int:
    """A token id; 4.0 is one, true is none. Raises ApiError 400 that says what was `expected`.

    An id beyond the vocabulary would be an unchecked read in MLX's gather, so it must not pass this.
    """
    token = int(given) if isinstance(given, float) and given.is_integer() else given
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
        raise invalid(path, f"must be {expected} from 0 to {vocab_size - 1}")
    return token
