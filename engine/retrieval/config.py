"""What retrieval is started with."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """The models, each as `engine.models.locate` takes it, or None for none.

    Attributes:
        embedding: makes vectors of texts. rerank: scores documents for a query. Where both are one, it is loaded once.
        idle_s: seconds without use after which a model's weights are let go of; the next use loads them again.
    """

    embedding: str | None = None
    rerank: str | None = None
    idle_s: float = 15 * 60.0
