"""Python clients whose pins would hold back ours: each runs in an environment of its own, as uv makes it for a script.

The scripts check what their client gives; here it is checked what they asked the server for.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from http_counts import answered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).parent / "scripts"
USERS = dict(os.environ)
"""As the user has it: uv's cache and Pythons stay where they are, whatever the tests move for the program."""

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.mark.parametrize(
    ("client", "paths", "refused"),
    [
        ("litellm", {CHAT, MESSAGES}, {400: 4}),
        ("langchain", {CHAT, RESPONSES}, {400: 4}),
        ("instructor", {CHAT, RESPONSES}, {404: 4}),
        ("pydantic_ai", {CHAT, RESPONSES, MESSAGES}, {400: 3}),
        ("llm", {CHAT}, {400: 1}),
    ],
)
def test_client_asks_only_for_what_is_there(
    own_api: str, tmp_path: Path, client: str, paths: set[str], refused: dict[int, int]
) -> None:
    """Each script begins, takes a turn, a stream, a tool's turn and errors, whose counts are `refused`."""
    command = ["uv", "run", "--no-project", "--python", sys.executable, "--script", f"{client}_turns.py", own_api]
    run = subprocess.run(
        command, cwd=SCRIPTS, env=USERS | {"LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=500
    )
    assert run.returncode == 0, run.stderr[-4000:]
    counts = answered(own_api.removesuffix("/v1"))
    assert {path for path, status in counts if status == 200} == paths
    assert Counter(status for path, status in counts.elements() if status != 200) == refused
