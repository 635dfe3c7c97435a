"""The server's life: a thread beside the engine's, a port, and an end that leaves no client waiting."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import uvicorn

from engine.events import Event, FailedEvent, LoadEvent, ReadyEvent
from engine.handle import EngineHandle
from engine.retrieval.retriever import Retrieval
from server.admin import server_facts
from server.app import create_app
from server.backend import Backend
from server.connection import connection_class, ours, sweep
from server.errors import ApiError
from server.generation import Generations
from server.health import failure_reason
from server.journal import Journal
from server.keys import Keys
from server.limits import Limits
from server.logs import prepare
from server.security import LOOPBACK_NAMES, own_names
from server.settings import LiveSettings, Settings, use_log_level
from server.sockets import ServerStartError as ServerStartError
from server.sockets import check_host, is_loopback, listen
from server.telemetry import Telemetry

DEFAULT_HOST = "localhost"
ADDRESSES = {"localhost": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}
"""Where this machine itself finds a server that listens on several addresses."""
OPEN_NETWORK = (
    "Other machines reach it with a key. Nothing is encrypted on the way: keep it within a network that you trust, or "
    "put a proxy with TLS in front."
)
POLL_S = 0.2
READERS = 32
"""Requests that are read and rendered at once. Most wait for a processor, but those with grammars for their turn to be
compiled, seconds each where they are hostile; with as few threads as Python starts, six of them kept all others out."""


class ServerThread:
    """Serves an engine over HTTP from a thread of its own. It never closes the engine.

    Args:
        host: an address of this machine; `localhost` is 127.0.0.1 and ::1. What other machines can reach needs keys.
        port: where this is taken, the next free one of the following 20 is used; 0 lets the system choose.
        settings: what holds until it is changed; live ones are shared with whoever else changes them.
        keys: one of these must come with each request, where there are any.
        allow_hosts: further names of this server that a Host header may have.
        retrieval: makes embeddings and rankings, on the same engine's thread.
        journal: what others who use the engine know of its requests, where there are some; it hears the engine already.

    Attributes:
        engine: what it serves. settings: what may change while it serves. telemetry: what is known of its requests.
    """

    def __init__(
        self,
        engine: EngineHandle,
        host: str = DEFAULT_HOST,
        port: int = 8000,
        limits: Limits | None = None,
        settings: Settings | LiveSettings | None = None,
        keys: Keys | None = None,
        allow_hosts: Iterable[str] = (),
        retrieval: Retrieval | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings if isinstance(settings, LiveSettings) else LiveSettings(settings)
        self.telemetry = Telemetry(engine, journal)
        self.engine = engine
        self._host = host
        self._exposed = not is_loopback(host)
        self._port = port
        self._limits = limits or Limits()
        self._keys = keys or Keys()
        self._allow_hosts = frozenset(name.lower() for name in allow_hosts)
        self._retrieval = retrieval
        self._generations = Generations(engine, self._limits, self.settings, self.telemetry)
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bound_port: int | None = None

    @property
    def address(self) -> str | None:
        """`http://127.0.0.1:8000` while the server runs, else None. Clients of the OpenAI API add `/v1`."""
        name = ADDRESSES.get(self._host, self._host)
        host = f"[{name}]" if ":" in name else name
        return None if self._bound_port is None else f"http://{host}:{self._bound_port}"

    def start(self) -> str:
        """Listen and serve; the answer is a line for the user that says where.

        Raises:
            ServerStartError: others can reach the host and there are no keys, or no port of the range is free.
        """
        if self._thread is not None:
            raise ServerStartError(f"The server already runs at {self.address}.")
        check_host(self._host, bool(self._keys))
        listeners = listen(self._host, self._port)
        self._bound_port = listeners[0].getsockname()[1]
        prepare()
        self.settings.listen(use_log_level)
        self.telemetry.open()
        assert self.address is not None
        facts = server_facts(self.address, keyed=bool(self._keys))
        backend = Backend(
            self.engine, self._generations, self._limits, self.settings, self.telemetry, facts, self._retrieval
        )
        hosts = LOOPBACK_NAMES | self._allow_hosts | (own_names(self._host) if self._exposed else frozenset())
        config = uvicorn.Config(
            create_app(backend, hosts, self._keys),
            http=connection_class(self._limits),  # on h11: httptools takes headers of 20 MB
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=self._limits.header_bytes,
            timeout_keep_alive=self._limits.idle_s,
        )
        self._server = uvicorn.Server(config)
        running = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(self._server, listeners, running),), name="mtplx-server", daemon=True
        )
        self._thread.start()
        running.wait()
        line = f"Serving at {self.address}/v1."
        if self._port not in (0, self._bound_port):
            line = f"Port {self._port} is taken; serving at {self.address}/v1 this time."
        return f"{line} {OPEN_NETWORK}" if self._exposed else line

    def stop(self, timeout: float = 5.0) -> bool:
        """Take no more requests, let running answers finish, and end those that do not with an error.

        Args:
            timeout: seconds until answers still running are ended; the stop itself takes up to two more.

        Returns:
            False where the thread did not end in that time.
        """
        thread, server, loop = self._thread, self._server, self._loop
        if thread is None or server is None or loop is None:
            return True
        # Clients that do not take the end of their answers are dropped a second later.
        server.config.timeout_graceful_shutdown = round(timeout) + 1
        server.should_exit = True
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(self.telemetry.hub.close)
        thread.join(timeout)
        if thread.is_alive():
            self.end_answers()
            thread.join(2.0)
        if thread.is_alive():
            return False
        self.telemetry.close()
        self._thread = self._server = self._loop = self._bound_port = None
        return True

    def processor_s(self) -> float:
        """Seconds of processor time that the server's thread has used; it must run."""
        assert self._loop is not None

        async def used() -> float:
            return time.thread_time()

        return asyncio.run_coroutine_threadsafe(used(), self._loop).result()

    def end_answers(self) -> None:
        """End the answers that run with an error that tells their clients why. May be called from a signal handler."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has closed: nothing runs
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._generations.abort_all(ApiError(503, "The server is shutting down.", code="shutting_down"))
        if self._server is not None:
            for connection in ours(self._server.server_state.connections):
                connection.end_if_asking()

    async def _serve(self, server: uvicorn.Server, listeners: list[socket.socket], running: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(READERS, "mtplx-reader"))
        connections = server.server_state.connections
        sweeper = asyncio.create_task(sweep(connections, self._limits))
        running.set()
        try:
            await server.serve(listeners)
        finally:
            sweeper.cancel()
            for connection in ours(connections):
                connection.transport.abort()


def serve(server: ServerThread, *, say: Callable[[str], None], grace: float = 10.0) -> int:
    """Serve until SIGINT or SIGTERM, or until the engine fails for good; must run in the main thread.

    The first signal gives running answers `grace` seconds to finish; a second one ends them at once.

    Returns:
        The exit status: 0 after a signal, 1 where the engine failed.

    Raises:
        ServerStartError: as `ServerThread.start`.
    """
    engine = server.engine
    over = threading.Event()
    failed: list[str] = []
    lines: SimpleQueue[str] = SimpleQueue()  # said from this thread: the engine's must not wait for a terminal

    def on_signal(number: int, frame: object) -> None:
        if over.is_set():
            server.end_answers()
        over.set()

    def on_event(event: Event) -> None:
        if isinstance(event, LoadEvent):
            lines.put(event.stage)
        elif isinstance(event, ReadyEvent):
            lines.put(f"{event.model} is ready again.")
        elif isinstance(event, FailedEvent):
            failed.append(event.error)
            over.set()

    unlisten = engine.listen(on_event)
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        say(server.start())
        if engine.state == "failed" and not failed:  # it failed before anybody listened
            failed.append(failure_reason(engine))
        while not (failed or over.is_set()):
            with suppress(Empty):
                say(lines.get(timeout=POLL_S))
        say(f"The engine failed: {failed[0]}" if failed else f"Stopping; running answers have {grace:g} s to finish.")
        server.stop(grace)
    finally:
        unlisten()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if failed else 0
