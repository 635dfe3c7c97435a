"""Source code to spans, by Pygments, with our own few roles in place of its colours."""

from functools import lru_cache

from pygments.lexer import Lexer  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]

from mtplx_tui.layout.spans import Line, Span, merge

_ROLES: tuple[tuple[_TokenType, str], ...] = (
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (String, "string"),
    (Number, "number"),
    (Comment, "comment"),
    (Name.Function, "name"),
    (Name.Class, "name"),
    (Name.Decorator, "name"),
    (Name.Tag, "name"),
)


@lru_cache(maxsize=64)
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@lru_cache(maxsize=512)
def _role(kind: _TokenType) -> str:
    return next((role for family, role in _ROLES if kind in family), "source")


def highlight(source: str, language: str) -> list[Line]:
    """Lines of the source, never wrapped; plain where the language is not known."""
    lexer = _lexer(language) if language else None
    if lexer is None:
        return [((text, "source"),) if text else () for text in source.split("\n")]
    lines: list[list[Span]] = [[]]
    for kind, text in lexer.get_tokens(source):
        role = _role(kind)
        first, *rest = text.split("\n")
        lines[-1].append((first, role))
        lines += [[(part, role)] for part in rest]
    return [merge(line) for line in lines]
