"""The settings that an engine and its server take while they run: those of this process, and how a screen asks for any.

Nothing heavy is imported before a setting is asked for, since the first frame waits.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from engine.config import Mode
from engine.errors import EngineError
from engine.handle import EngineHandle, ModelInfo
from engine.request import Request

if TYPE_CHECKING:
    from server.settings import LiveSettings


@dataclass(frozen=True, slots=True)
class Held:
    """A setting of a server. `effective` is the value, or the model's own where that is None and known."""

    value: Any
    effective: Any


class ServerSettings(Protocol):
    """Both may be slow, and may be called from any thread. They raise NotNowError where a server can not be reached."""

    def read(self) -> Mapping[str, Held]:
        """All of them by name."""

    def change(self, changes: Mapping[str, Any]) -> None:
        """Change some; None takes one back to its default. Raises SettingError with the reason where one is refused."""


class LocalSettings:
    """Those of the engine and server in this process.

    Args:
        start: values by name that hold from the start, checked already.
    """

    def __init__(self, start: Mapping[str, Any], engine: EngineHandle) -> None:
        self._start = dict(start)
        self._engine = engine
        self._lock = threading.Lock()
        self._live: LiveSettings | None = None
        self._applied: tuple[ModelInfo, object, ModelInfo] | None = None

    @property
    def live(self) -> "LiveSettings":
        """What the server takes; made when it is first asked for."""
        with self._lock:
            if self._live is None:
                from server.settings import LiveSettings, Settings

                self._live = LiveSettings(Settings(**self._start))
            return self._live

    @property
    def plain(self) -> bool:
        """Whether nothing was set, so that all is the model's own."""
        return self._live is None and not self._start

    def applied(self, model: ModelInfo) -> ModelInfo:
        """The model with the sampling that answers begin from: its own, or what is set."""
        if self.plain:
            return model
        value, known = self.live.value, self._applied
        if known is None or known[0] is not model or known[1] is not value:
            known = self._applied = (model, value, replace(model, sampling=value.sampling(model.sampling)))
        return known[2]

    def completed(self, request: Request, mode: Mode) -> Request:
        """The request with the depth and the most tokens that are set, where it names none."""
        if self.plain:
            return request
        value = self.live.value
        (drafted,) = value.drafted([request], mode)
        return replace(drafted, max_tokens=drafted.max_tokens or value.max_tokens)

    def read(self) -> Mapping[str, Held]:
        from server.settings import describe

        model = self._model()
        rows = describe(self.live.value, None if model is None else model.sampling)
        return {row["name"]: Held(row["value"], row["effective"]) for row in rows}

    def _model(self) -> ModelInfo | None:
        try:
            return self._engine.model
        except EngineError:
            return None

    def change(self, changes: Mapping[str, Any]) -> None:
        from mtplx_tui.saved_settings import SettingError
        from server.errors import ApiError
        from server.settings import asks_for_drafts

        model = self._model()
        if model is not None and asks_for_drafts(changes, model.mode):
            raise SettingError(f"{model.name} runs without drafts (mode ar); depth can be auto or 0.")
        try:
            self.live.set(changes)
        except ApiError as error:
            raise SettingError(error.message) from error
