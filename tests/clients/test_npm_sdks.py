"""The openai and anthropic packages for node: the scripts check what they give, and here what they asked for."""

import shutil
import subprocess
from pathlib import Path

import pytest
from http_counts import answered
from npm import installed

from engine.events import Event, FinishEvent
from engine.handle import EngineHandle

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.mark.parametrize(
    ("package", "script", "paths"),
    [
        ("openai@7.59.0", "openai_turns.mjs", {"/v1/models", "/v1/chat/completions", "/v1/responses"}),
        (
            "@anthropic-ai/sdk@1.14.0",
            "anthropic_turns.mjs",
            {"/v1/models", "/v1/messages", "/v1/messages/count_tokens"},
        ),
    ],
)
def test_sdk_asks_only_for_what_is_there(
    demo_engine: EngineHandle, own_api: str, tmp_path: Path, package: str, script: str, paths: set[str]
) -> None:
    reasons: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, FinishEvent):
            reasons.append(event.reason)

    installed(tmp_path / "npm", package)
    shutil.copy(SCRIPTS / script, tmp_path / "npm")
    unlisten = demo_engine.listen(hear)
    run = subprocess.run(["node", script, own_api], cwd=tmp_path / "npm", capture_output=True, text=True, timeout=600)
    unlisten()
    assert run.returncode == 0, run.stderr[-4000:]
    assert {path for path, status in answered(own_api.removesuffix("/v1"))} == paths
    assert reasons.count("cancelled") == 1
