"""Why a tool gives no result."""


class ToolError(Exception):
    """A call that can not be done. The text goes to the model, and the user reads it on the card."""
