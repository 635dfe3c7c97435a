"""Replacing a small text file as a whole: readers see the old one or the new one, never a part."""

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600


def write_whole(file: Path, text: str, mode: int = PRIVATE) -> None:
    """Put the text on the disk under this name; a link stays one, and its folder must be there.

    Raises OSError where it can not be written; then what was there is as it was.
    """
    place = file.resolve()
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=".", suffix=".part")
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            os.fchmod(out.fileno(), mode)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        part.replace(place)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
