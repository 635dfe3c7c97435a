"""The folder's engines and servers, loaded once, and clients on them.

Clients are made with `verify=False`: there is no TLS here, and reading the system's certificates costs 30 ms a client.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import KEY, Connect
from scripted_engine import ScriptedEngine

import engine
from engine.chat import ChatFormat, load_chat_format
from engine.config import EngineConfig
from engine.handle import EngineHandle
from server.keys import Keys
from server.limits import Limits
from server.run import ServerThread
from server.settings import Settings


@pytest.fixture(scope="session")
def demo_engine() -> Iterator[EngineHandle]:
    """The real engine with the bundled model, loaded once for the folder."""
    from engine.engine import ThreadEngine

    real = ThreadEngine(EngineConfig())
    real.wait_ready(120)
    yield real
    real.close()


@pytest.fixture(scope="session")
def demo_url(demo_engine: EngineHandle) -> Iterator[str]:
    server = ServerThread(demo_engine, port=0)
    server.start()
    assert server.address is not None
    yield server.address
    server.stop(1.0)


@pytest.fixture
def demo(demo_url: str) -> Iterator[httpx.Client]:
    """An HTTP client on the real engine."""
    with httpx.Client(base_url=demo_url, timeout=60, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture(scope="session")
def chat_format() -> ChatFormat:
    return load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m")


@pytest.fixture(scope="session")
def shared_engine(chat_format: ChatFormat) -> ScriptedEngine:
    return ScriptedEngine(chat_format)


@pytest.fixture(scope="session")
def shared_server(shared_engine: ScriptedEngine) -> Iterator[str]:
    """A server over the scripted engine with the limits that users get: starting one for each test costs 0.3 s."""
    server = ServerThread(shared_engine, port=0)
    server.start()
    assert server.address is not None
    yield server.address
    assert server.stop(0.5)


@pytest.fixture
def keyed_server(scripted: ScriptedEngine) -> Iterator[str]:
    """The address of a server that asks for KEY."""
    server = ServerThread(scripted, port=0, keys=Keys([KEY]))
    server.start()
    assert server.address is not None
    yield server.address
    assert server.stop(0.5)


@pytest.fixture
def scripted(shared_engine: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """The scripted engine as new."""
    shared_engine.reset()
    yield shared_engine
    shared_engine.close()


@pytest.fixture
def client(shared_server: str, scripted: ScriptedEngine) -> Iterator[httpx.Client]:
    """An HTTP client on the scripted engine. It waits less than a keep-alive takes: no event may lie about."""
    with httpx.Client(base_url=shared_server, timeout=10, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def connect(scripted: ScriptedEngine) -> Iterator[Connect]:
    """Starts a server of its own over the scripted engine, with these limits and settings, and gives an HTTP client
    on it."""
    running: list[tuple[ServerThread, httpx.Client]] = []

    def start(**given: Any) -> httpx.Client:
        settings = {name: given.pop(name) for name in Settings.model_fields if name in given}
        server = ServerThread(scripted, port=0, limits=Limits(**given), settings=Settings(**settings))
        server.start()
        assert server.address is not None
        client = httpx.Client(base_url=server.address, timeout=20, trust_env=False, verify=False)
        running.append((server, client))
        return client

    yield start
    for server, client in running:
        client.close()
        assert server.stop(0.5)
