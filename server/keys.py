"""Who may ask: keys from a file that only its owner can read, or from the environment; never from the command line.

Keys themselves are kept nowhere: only their digests, of one length, so that comparing them takes one time.
"""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "MTPLX_API_KEY"
SHORTEST = 16
"""Characters. A refusal costs little, so that a key of a few letters could be found by trying."""
MOST_BYTES = 1 << 16
MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"


class KeysError(Exception):
    """The keys can not be used; the text can be shown to a user as it is, and holds none of them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as the server tells callers apart.

    Attributes:
        label: names the key in the log; empty where the server asks for none.
        scope: what is kept of this caller's prompts is for this scope alone; empty where there is one caller only.
    """

    label: str = ""
    scope: str = ""


NOBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)
"""The caller of the request that the present task serves, so that no endpoint can forget to pass it on."""


class Keys:
    """The keys that a server takes; none of them means that it asks for none."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(dict.fromkeys(_digest(key.encode()) for key in keys))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def caller(self, given: Sequence[bytes]) -> Caller | None:
        """Who sent one of these keys; None for nobody. Each is compared with each, whatever they are."""
        found = None
        for one in map(_digest, given):
            for known in self._digests:
                if hmac.compare_digest(known, one):
                    found = known
        if found is None:
            return None
        return Caller(found.hex()[:6], found.hex()[:32] if len(self._digests) > 1 else "")


def load_keys(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Keys:
    """The keys in a file, one a line, and the one in MTPLX_API_KEY. Raises KeysError."""
    keys = [] if file is None else _read(file)
    if environment.get(VARIABLE):
        keys.append(_checked(environment[VARIABLE], VARIABLE))
    return Keys(keys)


def _read(file: Path) -> list[str]:
    try:
        # without O_NONBLOCK a pipe would be waited for
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KeysError(f"{file} is no file; give one with a key a line.")
            if status.st_mode & 0o077:
                mode = stat.S_IMODE(status.st_mode)
                raise KeysError(f"{file} can be used by others (its mode is {mode:o}). Run: chmod 600 {file}")
            text = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise KeysError(f"The key file {file} can not be read: {error.strerror or error}.") from error
    if len(text) > MOST_BYTES:
        raise KeysError(f"{file} has more than {MOST_BYTES} bytes; give a file with a key a line.")
    lines = (line.decode("utf-8", "replace").strip() for line in text.splitlines())
    keys = [
        _checked(line, f"Line {number} of {file}") for number, line in enumerate(lines, 1) if line and line[0] != "#"
    ]
    if not keys:
        raise KeysError(f"{file} holds no key. Write one a line; {MAKE_ONE}.")
    return keys


def _checked(key: str, where: str) -> str:
    """The key, if a header can carry it and nobody can guess it. Raises KeysError that does not repeat it."""
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise KeysError(f"{where} is no key: a key is one word of printable ASCII characters; {MAKE_ONE}.")
    if len(key) < SHORTEST:
        raise KeysError(f"{where} has {len(key)} characters; a key needs {SHORTEST} or more. {MAKE_ONE}.")
    return key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
