"""`mtplx-tui serve`: the OpenAI-compatible server without the screen."""

import re
from dataclasses import replace
from typing import Annotated

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common
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
)

GRACE_SECONDS = 10.0


def serve(
    model: ModelOption = None,
    mode: ModeOption = "mtp",
    depth: DepthOption = "auto",
    profile: ProfileOption = "turbo",
    kv_bits: KvBitsOption = None,
    memory: MemoryOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it is taken, the next free one is used.")] = 8000,
    as_json: JsonOption = False,
) -> int:
    """Serve the model over HTTP to programs on this machine.

    The address is said once the model is loaded; with --json it is printed as {"url", "model", "mode"}. Ctrl-C stops:
    running answers get ten seconds to finish, and a second one ends them at once.
    """
    from server.run import ServerStartError
    from server.run import serve as run

    config = EngineOptions(model, mode, depth, profile, kv_bits, memory).config()
    engine = common.start_engine(replace(config, cache_folder=paths.prefixes_folder()))

    def say(line: str) -> None:
        common.say(line)
        url = re.search(r"http://[^/\s]+", line)
        if as_json and url:
            common.print_json({"url": url[0], "model": engine.model.name, "mode": engine.model.mode})

    try:
        return exit_codes.FAILED if run(engine, port=port, say=say, grace=GRACE_SECONDS) else exit_codes.OK
    except ServerStartError as error:
        raise CommandFailedError(str(error)) from error
    finally:
        engine.close()
