"""`mtplx-tui inspect`: what a checkpoint is, without loading it."""

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common, complete
from mtplx_tui.commands.common import JsonOption

if TYPE_CHECKING:
    from engine.models.inspect import Inspection


def inspect(
    model: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="As for --model of ask.", autocompletion=complete.models)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a model is, without loading it.

    Family, size, quantisation, MTP head, and whether this engine runs it.
    """
    from engine.models.inspect import inspect_model

    found = inspect_model(model)
    if as_json:
        common.print_json(dataclasses.asdict(found))
    else:
        print("\n".join(describe(found)))
    return exit_codes.OK


def describe(found: "Inspection") -> list[str]:
    """The report as lines for a person."""
    context, vocabulary = _or_unknown(found.context), _or_unknown(found.vocab_size)
    yes_no = {True: "yes", False: "no"}
    facts = {
        "folder": found.path,
        "architecture": f"{found.architecture}, {_or_unknown(found.layers)} layers",
        "weights": f"{found.parameters / 1e6:,.1f} M parameters, {_size(found.weight_bytes)}, {found.dtype}, "
        f"{found.quantization or 'not quantised'}",
        "MTP head": _head(found),
        "context": f"{context} tokens, {_size(found.kv_bytes_per_token)} a token in the caches, "
        f"{_size(found.recurrent_bytes)} a conversation besides",
        "vocabulary": f"{vocabulary}; chat template {yes_no[found.chat_template]}, "
        f"thinking {yes_no[found.thinking]}, tools {yes_no[found.tools]}",
        "files": f"{len(found.files)}, {_size(sum(size for _, size in found.files))}",
    }
    lines = [f"{found.name}: {found.tier}", *(f"{name:13} {value}" for name, value in facts.items())]
    return lines + [f"- {message}" for message in found.messages]


def _head(found: "Inspection") -> str:
    head = found.head
    if head is None:
        return f"none; looked for {', '.join(found.looked_for) or 'nothing, since the architecture is unknown'}"
    return f"{head.tensors} tensors {head.prefix}*, {_size(head.nbytes)}, {head.dtype}, in {', '.join(head.files)}"


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _size(count: int | None) -> str:
    return "unknown" if count is None else common.size(count)
