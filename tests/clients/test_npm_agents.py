"""Coding agents from npm, set up by `mtplx-tui connect`: turns in which they run a tool, and an answer cut short."""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from coached import FOR_EVER, CoachedEngine, Coaching, roomy_demo
from http_counts import answered
from npm import installed

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.events import Event, FinishEvent, TokenEvent
from server.run import ServerThread

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

SAY = "printf %s%s the-tool -has-run"
SAID = "the-tool-has-run"
"""What SAY prints, which is nowhere in it."""


@dataclass(frozen=True)
class Agent:
    """One agent: what npm calls it, how it is asked once and then in the same conversation, and the tool it runs.

    Attributes:
        probes: answers to what it asks beside its turns, by route and status.
        quiet: variables that keep it from calling home.
    """

    packages: tuple[str, ...]
    ask: str
    go_on: str
    tool: str
    arguments: Mapping[str, str]
    turns: str
    probes: frozenset[tuple[str, int]] = frozenset()
    quiet: Mapping[str, str] = field(default_factory=dict)


AGENTS = {
    "claude-code": Agent(
        ("@anthropic-ai/claude-code@2.1.332",),
        "claude -p --allowedTools Bash --",
        "claude -p --continue --allowedTools Bash --",
        "Bash",
        {"command": SAY, "description": "Says so"},
        "/v1/messages",
        frozenset({("/", 200)}),
        {"DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1"},
    ),
    "codex": Agent(
        ("@openai/codex@0.171.0",),
        "codex exec --skip-git-repo-check -s read-only",
        "codex exec --skip-git-repo-check -s read-only resume --last",
        "exec_command",
        {"cmd": SAY},
        "/v1/responses",
    ),
    "opencode": Agent(
        ("opencode-ai@1.18.33",),
        "opencode run",
        "opencode run --continue",
        "bash",
        {"command": SAY, "description": "Says so"},
        "/v1/chat/completions",
        quiet={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
    ),
    "pi": Agent(
        ("@earendil-works/pi-coding-agent@1.6.0", "node@22.23.3"),
        "pi --provider mtplx --model demo-13m -p",
        "pi --provider mtplx --model demo-13m --continue -p",
        "bash",
        {"command": SAY},
        "/v1/chat/completions",
        quiet={"PI_OFFLINE": "1"},
    ),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoachedEngine]:
    real = ThreadEngine(EngineConfig(model=str(roomy_demo(tmp_path_factory.mktemp("models")))))
    real.wait_ready(120)
    yield CoachedEngine(real)
    real.close()


@pytest.fixture
def address(engine: CoachedEngine) -> Iterator[str]:
    server = ServerThread(engine, port=0)
    server.start()
    assert server.address is not None
    yield server.address
    assert server.stop(5.0)


@pytest.mark.parametrize("name", AGENTS)
def test_agent_runs_tools_goes_on_and_can_be_stopped(
    name: str, engine: CoachedEngine, address: str, tmp_path: Path
) -> None:
    agent = AGENTS[name]
    binaries = installed(tmp_path / "npm", *agent.packages)
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    own = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    environment = own | {"HOME": str(home), "PWD": str(work), "PATH": f"{binaries}:{os.environ['PATH']}"} | agent.quiet
    connect = [sys.executable, "-m", "mtplx_tui", "connect", name, "--url", address, "--write", "--yes"]
    subprocess.run(connect, env=environment, check=True, timeout=60)
    before = answered(address)
    engine.coaching = Coaching(agent.tool, agent.arguments)
    engine.prompts.clear()

    def ask(command: str, words: str) -> str:
        run = subprocess.run(
            [*shlex.split(command), words],
            cwd=work, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500,
        )  # fmt: skip
        assert run.returncode == 0, (run.stdout[-3000:], run.stderr[-3000:])
        return run.stdout

    for command, words in ((agent.ask, "Run the tool."), (agent.go_on, "Run it once more.")):
        already = len(engine.prompts)
        assert engine.coaching.answer in ask(command, words)
        turn, result = [p for p in engine.prompts[already:] if f'"name": "{agent.tool}"' in p]
        assert words in turn
        assert SAID in result.rpartition("<tool_response>")[2]

    requests = httpx.get(f"{address}/v1/mtplx/requests", trust_env=False, timeout=10).json()["requests"]
    shares = [request["cached_tokens"] / request["prompt_tokens"] for request in requests]
    print(name, [(request["prompt_tokens"], request["cached_tokens"], request["miss"]) for request in requests])
    first_result, second_turn, second_result = shares[-3:]
    assert min(first_result, second_result) > 0.95, shares
    # The template leaves out what was thought in an earlier turn, so prompts part where its answer begins. In pi's
    # prompt, of 2,000 tokens, what comes behind is 5 %; in the others' it is 1 %.
    assert second_turn > 0.94, shares

    counts = answered(address) - before
    del counts["/v1/mtplx/requests", 200]  # asked for here
    assert counts.keys() - agent.probes == {(agent.turns, 200)}, counts

    assert stopped_in_mid_answer(engine, [*shlex.split(agent.ask), FOR_EVER], work, environment) == "cancelled"


def stopped_in_mid_answer(engine: CoachedEngine, command: list[str], work: Path, environment: dict[str, str]) -> str:
    """How an answer without an end ends in the engine, where its client is interrupted as by Ctrl-C."""
    speaks, over, reasons = threading.Event(), threading.Event(), []
    made: dict[str, int] = {}

    def hear(event: Event) -> None:
        if isinstance(event, TokenEvent):
            made[event.request_id] = made.get(event.request_id, 0) + len(event.ids)
            if made[event.request_id] > 60:
                speaks.set()
        if isinstance(event, FinishEvent) and made.get(event.request_id, 0) > 60:
            reasons.append(event.reason)
            over.set()

    unlisten = engine.listen(hear)
    pipe = subprocess.DEVNULL
    client = subprocess.Popen(command, cwd=work, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        assert speaks.wait(900), made
        client.send_signal(signal.SIGINT)
        assert over.wait(60), "the answer goes on"
        client.wait(60)
    finally:
        unlisten()
        client.kill()
        client.wait()
    return reasons[0]
