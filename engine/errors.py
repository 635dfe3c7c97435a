"""Everything the engine can refuse, as one tree. Each message names the cause, the value and the way on."""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose; its text can be shown to a user as it is."""


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
    """As many requests wait as may; try again later."""


class OutOfMemoryError(EngineError):
    """The request's caches would not fit beside what runs, or not at all; nothing of it was begun."""


class NumericalError(EngineError):
    """The model gave a logit that is not a finite number, so no token can be drawn from it."""


class EngineClosedError(EngineError):
    """The engine has stopped, or failed earlier; nothing more can be submitted to it."""
