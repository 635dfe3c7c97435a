"""What a user keeps from one start to the next: one typed model, and the TOML file that holds it.

What the server can change while it runs is `server.settings.Settings`, extended here, so that its names, ranges and
words are said once. The command line wins over this file, and a request's or a chat's own values over both.
"""

import fcntl
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, ValidationError

from engine.whole_file import write_whole
from mtplx_tui.options import Mode, ProfileName, UsageError, parse_memory
from mtplx_tui.store_file import set_aside
from server.settings import SAMPLING, Settings, type_of

Section = Literal["sampling", "engine", "server", "display"]
Applies = Literal["server", "screen", "start"]
"""When a value holds: at once in a running server (which takes it by PATCH under the same name), at once in the screen
that sets it, or from the next start of the program."""

SECTIONS: tuple[Section, ...] = ("sampling", "engine", "server", "display")
MOST_BYTES = 1 << 20

_LIVE: Mapping[str, Section] = {
    **dict.fromkeys(SAMPLING, "sampling"),
    "max_tokens": "sampling",
    "depth": "engine",
    **dict.fromkeys(("aliases", "serve_any_name", "keep_alive_s", "log_level"), "server"),
}
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]+$")]


class SettingError(UsageError):
    """A setting does not exist or can not be that; the text can be shown to a user as it is."""


def _size(text: str) -> str:
    try:
        parse_memory(text)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return text


def _place(section: Section, applies: Applies, allowed: str | None = None) -> dict[str, Any]:
    return {"section": section, "applies": applies, "allowed": allowed}


class Saved(Settings):
    """All that can be kept. `model_fields_set` names what is, the rest has its default; None is the model's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Text | None = Field(
        default=None,
        description="The model that is loaded at the start.",
        json_schema_extra=_place("engine", "start", "a bundled name, a folder, or a hub repository that is here"),
    )
    mode: Mode = Field(
        default="mtp",
        description="mtp drafts with the model's own head; ar decodes plainly.",
        json_schema_extra=_place("engine", "start"),
    )
    profile: ProfileName = Field(
        default="turbo",
        description="How memory and speed are weighed; see mtplx-tui --help.",
        json_schema_extra=_place("engine", "start"),
    )
    kv_bits: Literal[8, 4] | None = Field(
        default=None,
        description="Bits of a cached key or value: less memory, slightly other answers.",
        json_schema_extra=_place("engine", "start"),
    )
    memory: Annotated[str, AfterValidator(_size)] | None = Field(
        default=None,
        description="Most that weights and caches may take.",
        json_schema_extra=_place("engine", "start", "a size with its unit, such as 8GB or 12GiB"),
    )
    embedding_model: Text | None = Field(
        default=None,
        description="Makes the vectors of /v1/embeddings in serve.",
        json_schema_extra=_place("server", "start", "a folder, or a hub repository that is here"),
    )
    rerank_model: Text | None = Field(
        default=None,
        description="Ranks the documents of /v1/rerank in serve.",
        json_schema_extra=_place("server", "start", "a folder, or a hub repository that is here"),
    )
    host: Text = Field(
        default="localhost",
        description="Where serve listens. What other machines can reach needs a key.",
        json_schema_extra=_place("server", "start", "an address of this machine"),
    )
    port: int = Field(
        default=8000,
        ge=0,
        le=65535,
        description="Where it is taken, the next free one is used; 0 lets the system choose.",
        json_schema_extra=_place("server", "start"),
    )
    key_file: Text | None = Field(
        default=None,
        description="Keys for serve, one a line, in a file that only you can read.",
        json_schema_extra=_place("server", "start", "a file"),
    )
    theme: Literal[
        "auto", "mtplx-dark", "mtplx-light", "ansi-dark", "ansi-light", "textual-dark", "textual-light", "dracula",
        "gruvbox", "monokai", "nord", "solarized-dark", "solarized-light", "tokyo-night",
    ] = Field(
        default="auto",
        description="Colours of the screen; auto is mtplx-dark, or ansi-dark where there are 16 colours.",
        json_schema_extra=_place("display", "screen"),
    )  # fmt: skip
    glyphs: Literal["unicode", "ascii"] = Field(
        default="unicode",
        description="What the screen draws with.",
        json_schema_extra=_place("display", "start"),
    )
    thinking: Literal["auto", "folded", "open"] = Field(
        default="auto",
        description="The model's thinking: open while it comes and folded afterwards, always folded, or always open.",
        json_schema_extra=_place("display", "screen"),
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """What there is to say about one setting, for a screen or a command.

    Attributes:
        title: its name with spaces. help: what it does. allowed: what it may be, in words.
        type: "number", "integer", "boolean", "string", "list" or "choice". choices: of a choice, in order.
        default: None is the model's own, or none. applies: when a new value holds.
    """

    name: str
    section: Section
    title: str
    help: str
    type: str
    allowed: str
    choices: tuple[Any, ...]
    default: Any
    applies: Applies


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file holds. `notes` say, each in a sentence for the user, what of it could not be used."""

    saved: Saved
    notes: tuple[str, ...] = ()


def _settings() -> tuple[Setting, ...]:
    properties = Saved.model_json_schema()["properties"]
    told = []
    for name, schema in properties.items():
        section: Section = _LIVE[name] if name in _LIVE else schema["section"]
        facts = type_of(schema)
        told.append(
            Setting(
                name,
                section,
                title=name.removesuffix("_s").replace("_", " "),
                help=schema["description"],
                type=facts["type"],
                allowed=schema.get("allowed") or _allowed(name, facts),
                choices=tuple(facts["choices"] or ()),
                default=schema["default"],
                applies="server" if name in _LIVE else schema["applies"],
            )
        )
    return tuple(sorted(told, key=lambda each: SECTIONS.index(each.section)))


