"""Files of one folder, read and nothing else. What a path says never leads out of the folder."""

import os
import stat
from pathlib import Path

from mtplx_tui.tools.errors import ToolError

MOST_BYTES = 5_000_000
"""A larger file is not opened."""
MOST_CHARACTERS = 16_000
"""Of one answer, about 4,000 tokens; the rest is asked for by its first line."""
MOST_NAMES = 100


def chosen_folder(text: str) -> Path:
    """The folder that a user named, with its links resolved. Raises ToolError."""
    folder = Path(text.strip().strip("'\"")).expanduser()
    try:
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            raise ToolError(f"{folder} is no folder.")
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(f"{text!r} is no folder that can be read: {_why(error)}.") from error
    return folder


def read(folder: Path, path: str, first_line: int = 1) -> str:
    """The text of a file in the folder from a line on, or the names in a folder below it. Raises ToolError.

    Args:
        folder: as `chosen_folder` gives it. path: relative to it.
    """
    try:
        found = (folder / path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise ToolError(f"{path!r} can not be read: {_why(error)}. The folder has: {_names(folder)}.") from error
    if not found.is_relative_to(folder):
        raise ToolError(f"{path!r} is outside the folder, so it is not read.")
    parts = found.relative_to(folder).parts
    if any(part.startswith(".") for part in parts):
        raise ToolError(f"{path!r} is hidden (its name, or a folder's, begins with a dot), so it is not read.")
    try:
        if found.is_dir():
            return _names(found)
        return _part(path, _text(path, _bytes(folder, path, parts)), first_line)
    except OSError as error:
        raise ToolError(f"{path!r} can not be read: {_why(error)}.") from error


def _bytes(folder: Path, path: str, parts: tuple[str, ...]) -> bytes:
    """Open it name by name, following no link: one that was put there since the path was checked leads nowhere."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for depth, name in enumerate(parts, 1):
        way = os.O_NONBLOCK if depth == len(parts) else os.O_DIRECTORY  # opening a pipe would wait for its writer
        try:
            inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | way, dir_fd=place)
        finally:
            os.close(place)
        place = inner
    with os.fdopen(place, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise ToolError(f"{path!r} is no ordinary file, so it is not read.")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ToolError(f"{path!r} has {facts.st_size:,} bytes; at most {MOST_BYTES:,} are read.")
    return data


def _text(path: str, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" in text:
        raise ToolError(f"{path!r} is no text in UTF-8, so it is not read.")
    return text


def _part(path: str, text: str, first_line: int) -> str:
    lines = text.splitlines(keepends=True)
    if first_line < 1 or (first_line > len(lines) and first_line > 1):
        raise ToolError(f"first_line is {first_line}; {path!r} has the lines 1 to {len(lines)}.")
    rest = "".join(lines[first_line - 1 :])
    if len(rest) <= MOST_CHARACTERS:
        return rest
    end = rest.rfind("\n", 0, MOST_CHARACTERS) + 1 or MOST_CHARACTERS
    following = first_line + len(rest[:end].splitlines())
    return f"{rest[:end]}[cut here; {len(lines):,} lines in all, the next one is first_line {following}]"


def _names(folder: Path) -> str:
    try:
        found = sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                       for entry in os.scandir(folder) if not entry.name.startswith("."))  # fmt: skip
    except OSError as error:
        return f"names that can not be read ({_why(error)})"
    more = f", and {len(found) - MOST_NAMES:,} more" if len(found) > MOST_NAMES else ""
    return ", ".join(found[:MOST_NAMES]) + more if found else "nothing"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
