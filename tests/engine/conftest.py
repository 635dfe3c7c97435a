"""The bundled model, loaded once for all engine tests."""

from collections.abc import Iterator

import pytest

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine


@pytest.fixture(scope="session")
def direct() -> DirectEngine:
    """demo-13m on this thread."""
    return DirectEngine(EngineConfig())


@pytest.fixture(scope="session")
def engine() -> Iterator[ThreadEngine]:
    """demo-13m on an engine thread."""
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready()
    yield engine
    assert engine.close()
