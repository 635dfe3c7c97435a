"""Everything the engine can refuse, as one tree. Each message names the cause, the value and the way on."""

import copyreg
from typing import Any


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose; its text can be shown to a user as it is.

    They come out of a pickle as they went in, whatever their constructors take, so that one raised in another process
    keeps its type and fields.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class MLXMissingError(EngineError):
    """MLX, which runs the models, is not installed."""


class ModelNotFoundError(EngineError):
    """No model of that name or path is here."""


class ModelBrokenError(EngineError):
    """The model's files are here, but incomplete, damaged or of the wrong shapes."""


class UnsupportedModelError(EngineError):
    """The checkpoint's architecture is not one that this engine runs."""


class NoMTPHeadError(EngineError):
    """MTP was asked for (it is the default) and the checkpoint carries no head."""


class BadRequestError(EngineError):
    """A request that can not be run as it stands; `param` names the field at fault.

    Nothing of it has reached the model.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextOverflowError(BadRequestError):
    """The prompt leaves no room in the model's context window."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"The prompt has {prompt_tokens} tokens and this model's context holds {context}. "
            "Shorten it or start a new chat.",
            param="messages",
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class QueueFullError(EngineError):
    """As many requests are here as may be; nothing of this one was taken in, and it can be sent again later."""

    def __init__(self, max_rows: int, max_waiting: int) -> None:
        super().__init__(
            f"{max_rows + max_waiting} requests are here, as many as may be: {max_rows} are answered at once and "
            f"{max_waiting} may wait. Try again in a moment, or start the engine with more room for waiting ones."
        )
        self.max_rows = max_rows
        self.max_waiting = max_waiting


class OutOfMemoryError(EngineError):
    """The request's caches would not fit beside what runs, or not at all; nothing of it was begun."""


class NumericalError(EngineError):
    """The model gave a logit that is not a finite number, so no token can be drawn from it."""


class EngineClosedError(EngineError):
    """The engine has stopped, or failed earlier; nothing more can be submitted to it."""
