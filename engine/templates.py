"""A checkpoint's chat template, compiled once and rendered within limits.

What a template finds is what transformers gives it: Jinja's immutable sandbox with `raise_exception`, `strftime_now`,
`tojson` that escapes nothing, loop controls and `{% generation %}`, and blocks that eat the white space around them.
Left out are a few filters that no template has a use for and that can not be bounded. Every loop, call, filter and
operation that makes something new is metered, see `engine.template_meter`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any

from jinja2 import TemplateError, ext, meta, nodes, pass_context, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engine.template_meter import Meter

LARGEST_SOURCE = 1 << 18  # bytes, which take seconds to compile; the largest that is known has 30,000
_LEFT_OUT = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
_WITH_A_WIDTH = ("batch", "center", "indent", "round", "slice", "tojson", "truncate")
_meter: ContextVar[Meter] = ContextVar("meter")


class Template:
    """A compiled chat template. Any thread may render it.

    Attributes:
        names: the variables that it reads.

    Raises:
        jinja2.TemplateError: on making one of a source that is no template, or too long.
    """

    def __init__(self, source: str) -> None:
        if len(source.encode()) > LARGEST_SOURCE:
            raise TemplateError(f"it has {len(source.encode())} bytes, and at most {LARGEST_SOURCE} are taken")
        environment = _Environment()
        self.names = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        self._compiled = environment.from_string(source)

    def render(self, **variables: Any) -> str:
        """The text for these variables, which must be plain data: mappings, lists, strings, numbers.

        Raises:
            TemplateLimitError: the template was stopped. Whatever else the template does wrong is raised as it comes.
        """
        token = _meter.set(Meter(variables))
        try:
            return self._compiled.render(**variables)
        finally:
            _meter.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, ext.loopcontrols], finalize=_put_out
        )
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dict(),
            "namespace": _Namespace,
        }
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        kept = {name: function for name, function in self.filters.items() if name not in _LEFT_OUT}
        self.filters = {name: _metered(name, function) for name, function in kept.items()}
        self.filters |= {_LOOP: _Loop, _TEXT: _text, _MADE: lambda value: _meter.get().made(value)}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        tree = _Metering().visit(source)
        tree.set_environment(self)
        return super()._generate(tree, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _meter.get().operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # names as in Jinja
        meter = _meter.get()
        meter.step()
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int) and not isinstance(__obj, Macro):
            if method.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            meter.method(owner, method.__name__, [*args, *kwargs.values()])
        result = super().call(__context, __obj, *args, **kwargs)
        return result if isinstance(result, Namespace) else meter.made(result)


# --- what is put into a template's tree


_LOOP, _TEXT, _MADE = "(loop)", "(text)", "(made)"  # filters that no template can name


class _Metering(NodeTransformer):
    """Puts the meter where a template loops, joins texts, or writes down a list."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filtered(node.iter, _LOOP, nodes.Const(_written(node.body)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _TEXT)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return node if _constant(node) else _filtered(node, _MADE)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _constant(node) else _filtered(node, _MADE)


def _filtered(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _constant(node: nodes.Node) -> bool:
    return all(
        isinstance(child, nodes.Const) or (isinstance(child, nodes.Pair) and _constant(child))
        for child in node.iter_child_nodes()
    )


def _written(body: Iterable[nodes.Node]) -> int:
    """Most characters of the template's own text that one run of these nodes writes, inner loops once."""
    size = 0
    for node in body:
        if isinstance(node, nodes.If):
            branches: list[list[nodes.Node]] = [node.body, node.else_]
            branches += [[branch] for branch in node.elif_]
            size += max(map(_written, branches))
        elif isinstance(node, nodes.TemplateData):
            size += len(node.data)
        else:
            size += _written(node.iter_child_nodes())
    return size


class _Loop:
    """What a loop goes over, with a step on the meter each time round."""

    def __init__(self, items: Any, size: int) -> None:
        self._items = items
        self._size = size

    def __iter__(self) -> Iterator[Any]:
        meter = _meter.get()
        for item in self._items:
            meter.step()
            meter.spend(self._size)
            yield item

    def __len__(self) -> int:
        return len(self._items)


def _text(parts: list[Any]) -> str:
    """Jinja's `~`."""
    meter = _meter.get()
    meter.join(0, parts)
    return "".join(map(str, parts))


@pass_context
def _put_out(context: Context, value: Any) -> Any:
    return _meter.get().made(value)


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        meter = _meter.get()
        meter.step()
        before, value, rest = args[:first], args[first], [*args[first + 1 :], *kwargs.values()]
        size = sum(map(meter.size, (value, *rest)))
        if name == "join":
            value = value if isinstance(value, str) else list(value)
            meter.join(sum(map(meter.size, rest)), value)
        elif name == "replace":
            meter.replace(value, *rest[:2])
        elif name == "format":
            meter.operation("%", value, tuple(rest))
        elif name in _WITH_A_WIDTH:
            width = max(map(meter.width, rest), default=4)
            meter.spend(size * width if name in ("indent", "tojson") else width)
        elif name == "sum" and not all(isinstance(each, int | float | str | None) for each in rest):
            raise SecurityError("sum adds numbers only")
        result = function(*before, value, *args[first + 1 :], **kwargs)
        return result if isinstance(result, Iterator) else meter.made(result)

    return guarded


# --- what a template finds


class _Generation(ext.Extension):
    """`{% generation %}` marks what a model is trained to say; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  # as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    @pass_eval_context
    def _content(self, context: nodes.EvalContext, caller: Macro) -> str:
        return str(caller())


class _Dict:
    """`dict` without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """Jinja's, but for names of Python's own attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `self` may be a name in it
        self, args = args[0], args[1:]
        given = dict(*args, **kwargs)
        for name in given:
            _refuse_private(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can not have the attribute {name!r}")


def _raise_exception(message: Any) -> None:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
