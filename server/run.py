"""The server's life: a thread beside the engine's, a port, and an end that leaves no client waiting."""

import asyncio
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from engine.events import Event, FailedEvent
from engine.handle import EngineHandle
from server.app import create_app
from server.backend import Backend
from server.errors import ApiError
from server.generation import Generations
from server.health import failure_reason
from server.limits import Limits

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PORTS_TRIED = 21
HEADER_BYTES = 64 * 1024


class ServerStartError(Exception):
    """The server can not listen where it was told to; the text can be shown to a user as it is."""


class ServerThread:
    """Serves an engine over HTTP from a thread of its own. It never closes the engine.

    Args:
        host: a loopback address; there are no keys yet, so anything else is refused.
        port: where this is taken, the next free one of the following 20 is used; 0 lets the system choose.
    """

    def __init__(
        self, engine: EngineHandle, host: str = "127.0.0.1", port: int = 8000, limits: Limits | None = None
    ) -> None:
        self._engine = engine
        self._host = host
        self._port = port
        self._limits = limits or Limits()
        self._generations = Generations(engine, self._limits)
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bound_port: int | None = None

    @property
    def address(self) -> str | None:
        """`http://127.0.0.1:8000` while the server runs, else None. Clients of the OpenAI API add `/v1`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return None if self._bound_port is None else f"http://{host}:{self._bound_port}"

    def start(self) -> str:
        """Listen and serve; the answer is a line for the user that says where.

        Raises:
            ServerStartError: the host is not loopback, or no port of the range is free.
        """
        if self._thread is not None:
            raise ServerStartError(f"The server already runs at {self.address}.")
        listener = _listen(self._host, self._port)
        self._bound_port = listener.getsockname()[1]
        # Without a handler, Python writes warnings to stderr, which is the middle of somebody's screen.
        for name in ("uvicorn", "server"):
            logging.getLogger(name).addHandler(logging.NullHandler())
        config = uvicorn.Config(
            create_app(Backend(self._engine, self._generations, self._limits)),
            http="h11",  # httptools takes headers of 20 MB
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        self._server = uvicorn.Server(config)
        running = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(self._server, listener, running),), name="mtplx-server", daemon=True
        )
        self._thread.start()
        running.wait()
        if self._port not in (0, self._bound_port):
            return f"Port {self._port} is taken; serving at {self.address}/v1 this time."
        return f"Serving at {self.address}/v1."

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
        # Half-sent requests have no answer that could be ended; uvicorn drops them a second later.
        server.config.timeout_graceful_shutdown = round(timeout) + 1
        server.should_exit = True
        thread.join(timeout)
        if thread.is_alive():
            self.end_answers()
            thread.join(2.0)
        if thread.is_alive():
            return False
        self._thread = self._server = self._loop = self._bound_port = None
        return True

    def end_answers(self) -> None:
        """End the answers that run with an error that tells their clients why. May be called from a signal handler."""
        if self._loop is not None:
            error = ApiError(503, "The server is shutting down.", code="shutting_down")
            with suppress(RuntimeError):  # the loop has closed: nothing runs
                self._loop.call_soon_threadsafe(self._generations.abort_all, error)

    async def _serve(self, server: uvicorn.Server, listener: socket.socket, running: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        running.set()
        await server.serve([listener])


def serve(
    engine: EngineHandle,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    say: Callable[[str], None],
    grace: float = 10.0,
) -> int:
    """Serve until SIGINT or SIGTERM, or until the engine fails; must run in the main thread.

    The first signal gives running answers `grace` seconds to finish; a second one ends them at once.

    Returns:
        The exit status: 0 after a signal, 1 where the engine failed.

    Raises:
        ServerStartError: as `ServerThread.start`.
    """
    server = ServerThread(engine, host, port)
    over = threading.Event()
    failed: list[str] = []

    def on_signal(number: int, frame: object) -> None:
        if over.is_set():
            server.end_answers()
        over.set()

    def on_event(event: Event) -> None:
        if isinstance(event, FailedEvent):
            failed.append(event.error)
            over.set()

    unlisten = engine.listen(on_event)
    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        say(server.start())
        if engine.state == "failed" and not failed:  # it failed before anybody listened
            failed.append(failure_reason(engine))
        else:
            over.wait()
        say(f"The engine failed: {failed[0]}" if failed else f"Stopping; running answers have {grace:g} s to finish.")
        server.stop(grace)
    finally:
        unlisten()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if failed else 0


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket on the first free port from `port` on. Raises ServerStartError."""
    if host not in LOOPBACK:
        raise ServerStartError(
            f"{host} can be reached from other machines and the server has no keys yet; use 127.0.0.1."
        )
    if not 0 <= port <= 65535:
        raise ServerStartError(f"Port {port} does not exist; choose one from 0 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # A port whose last owner has just closed is free; one that somebody listens on is not.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(128)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise ServerStartError(f"{host}:{candidate} can not be used: {error.strerror or error}.") from error
        else:
            return listener
    raise ServerStartError(f"Ports {port} to {candidate} of {host} are all taken; choose another with --port.")
