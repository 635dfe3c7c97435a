"""What reading one tool call means, whichever style it is written in."""

from typing import Literal, Protocol

CallState = Literal["open", "whole", "broken"]

CLOSE_TAG = "</tool_call>"


class CallSyntax(Protocol):
    """Reads the text of one call, without its tags.

    Each method gives the next characters of the arguments: JSON, which at the end of a call that began is whole even
    where the call is broken.

    Attributes:
        name: the tool; empty until it is certain that this is a call of it.
        state: whole once the call has come to its proper end; broken where what came can not go on to one.
        rest: of a broken call, what is not part of its arguments.
    """

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> CallState: ...

    @property
    def rest(self) -> str: ...

    def feed(self, text: str) -> str:
        """Add text."""

    def close(self) -> str:
        """A closing tag comes: the end of the call, or a part of the text if the call has not come to its end."""

    def stop(self) -> str:
        """Nothing more comes."""
