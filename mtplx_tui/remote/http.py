"""How a server is spoken to: its address as a person writes it, its key, a stream's lines, its refusals in words."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from mtplx_tui.options import UsageError

KEY_VARIABLE = "MTPLX_API_KEY"
MOST_KEY_BYTES = 1 << 16
TIMEOUT = httpx.Timeout(10.0, read=30.0)


def base_url(given: str) -> str:
    """The address without /v1, from what a person typed. Raises UsageError."""
    text = given.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", text):
        raise _no_url(given)
    try:
        url = httpx.URL(text if "://" in text else f"http://{text}")
    except httpx.InvalidURL as error:
        raise _no_url(given) from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment or url.userinfo:
        raise _no_url(given)
    return str(url).rstrip("/").removesuffix("/v1").rstrip("/")


def read_key(file: Path | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """The first key in a file that only its owner can read, else the one in MTPLX_API_KEY. Raises UsageError."""
    if file is None:
        return environment.get(KEY_VARIABLE) or None
    try:
        with open(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), encoding="utf-8") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise UsageError(f"{file} must be a file that only you can use. Run: chmod 600 {file}")
            lines = [line.strip() for line in opened.read(MOST_KEY_BYTES).splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The key file {file} can not be read: {getattr(error, 'strerror', None) or error}."
        ) from error
    key = next((line for line in lines if line and line[0] != "#"), None)
    if key is None or not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(f"{file} holds no key: write it alone on a line, one word of ASCII characters.")
    return key


def client(url: str, key: str | None) -> httpx.Client:
    """An HTTP client for the server at `url`; no proxy of the environment comes between."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, trust_env=False)


def stream_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a stream of server-sent events, cut at line feeds only: texts hold all that Unicode calls one."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")


def data_of(line: bytes) -> bytes | None:
    """What a line of such a stream says; None for comments and the like."""
    return line[5:].strip() if line.startswith(b"data:") else None


def refusal(response: httpx.Response) -> str:
    """What a server that refused has said, in words for a user. The response must have been read."""
    try:
        error: Any = response.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError):
        message = response.text.strip()[:200] or response.reason_phrase
    return f"{message} (status {response.status_code})"


def trouble(error: Exception) -> str:
    """Why there is no answer, in words for a user."""
    match error:
        case httpx.ConnectTimeout() | httpx.ConnectError():
            return f"no server answers ({str(error) or 'it took too long'})"
        case httpx.TimeoutException():
            return "it does not answer in time"
        case _:
            return f"the connection broke ({str(error) or type(error).__name__})"


def _no_url(given: str) -> UsageError:
    return UsageError(f"{given!r} is no address of a server; give one such as http://192.0.2.7:8000.")
