"""The models that most engine tests use, loaded once for all."""

from collections.abc import Iterator

import pytest
from tiny_models import make, save

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine


@pytest.fixture(scope="session")
def direct() -> DirectEngine:
    """demo-13m on this thread."""
    return DirectEngine(EngineConfig())


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> DirectEngine:
    """A model of random weights on this thread, with all kinds of caches and a context of 2048.

    A step costs a quarter of one of demo-13m, and a token of a prompt a tenth. Ids under 256 are plain text.
    """
    folder = save(tmp_path_factory.mktemp("small") / "model", make("qwen3_5", max_position_embeddings=2048))
    return DirectEngine(EngineConfig(model=str(folder)))


@pytest.fixture(scope="session")
def engine() -> Iterator[ThreadEngine]:
    """demo-13m on an engine thread."""
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready()
    yield engine
    assert engine.close()
