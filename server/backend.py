"""What every endpoint works with."""

from dataclasses import dataclass

from engine.handle import EngineHandle
from server.generation import Generations
from server.limits import Limits


@dataclass(frozen=True, slots=True)
class Backend:
    """The engine and what stands between it and the endpoints; made once for a server.

    Attributes:
        generations: the running answers; whoever stops the server ends them.
    """

    engine: EngineHandle
    generations: Generations
    limits: Limits
