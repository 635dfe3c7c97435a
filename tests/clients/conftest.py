from collections.abc import Iterator

import pytest

from engine.config import EngineConfig
from engine.handle import EngineHandle
from server.run import ServerThread


@pytest.fixture(scope="session")
def demo_engine() -> Iterator[EngineHandle]:
    """The real engine with the bundled model, as the TUI has it."""
    from engine.engine import ThreadEngine

    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def api(demo_engine: EngineHandle) -> Iterator[str]:
    """The base URL that a user gives to an OpenAI client."""
    server = ServerThread(demo_engine, port=0)
    server.start()
    yield f"{server.address}/v1"
    server.stop(1.0)


@pytest.fixture
def own_api(demo_engine: EngineHandle) -> Iterator[str]:
    """The /v1 of a server that nobody has asked anything."""
    server = ServerThread(demo_engine, port=0)
    server.start()
    yield f"{server.address}/v1"
    assert server.stop(1.0)
