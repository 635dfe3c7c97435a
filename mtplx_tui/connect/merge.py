"""Settings merged into a client's own file: what else stands there stays as it is, comments included."""

import difflib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from engine.whole_file import PRIVATE, write_whole
from mtplx_tui.connect.clients import Settings


class MergeError(Exception):
    """A file can not be merged into; the text can be shown to a user as it is."""


def merged(settings: Settings, present: str) -> str:
    """The file's text with the settings in it. An entry that is there already is replaced.

    Raises MergeError where the text can not be read, or holds something else in a place that is needed.
    """
    try:
        return _MERGERS[settings.form](present or settings.beginning, settings.values)
    except (ValueError, YAMLError, _PlaceTakenError) as error:
        raise MergeError(
            f"{settings.file} can not be merged into ({_first_line(error)}). Put the settings there by hand."
        ) from error


def difference(settings: Settings, before: str, after: str) -> str:
    """What would change, as a unified diff; empty where nothing does."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(settings.file), str(settings.file)
    )
    return "".join(line if line.endswith("\n") else line + "\n" for line in lines)


def write(file: Path, text: str) -> None:
    """Replace a file as a whole; one that is a link stays one. Raises OSError."""
    file.resolve().parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text, file.stat().st_mode & 0o777 if file.exists() else PRIVATE)


class _PlaceTakenError(Exception):
    pass


def _json(present: str, values: Mapping[str, Any]) -> str:
    document = json.loads(present) if present.strip() else {}
    _into(document, values)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _toml(present: str, values: Mapping[str, Any]) -> str:
    document = tomlkit.parse(present)
    _into(document, values)
    return tomlkit.dumps(document)


def _yaml(present: str, values: Mapping[str, Any]) -> str:
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    document = yaml.load(present) or {}
    _into(document, values)
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


_MERGERS = {"json": _json, "toml": _toml, "yaml": _yaml}


def _into(document: Any, values: Mapping[str, Any], path: str = "") -> None:
    if not isinstance(document, dict):
        raise _PlaceTakenError(f"{path or 'its top'} is no table")
    for key, value in values.items():
        if isinstance(value, Mapping):
            if key not in document:
                document[key] = {}
            _into(document[key], value, f"{path}{key}.")
        elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            document[key] = _entries(document.get(key), value, f"{path}{key}")
        else:
            document[key] = value


def _entries(present: Any, wanted: list[Any], path: str) -> Any:
    """A list of named entries with the wanted ones in it, each in the place of the one of its name."""
    if present is None:
        return [dict(entry) for entry in wanted]
    if not isinstance(present, list):
        raise _PlaceTakenError(f"{path} is no list")
    for entry in wanted:
        place = next((place for place, old in enumerate(present) if _name(old) == _name(entry)), None)
        if place is None:
            present.append(dict(entry))
        else:
            present[place] = dict(entry)
    return present


def _name(entry: Any) -> Any:
    return entry.get("id", entry.get("name")) if isinstance(entry, dict) else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
