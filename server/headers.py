"""Text from a client, made safe for a header and for a screen."""

import re
from collections.abc import Iterable

IGNORED_FIELDS = "x-mtplx-ignored-fields"

_CLIENT = re.compile(r"[A-Za-z][A-Za-z_.-]*(?:/[A-Za-z][A-Za-z_.-]*)?")


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The response header that says which fields changed nothing: at most 20 names of at most 40 characters."""
    clean = sorted({re.sub(r"[^A-Za-z0-9_.-]", "?", name[:40]) for name in names})
    return {IGNORED_FIELDS: ", ".join(clean[:20])} if clean else {}


def source(user_agent: str) -> str:
    """Who asks, for the screens: "OpenAI/Python 2.54.0" as `api:openai-python`; `api` where nothing is known."""
    match = _CLIENT.match(user_agent)
    return f"api:{match.group()[:30].rstrip('/').replace('/', '-').lower()}" if match else "api"
