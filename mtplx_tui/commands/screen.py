"""The child that guard.py runs: engine, server and screen in one process."""

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtplx_tui import exit_codes, guarded, paths

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.events import Event
    from engine.handle import EngineHandle, EventSink
    from mtplx_tui.glyphs import GlyphName
    from mtplx_tui.link import Link
    from mtplx_tui.remote.probe import Kind
    from mtplx_tui.server_settings import LocalSettings, ServerSettings
    from mtplx_tui.services import Chosen, Remote
    from mtplx_tui.switch import ModelSwitch
    from server.journal import Journal
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


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine is. `server_line` is its server's address, or why there is none, in words."""

    link: "Link"
    server_line: Callable[[], str]
    switch: "ModelSwitch | None" = None
    remote: "Remote | None" = None
    notice: str | None = None
    settings: "ServerSettings | None" = None


def _run(settings: dict[str, Any]) -> int:
    guarded.stop_on_signals(lambda number: sys.exit(exit_codes.SIGNALLED + number))
    from mtplx_tui.app import MtplxApp
    from mtplx_tui.services import Chosen
    from mtplx_tui.store import Store, StoreError
    from mtplx_tui.tour import Tour

    try:
        store = Store(paths.sessions_file())
    except StoreError as error:
        print(error, file=sys.__stderr__, flush=True)
        return exit_codes.FAILED
    glyphs: GlyphName = "ascii" if settings["ascii"] else "unicode"
    given = settings.get("link")
    chosen = Chosen(**settings.get("chosen", {}))
    with _here(settings["options"], chosen) if given is None else _there(**given) as place:
        notices = [*settings.get("notes", ()), *([place.notice] if place.notice else [])]
        app = MtplxApp(
            place.link, store, place.server_line, glyphs,
            switch=place.switch, remote=place.remote, notice="\n".join(notices) or None,
            settings=place.settings, chosen=chosen, tour=Tour(paths.tour_file()),
        )  # fmt: skip

        def stop(number: int) -> None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                sys.exit(exit_codes.SIGNALLED + number)
            loop.call_soon_threadsafe(partial(app.exit, return_code=exit_codes.SIGNALLED + number))

        guarded.stop_on_signals(stop)
        app.run()
    store.close()
    return exit_codes.INTERNAL if app.return_code == 1 else app.return_code or exit_codes.OK


@contextmanager
def _here(options: dict[str, Any], chosen: "Chosen") -> Iterator[Place]:
    """An engine of our own, with a server around it."""
    from engine.engine import ThreadEngine
    from engine.supervised import SupervisedEngine
    from mtplx_tui.link import LocalLink
    from mtplx_tui.options import EngineOptions
    from mtplx_tui.saved_tuning import with_saved_tuning
    from mtplx_tui.server_settings import LocalSettings
    from mtplx_tui.switch import Choice, SwitchableEngine

    config = replace(EngineOptions(**options).config(), cache_folder=paths.prefixes_folder())

    def start(choice: Choice, on_event: "EventSink") -> "EngineHandle":
        depth = None if choice.mode == "ar" else config.depth
        chosen = replace(config, model=choice.model, mode=choice.mode, depth=depth)
        return SupervisedEngine(partial(ThreadEngine, with_saved_tuning(chosen)), on_event)

    engine = SwitchableEngine(start, Choice(config.model, config.mode))
    held = LocalSettings(chosen.live, engine)
    link = LocalLink(engine, held)
    server = LateServer(engine, link.journal, held, chosen.kept.get("port", PORT), config)
    yield Place(link, lambda: server.line, engine, settings=held)
    server.stop()
    engine.close(timeout=2.0)


@contextmanager
def _there(url: str, kind: "Kind", key_file: str | None, attached: bool) -> Iterator[Place]:
    """The engine behind a server; `attached` says that it is on this machine, and nobody asked for it by name."""
    from mtplx_tui.remote import http
    from mtplx_tui.remote.openai import OpenAILink
    from mtplx_tui.remote.ours import RemoteLink
    from mtplx_tui.remote.settings import RemoteSettings
    from mtplx_tui.services import Remote

    key = http.read_key(None if key_file is None else Path(key_file))
    link = RemoteLink(url, key) if kind == "ours" else OpenAILink(url, key)
    notice = (
        f"This model runs here already, at {url}: this screen shows that one and loads none. When the program that "
        "runs it ends, its engine does too."
    )
    remote = None if attached else Remote(url, lambda: getattr(link, "figures", None))
    held = RemoteSettings(url, key) if kind == "ours" else None
    yield Place(link, lambda: link.line, remote=remote, notice=notice if attached else None, settings=held)
    link.close()


class LateServer:
    """The HTTP server, started when the model is there, and announced to other commands under the model it has.

    Attributes:
        line: where it serves, or why it does not, in words for the screen.
    """

    def __init__(
        self, engine: "EngineHandle", journal: "Journal", settings: "LocalSettings", port: int, config: "EngineConfig"
    ) -> None:
        self.line = "starts when the model is loaded"
        self._settings = settings
        self._port = port
        self._config = config
        self._journal = journal
        self._engine = engine
        self._server: ServerThread | None = None
        self._announced = ExitStack()
        self._lock = threading.Lock()  # who announces
        threading.Thread(target=self._start, name="server-start", daemon=True).start()

    def stop(self) -> None:
        """End it; answers that run for others get a second to finish."""
        with self._lock:
            server, self._server = self._server, None
            self._announced.close()
        if server is not None:
            server.stop(timeout=1.0)

    def _start(self) -> None:
        from engine.errors import EngineError

        with suppress(EngineError, TimeoutError):
            self._engine.wait_ready(SERVER_WAIT_SECONDS)
        from server.keys import KeysError, load_keys
        from server.run import ServerStartError, ServerThread

        try:
            keys = load_keys()
            server = ServerThread(
                self._engine, port=self._port, settings=self._settings.live, keys=keys, journal=self._journal
            )
            server.start()
        except (KeysError, ServerStartError) as error:
            self.line = str(error)
            return
        self._server = server
        as_asked = self._port == 0 or server.address == f"http://{HOST}:{self._port}"
        taken = "" if as_asked else f" ({self._port} is taken)"
        self.line = f"{server.address}/v1{taken}"
        with suppress(EngineError):
            self._engine.wait_ready()
        self._announce(bool(keys))
        self._engine.listen(lambda event: self._hear(event, bool(keys)))

    def _hear(self, event: "Event", keyed: bool) -> None:
        from engine.events import LoadEvent, ReadyEvent

        if isinstance(event, LoadEvent | ReadyEvent):  # another model; files are no work for the engine's thread
            threading.Thread(target=self._announce, args=(keyed,), name="server-announce", daemon=True).start()

    def _announce(self, keyed: bool) -> None:
        """Tell other commands which model is served here now; none while there is none."""
        from engine.errors import EngineError
        from mtplx_tui.running import Front, announced

        with self._lock, suppress(EngineError):
            self._announced.close()
            if self._server is not None and self._server.address is not None:
                address, front = self._server.address, Front(port=self._port)
                self._announced.enter_context(
                    announced(address, "workbench", self._engine.model, keyed, self._config, front)
                )


if __name__ == "__main__":
    main()
