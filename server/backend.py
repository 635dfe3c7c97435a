"""What every endpoint works with."""

from dataclasses import dataclass

from engine.handle import EngineHandle
from engine.retrieval.retriever import Retrieval
from server.facts import ServerFacts
from server.generation import Generations
from server.limits import Limits
from server.settings import LiveSettings
from server.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Backend:
    """The engine and what stands between it and the endpoints; made once for a server.

    Attributes:
        generations: the running answers; whoever stops the server ends them.
        retrieval: makes embeddings and rankings; None where the server was started without a model for either.
        settings: what may change while the server runs. telemetry: what is known of requests, past and present.
    """

    engine: EngineHandle
    generations: Generations
    limits: Limits
    settings: LiveSettings
    telemetry: Telemetry
    facts: ServerFacts
    retrieval: Retrieval | None = None
