"""What the server allows and how long it waits, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold for every request and connection. Times are in seconds, sizes in bytes.

    Attributes:
        body_bytes: largest request body. bodies_bytes: most of all bodies of requests that are being answered.
        headers: most header lines of a request. header_bytes: all of them together.
        prompt_bytes: text this long is refused unread unless the model's context could hold it; tokenising is the
            dearest thing a request can ask for before it is admitted.
        connections: most of them; beyond, one that waits for a request goes, and if none does, the new one is refused.
        header_s: a request's headers must be here so long after the connection, or their own first byte.
        body_s: longest silence while a body comes, and the whole time that one may take
            beyond what it takes at body_rate, bytes a second.
        unread_s: a client that takes nothing of its answer for so long is given up.
        linger_s: a connection that was closed must have taken the rest of its answer so long after.
        idle_s: whole seconds that a connection may wait for its next request; longer than most clients keep theirs.
        stalled_s: an engine that has not gone round its loop for so long is taken for dead.
        queue_wait_s: longest wait for the engine to begin with a request.
        rows_per_key: most answers at once for one of several keys, so that none can take the whole queue.
    """

    body_bytes: int = 32 * 2**20
    bodies_bytes: int = 256 * 2**20
    headers: int = 100
    header_bytes: int = 64 * 2**10
    prompt_bytes: int = 2**20
    connections: int = 256
    header_s: float = 10.0
    body_s: float = 30.0
    body_rate: float = 16 * 2**10
    unread_s: float = 300.0
    linger_s: float = 5.0
    idle_s: int = 75
    stalled_s: float = 60.0
    queue_wait_s: float = 600.0
    rows_per_key: int = 64
