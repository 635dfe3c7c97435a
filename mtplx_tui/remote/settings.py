"""The settings of a server of ours, over HTTP."""

from collections.abc import Mapping
from typing import Any

import httpx
from pydantic import BaseModel

from mtplx_tui.remote import http
from mtplx_tui.remote.api import NotNowError
from mtplx_tui.saved_settings import SettingError
from mtplx_tui.server_settings import Held

PATH = "/v1/mtplx/settings"


class _Row(BaseModel):
    name: str
    value: Any
    effective: Any


class _Rows(BaseModel):
    settings: tuple[_Row, ...]


class RemoteSettings:
    """Those of the server at `url`. Both methods raise NotNowError where it does not answer, or not as ours does."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key

    def read(self) -> Mapping[str, Held]:
        response = self._send("GET", None)
        if response.status_code != 200:
            raise NotNowError(http.refusal(response))
        try:
            rows = _Rows.model_validate_json(response.content).settings
        except ValueError as error:
            raise NotNowError("it does not answer as a server of this version does") from error
        return {row.name: Held(row.value, row.effective) for row in rows}

    def change(self, changes: Mapping[str, Any]) -> None:
        response = self._send("PATCH", changes)
        if response.status_code == 400:
            raise SettingError(http.refusal(response))
        if response.status_code != 200:
            raise NotNowError(http.refusal(response))

    def _send(self, method: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            with http.client(self._url, self._key) as client:
                return client.request(method, PATH, json=None if body is None else dict(body))
        except (httpx.HTTPError, OSError) as error:
            raise NotNowError(http.trouble(error)) from error
