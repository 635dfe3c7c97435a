"""Has the clients' process ask a server."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mtplx_tui.bench_load.servers import Served
from mtplx_tui.commands.common import CommandFailedError

ANSWER_S = 600.0  # what one answer may take


def run_clients(
    served: Served, prompts: Sequence[Sequence[str]], tokens: int, fields: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What came for each prompt, as `bench_load.clients` writes it; each list of prompts is a client's.

    `fields` are in every body besides. Raises CommandFailedError where the process ends without a result.
    """
    order = {
        "url": served.url, "model": served.model, "max_tokens": tokens, "timeout": ANSWER_S, "prompts": prompts,
        "fields": fields or {},
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mtplx_tui.bench_load.clients"],
        input=json.dumps(order), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()
        raise CommandFailedError(f"The clients' process failed: {last[-1] if last else done.returncode}")
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
