"""The settings file as the defaults of commands that start an engine; options that are given win."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from mtplx_tui import paths
from mtplx_tui.commands import common
from mtplx_tui.options import EngineOptions

if TYPE_CHECKING:
    from mtplx_tui.saved_settings import Loaded, Saved

ENGINE = ("model", "mode", "depth", "profile", "kv_bits", "memory")
COMMANDS = {
    "ask": ("model", "mode", "depth", "profile", "kv_bits", "temperature", "top_p", "top_k", "min_p", "max_tokens"),
    "serve": (
        "model",
        "mode",
        "profile",
        "kv_bits",
        "memory",
        "embedding_model",
        "rerank_model",
        "host",
        "port",
        "key_file",
    ),
}
"""Options whose values may be kept, by command. What a server can change while it runs, it is given as its settings."""


def kept() -> "Loaded | None":
    """What the file holds; None, and nothing is imported, where there is none. Raises OSError."""
    file = paths.settings_file()
    if not file.exists():
        return None
    from mtplx_tui.saved_settings import load

    return load(file)


def of_command(name: str) -> dict[str, Any]:
    """The kept values of a command's options, as a Typer context's `default_map`. Raises OSError."""
    saved = _kept_and_said() if name in COMMANDS else None
    return {} if saved is None else {name: _texts(saved, COMMANDS[name])}


def of_screen(context: typer.Context, options: EngineOptions, ascii_only: bool) -> tuple[EngineOptions, bool]:
    """The screen's options, those that were not given as they are kept. Raises OSError."""
    saved = _kept_and_said()
    if saved is None:
        return options, ascii_only
    texts = _texts(saved, [name for name in ENGINE if not given(context, name)])
    if not given(context, "ascii_only"):
        ascii_only = saved.glyphs == "ascii"
    return replace(options, **texts), ascii_only


def _kept_and_said() -> "Saved | None":
    """What the file holds; what of it can not be used is said on standard error."""
    loaded = kept()
    if loaded is None:
        return None
    for note in loaded.notes:
        common.say(note)
    return loaded.saved


def _texts(saved: "Saved", names: "tuple[str, ...] | list[str]") -> dict[str, Any]:
    """The values that are kept, as they would be typed."""
    return {name: str(getattr(saved, name)) for name in names if name in saved.model_fields_set}


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
