"""The child that guard.py runs: engine, server and screen in one process."""

import asyncio
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mtplx_tui import exit_codes, guarded, paths

if TYPE_CHECKING:
    from engine.handle import EngineHandle
    from server.run import ServerThread

HOST, PORT = "127.0.0.1", 8000
SERVER_WAIT_SECONDS = 3.0
"""Imports share one interpreter lock. The screen's come first, then the model's, then the server's: with all at once
the first frame came 1.5 s later. A model that loads for longer than this is served (as loading) while it does."""


def main() -> None:
    """Arguments: the settings as JSON, and the pipe's end from guard.py."""
    settings = json.loads(sys.argv[1])
    guarded.enter(int(sys.argv[2]), paths.log_file())
    try:
        code = _run(settings)
    except SystemExit as stop:  # a signal came before there was a screen
        code = int(stop.code or 0)
    except Exception:
        traceback.print_exc()  # into the log; guard.py tells the user
        code = exit_codes.INTERNAL
    sys.stderr.flush()
    os._exit(code)  # threads of libraries may still run, and none of them has anything left to save


def _run(settings: dict[str, Any]) -> int:
    guarded.stop_on_signals(lambda number: sys.exit(exit_codes.SIGNALLED + number))
    from engine.engine import ThreadEngine
    from mtplx_tui.app import MtplxApp
    from mtplx_tui.link import LocalLink
    from mtplx_tui.options import EngineOptions
    from mtplx_tui.saved_tuning import with_saved_tuning
    from mtplx_tui.store import Store, StoreError

    try:
        store = Store(paths.sessions_file())
    except StoreError as error:
        print(error, file=sys.__stderr__, flush=True)
        return exit_codes.FAILED
    config = replace(EngineOptions(**settings["options"]).config(), cache_folder=paths.prefixes_folder())
    engine = ThreadEngine(with_saved_tuning(config))
    server = LateServer(engine)
    app = MtplxApp(LocalLink(engine), store, lambda: server.line, glyphs="ascii" if settings["ascii"] else "unicode")

    def stop(number: int) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            sys.exit(exit_codes.SIGNALLED + number)
        loop.call_soon_threadsafe(partial(app.exit, return_code=exit_codes.SIGNALLED + number))

    guarded.stop_on_signals(stop)
    app.run()
    server.stop()
    engine.close(timeout=2.0)
    store.close()
    return exit_codes.INTERNAL if app.return_code == 1 else app.return_code or exit_codes.OK


class LateServer:
    """The HTTP server, started when the model is there.

    Attributes:
        line: where it serves, or why it does not, in words for the screen.
    """

    def __init__(self, engine: "EngineHandle") -> None:
        self.line = "starts when the model is loaded"
        self._engine = engine
        self._server: ServerThread | None = None
        threading.Thread(target=self._start, name="server-start", daemon=True).start()

    def stop(self) -> None:
        """End it; answers that run for others get a second to finish."""
        if self._server is not None:
            self._server.stop(timeout=1.0)

    def _start(self) -> None:
        from engine.errors import EngineError

        with suppress(EngineError, TimeoutError):
            self._engine.wait_ready(SERVER_WAIT_SECONDS)
        from server.run import ServerStartError, ServerThread

        server = ServerThread(self._engine, HOST, PORT)
        try:
            server.start()
        except ServerStartError as error:
            self.line = str(error)
            return
        self._server = server
        taken = "" if server.address == f"http://{HOST}:{PORT}" else f" ({PORT} is taken)"
        self.line = f"{server.address}/v1{taken}"


if __name__ == "__main__":
    main()
