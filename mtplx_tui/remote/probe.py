"""What is at an address: a server of ours, another one with OpenAI's API, or nothing that can be used."""

from typing import Literal

import httpx

from mtplx_tui.options import UsageError
from mtplx_tui.remote import http
from mtplx_tui.remote.openai import OpenAILink
from mtplx_tui.remote.ours import RemoteLink

Kind = Literal["ours", "openai"]


class UnreachableError(Exception):
    """No server that can be used is there; the text can be shown to a user as it is."""


def connect(url: str, key: str | None = None) -> RemoteLink | OpenAILink:
    """A link to whatever server is there. Raises as `kind_of`."""
    return link(http.base_url(url), key, kind_of(url, key))


def link(url: str, key: str | None, kind: Kind) -> RemoteLink | OpenAILink:
    """A link to a server that was found before."""
    return RemoteLink(url, key) if kind == "ours" else OpenAILink(url, key)


def kind_of(url: str, key: str | None) -> Kind:
    """Which kind of server is at `url`.

    Raises:
        UsageError: the address is none, or the key is not the server's. UnreachableError: nothing is there, or nothing
            that can be used.
    """
    url = http.base_url(url)
    try:
        with http.client(url, key) as client:
            found = client.get("/v1/mtplx/server")
            if found.status_code == 200 and _is_ours(found):
                return "ours"
            _check_key(found, url, key)
            listed = found if found.status_code == 403 else client.get("/v1/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(f"{url} can not be used: {http.trouble(error)}.") from error
    _check_key(listed, url, key)
    if listed.status_code != 200:
        raise UnreachableError(f"{url} can not be used: {http.refusal(listed)}.")
    try:
        if isinstance(listed.json()["data"][0]["id"], str):
            return "openai"
    except (ValueError, LookupError, TypeError):
        pass
    raise UnreachableError(f"{url} answers, but not as a server with OpenAI's API does: it lists no models.")


def _is_ours(found: httpx.Response) -> bool:
    try:
        return all(name in found.json() for name in ("version", "pid", "state"))
    except (ValueError, TypeError):
        return False


def _check_key(response: httpx.Response, url: str, key: str | None) -> None:
    if response.status_code == 401:
        given = "does not take this key" if key else f"asks for a key: give --key-file FILE, or set {http.KEY_VARIABLE}"
        raise UsageError(f"{url} {given}. It says: {http.refusal(response)}")