def _allowed(name: str, facts: Mapping[str, Any]) -> str:
    match facts["type"]:
        case "choice" if name == "depth":
            return "auto or a whole number from 0 to 8"
        case "choice":
            return ", ".join(map(str, facts["choices"]))
        case "boolean":
            return "on or off"
        case "list":
            return "names with commas between them"
        case kind:
            low, high = facts["minimum"], facts["maximum"]
            span = f"from {low} to {high}" if facts["above"] is None else f"above {low} up to {high}"
            return f"a {'whole ' if kind == 'integer' else ''}number {span}"


SETTINGS: tuple[Setting, ...] = _settings()
BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


def setting(name: str) -> Setting:
    """A setting by its name, with or without its section's before it. Raises SettingError."""
    found = BY_NAME.get(name.rpartition(".")[2].replace("-", "_"))
    if found is None or name.count(".") > 1 or (("." in name) and name.partition(".")[0] != found.section):
        raise SettingError(f"There is no setting {name[:60]!r}; there are {', '.join(BY_NAME)}.")
    return found


def parse(name: str, text: str) -> Any:
    """The value of a setting as a person typed it. Raises SettingError with what it may be instead."""
    known = setting(name)
    for candidate in _candidates(known, text.strip()):
        try:
            return getattr(Saved.model_validate({known.name: candidate}, strict=False), known.name)
        except ValidationError:
            continue
    raise SettingError(f"{known.name} is {text[:60]!r}; it must be {known.allowed}.")


def _candidates(known: Setting, text: str) -> Iterator[Any]:
    match known.type:
        case "list":
            yield [part.strip() for part in text.split(",") if part.strip()]
        case "choice":
            yield from (choice for choice in known.choices if str(choice) == text)
        case "number" | "integer" if not text.isascii():
            return
        case _:
            yield text


def in_words(value: Any) -> str:
    """A value as it would be typed; None is `none`."""
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case list() | tuple():
            return ", ".join(value) or "none"
        case _:
            return str(value)


def live(saved: Saved) -> Settings:
    """The part that a server takes, and may change while it runs."""
    return Settings(**{name: getattr(saved, name) for name in saved.model_fields_set if name in Settings.model_fields})


def load(path: Path) -> Loaded:
    """What is kept in a file; nothing where there is none.

    A file that is no TOML is set aside under another name. Of a whole one, what is unknown or can not be is left out.
    Neither raises: the program starts, and `notes` say what happened.

    Raises OSError where it can not be read.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return Loaded(Saved())
    try:
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        found = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        kept = set_aside(path)
        reason = str(error).splitlines()[0] or type(error).__name__
        return Loaded(
            Saved(), (f"{path} could not be read ({reason}); it is kept as {kept.name}, and the defaults hold.",)
        )
    return _checked(path, found)


def save(path: Path, changes: Mapping[str, Any]) -> Loaded:
    """Keep some values and leave the rest of the file as it is, comments and unknown names included.

    Args:
        changes: values by name; None takes a setting back to its default.

    Returns:
        What the file holds then; its notes are those of `load`.

    Raises:
        SettingError: for the first that is unknown or can not have that value; then nothing is written.
        OSError: the file can not be written; then it is as it was.
    """
    import tomlkit  # which a start that only reads does not need

    for name, value in changes.items():
        if setting(name).name != name or (value is not None and _fault(name, value)):
            raise SettingError(f"{name} is {in_words(value)[:60]!r}; it must be {BY_NAME[name].allowed}.")
    with _turn(path.parent):
        before = load(path)
        document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
        for name, value in changes.items():
            _put(document, BY_NAME[name].section, name, value)
        write_whole(path, tomlkit.dumps(document))
        return Loaded(load(path).saved, before.notes)


def _checked(path: Path, found: Mapping[str, Any]) -> Loaded:
    values: dict[str, Any] = {}
    notes = []
    for section, table in found.items():
        for name, value in table.items() if isinstance(table, dict) else ():
            known = BY_NAME.get(name)
            if known is None or known.section != section:
                notes.append(f"{path}: there is no setting {section[:40]}.{name[:40]}; it is left alone.")
            elif _fault(name, value):
                shown = in_words(value)[:60] if isinstance(value, str | int | float) else type(value).__name__
                notes.append(
                    f"{path}: {section}.{name} is {shown!r}, but must be {known.allowed}; "
                    f"{in_words(known.default)} holds."
                )
            else:
                values[name] = value
        if not isinstance(table, dict):
            notes.append(f"{path}: {section[:40]} stands outside of a section ({', '.join(SECTIONS)}); it is left out.")
    return Loaded(Saved.model_validate(values), tuple(notes))


def _fault(name: str, value: Any) -> bool:
    """Whether a setting can not have this value; types are not bent."""
    try:
        Saved.model_validate({name: value})
    except ValidationError:
        return True
    return False


def _put(document: Any, section: str, name: str, value: Any) -> None:
    import tomlkit

    if not isinstance(document.get(section), dict):
        if value is None:
            return
        document[section] = tomlkit.table()
    if value is None:
        document[section].pop(name, None)
    else:
        document[section][name] = list(value) if isinstance(value, tuple) else value


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the right to write, so that two programs do not lose each other's changes."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)
