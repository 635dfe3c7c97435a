"""`mtplx-tui serve`: the OpenAI-compatible server without the screen."""

import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common, defaults
from mtplx_tui.commands.common import (
    CommandFailedError,
    DepthOption,
    EngineOptions,
    JsonOption,
    KvBitsOption,
    MemoryOption,
    ModelOption,
    ModeOption,
    ProfileOption,
    UsageError,
)

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.handle import EventSink
    from engine.supervised import SupervisedEngine
    from server.settings import Settings

GRACE_SECONDS = 10.0


def serve(
    context: typer.Context,
    model: ModelOption = None,
    mode: ModeOption = "mtp",
    depth: DepthOption = "auto",
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    memory: MemoryOption = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. What other machines can reach needs a key.")
    ] = "localhost",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it is taken, the next free one is used.")] = 8000,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys, one a line, in a file that only you can read (chmod 600)."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name under which clients may call this server; repeat for more."),
    ] = None,
    embedding_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Answers /v1/embeddings; a folder or a name, as for --model."),
    ] = None,
    rerank_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Answers /v1/rerank. Where both are one, it is loaded once."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Serve the model over HTTP, to programs on this machine unless --host says otherwise.

    Where there are keys, in --key-file or in MTPLX_API_KEY, each request needs one. The address is said once the model
    is loaded; with --json it is printed as {"url", "model", "mode"}. Ctrl-C stops: running answers get ten seconds to
    finish, and a second one ends them at once. An engine that fails is started again, three times in ten minutes.
    Where a server runs here already that was asked for the same, its address is said, and that is all.
    """
    config = EngineOptions(model, mode, depth, profile, kv_bits, memory).config()  # some of what follows needs MLX
    from engine.retrieval.card import read_card
    from engine.retrieval.config import RetrievalConfig
    from engine.retrieval.retriever import Retrieval
    from mtplx_tui.running import Front, announced, same
    from server.keys import KeysError, load_keys
    from server.run import ServerStartError, ServerThread
    from server.run import serve as run
    from server.sockets import check_host

    names = [_name(given) for given in allow_host or ()]
    try:
        keys = load_keys(key_file)
        check_host(host, bool(keys))
    except (KeysError, ServerStartError) as error:
        raise UsageError(str(error)) from error
    # what is wrong with a card is said before a chat model is loaded for minutes
    embedding = None if embedding_model is None else read_card(embedding_model, "embedding")
    rerank = None if rerank_model is None else read_card(rerank_model, "rerank")
    folders = [None if card is None else str(card.path) for card in (embedding, rerank)]
    front = Front(host, port, tuple(sorted(names)), *folders)
    running = same(config, key_file, front)
    if running is not None:
        common.say(f"{running.model} is served already, at {running.url}/v1 (process {running.pid}).")
        if as_json:
            common.print_json({"url": running.url, "model": running.model, "mode": running.mode})
        return exit_codes.OK
    engine = common.loaded(lambda on_event: _supervised(config, on_event))
    life = ExitStack()

    def say(line: str) -> None:
        common.say(line)
        url = re.search(r"[Ss]erving at (http://[^/\s]+)", line)
        if url:
            life.enter_context(announced(url[1], "serve", engine.model, bool(keys), config, front))
        if as_json and url:
            common.print_json({"url": url[1], "model": engine.model.name, "mode": engine.model.mode})

    try:
        retrieval = Retrieval(engine, RetrievalConfig(embedding_model, rerank_model))
        server = ServerThread(
            engine,
            host,
            port,
            settings=_live(defaults.given(context, "depth")),
            keys=keys,
            allow_hosts=names,
            retrieval=retrieval,
        )
        with life:
            return exit_codes.FAILED if run(server, say=say, grace=GRACE_SECONDS) else exit_codes.OK
    except ServerStartError as error:
        raise CommandFailedError(str(error)) from error
    finally:
        engine.close()


def _live(depth_given: bool) -> "Settings":
    """What is kept of the settings that may change while it serves. A depth that was given is the engine's own."""
    from mtplx_tui.saved_settings import Saved, live

    kept = defaults.kept()
    settings = live(Saved() if kept is None else kept.saved)
    return settings.model_copy(update={"depth": "auto"}) if depth_given else settings


def _supervised(config: "EngineConfig", on_event: "EventSink") -> "SupervisedEngine":
    from engine.engine import ThreadEngine
    from engine.supervised import SupervisedEngine
    from mtplx_tui.saved_tuning import with_saved_tuning

    config = with_saved_tuning(replace(config, cache_folder=paths.prefixes_folder()))
    return SupervisedEngine(partial(ThreadEngine, config), on_event)


def _name(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", given):
        raise UsageError(f"--allow-host is {given!r}; give a host's name alone, such as desk.example.")
    return given
