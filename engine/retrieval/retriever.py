"""Embeddings of texts and scores of documents, computed on the engine's thread, beside what else it does.

No mlx is imported before a job runs.
"""

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from engine.errors import EngineError, OutOfMemoryError
from engine.memory import out_of_memory
from engine.retrieval.card import Card, Role, read_card
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.jobs import Worker, perform_all
from engine.retrieval.residents import Residents
from engine.retrieval.texts import Reader, Tokens
from engine.scheduler import ChunkSize

if TYPE_CHECKING:
    import mlx.core as mx

    from engine.retrieval.load import Encoder

log = logging.getLogger(__name__)
T = TypeVar("T")

JOB_TOKENS = 1024  # most tokens that one job runs, padding included
JOB_S = 0.25
"""Seconds that a job should take at most. Chats that run wait so long for each, as they do for a chunk of a prompt."""


class Retrieval:
    """The embedding model and the reranker that a server was started with, either of which may be missing.

    Inputs are checked by their sender: ids within the vocabulary, lengths within the window.

    Attributes:
        embedding, rerank: the models' cards; None where there is none.

    Raises:
        ModelNotFoundError, ModelBrokenError, UnsupportedModelError: on making one, as `read_card`.
    """

    def __init__(self, engine: Worker, config: RetrievalConfig) -> None:
        self.embedding = None if config.embedding is None else read_card(config.embedding, "embedding")
        self.rerank = None if config.rerank is None else read_card(config.rerank, "rerank")
        self._engine = engine
        self._residents = Residents(engine, config.idle_s)
        self._sizes = ChunkSize(JOB_TOKENS, JOB_S)  # the engine thread's
        self._readers: dict[Role, Reader] = {}
        self._reading = threading.Lock()

    @property
    def loaded(self) -> list[Path]:
        """Folders of the models that hold memory now."""
        return self._residents.loaded

    def card(self, role: Role) -> Card | None:
        """The model that does this, if there is one."""
        return self.embedding if role == "embedding" else self.rerank

    def reader(self, card: Card) -> Reader:
        """The tokenizer of one of the models, made when it is first asked for: slow then. Any thread may ask.

        Raises ModelBrokenError where it can not be made.
        """
        with self._reading:
            if card.role not in self._readers:
                self._readers[card.role] = Reader(card)
            return self._readers[card.role]

    def embed(self, inputs: Sequence[Tokens], dimensions: int | None = None) -> "Future[list[bytes]]":
        """Start to make the vectors of `inputs`: little-endian float32, in their order.

        Cancelling the future ends the work after the present job.

        Args:
            dimensions: how many of the values to keep; what is kept gets length 1. None keeps all.
        Raises:
            EngineError: the engine does not run. The future has OutOfMemoryError where the model does not fit beside
                what runs, ModelBrokenError or NumericalError.
        """
        card = self.embedding
        assert card is not None

        def rows(encoder: "Encoder", hidden: "mx.array", lengths: list[int]) -> "mx.array":
            from engine.retrieval.pooling import vectors

            return vectors(hidden, lengths, card, dimensions)

        def values(result: "mx.array") -> list[bytes]:
            data, size = memoryview(cast(Any, result)).tobytes(), 4 * result.shape[1]
            return [data[start : start + size] for start in range(0, len(data), size)]

        return perform_all(self._engine, self._steps(card, inputs, rows, values), self._observe)

    def score(self, pairs: Sequence[Tokens]) -> "Future[list[float]]":
        """Start to score queries with documents; the higher, the more relevant. Otherwise as `embed`."""
        card = self.rerank
        assert card is not None
        answers = self.reader(card).answers

        def rows(encoder: "Encoder", hidden: "mx.array", lengths: list[int]) -> "mx.array":
            from engine.retrieval.pooling import relevance

            return relevance(encoder.scores(hidden, lengths, answers), card)

        def values(result: "mx.array") -> list[float]:
            return cast(list[float], result.tolist())

        return perform_all(self._engine, self._steps(card, pairs, rows, values), self._observe)

    def _steps(
        self,
        card: Card,
        inputs: Sequence[Tokens],
        rows: "Callable[[Encoder, mx.array, list[int]], mx.array]",
        values: "Callable[[mx.array], list[T]]",
    ) -> Generator[float, None, list[T]]:
        """The values of all inputs, those of a length together; yields tokens done, as `forward.run`."""
        from engine.retrieval.forward import next_batch, run

        results: dict[int, T] = {}
        order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place].ids))
        failure: EngineError | None = None
        try:
            with self._residents.using(card) as model:
                yield from model.read()
                while order:
                    size = self._sizes.beside()
                    places = next_batch(inputs, order, size)
                    batch = [inputs[place] for place in places]
                    result = yield from run(model.encoder, batch, size, rows)
                    results.update(zip(places, values(result), strict=True))
        except EngineError:
            raise
        except Exception as error:
            failure = _told(error, len(inputs))
        if failure is not None:  # raised here, where it does not hold the error and what that held of the arrays
            raise failure
        return [results[place] for place in range(len(inputs))]

    def _observe(self, tokens: float, seconds: float) -> None:
        self._sizes.observe(int(tokens), seconds)


def _told(error: Exception, inputs: int) -> EngineError:
    """What the client is told of a job that failed; the log has all of it."""
    log.error("a retrieval job failed", exc_info=error)
    if not out_of_memory(error):
        return EngineError(f"The model failed on this request ({type(error).__name__}); the log has more.")
    return OutOfMemoryError(
        f"The machine had no more memory to give while {inputs} inputs were read. Send fewer or shorter ones, close "
        "other programs, or use a smaller model."
    )
