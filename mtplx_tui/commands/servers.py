"""`mtplx-tui status` and `mtplx-tui stop`: the servers of ours that run on this machine."""

import os
import signal
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import CommandFailedError, JsonOption, UsageError

if TYPE_CHECKING:
    from mtplx_tui.running import Running

STOP_SECONDS = 20.0
"""A server gives answers that run ten seconds, and needs some more to end."""


def status(as_json: JsonOption = False) -> int:
    """Show the servers that run here: where, of which model, how they are. Exit code 1 where there is none."""
    from mtplx_tui.running import servers

    found = [asdict(running) | {"health": _health(running)} for running in servers()]
    if as_json:
        common.print_json({"servers": found})
    else:
        print("\n".join(map(_line, found)) or "No server runs here. Start one with mtplx-tui serve.")
    return exit_codes.OK if found else exit_codes.NOT_PASSED


def stop(
    pid: Annotated[int | None, typer.Option(help="Which one, where several run; see mtplx-tui status.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Stop a server that `serve` runs. Answers that run get ten seconds to finish."""
    from mtplx_tui.running import servers

    running = _chosen(servers(), pid)
    if running.kind == "workbench":
        raise UsageError(f"The server at {running.url} belongs to an open workbench; leave it there with Ctrl-Q.")
    os.kill(running.pid, signal.SIGTERM)
    over = time.monotonic() + STOP_SECONDS
    while _there(running.pid):
        if time.monotonic() > over:
            raise CommandFailedError(
                f"The server at {running.url} (process {running.pid}) does not end; `kill -9 {running.pid}` ends it."
            )
        time.sleep(0.05)
    if as_json:
        common.print_json({"stopped": asdict(running)})
    else:
        print(f"stopped the server at {running.url} (process {running.pid})")
    return exit_codes.OK


def _chosen(found: "list[Running]", pid: int | None) -> "Running":
    if pid is not None:
        found = [running for running in found if running.pid == pid]
    if not found:
        raise CommandFailedError("No server runs here." if pid is None else f"No server of ours has process id {pid}.")
    if len(found) > 1:
        pids = ", ".join(f"{running.pid} ({running.url})" for running in found)
        raise UsageError(f"Several servers run here: {pids}. Say which with --pid.")
    return found[0]


def _health(running: "Running") -> str:
    import httpx

    try:
        return str(httpx.get(f"{running.url}/health", timeout=5.0, trust_env=False).json()["status"])
    except (httpx.HTTPError, ValueError, LookupError):
        return "no answer"


def _line(server: dict[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(server["since"]))
    keyed = ", asks for a key" if server["keyed"] else ""
    return (
        f"{server['url']}/v1  {server['model']} ({server['mode']}), {server['health']}{keyed}; "
        f"{server['kind']} since {since}, process {server['pid']}"
    )


def _there(pid: int) -> bool:
    """Whether the process runs; one that has ended and whose parent has not looked yet does not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
