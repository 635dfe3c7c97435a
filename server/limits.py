"""What the server allows and how long it waits, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for every request.

    Attributes:
        body_bytes: largest request body.
        headers: most header lines of a request (their bytes are bounded by the HTTP parser).
        prompt_bytes: text this long is refused unread unless the model's context could hold it; tokenising is the
            dearest thing a request can ask for before it is admitted.
        keep_alive_s: silence on a stream after which a comment is sent. Some clients fail on comments, so it is long.
        stalled_s: an engine that has not gone round its loop for so long is taken for dead.
    """

    body_bytes: int = 32 * 2**20
    headers: int = 100
    prompt_bytes: int = 2**20
    keep_alive_s: float = 15.0
    stalled_s: float = 60.0
