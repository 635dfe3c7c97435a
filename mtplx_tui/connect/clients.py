"""Each client's own configuration for a server of ours, as data: files and what is to stand in them, or variables.

The forms are those that the clients were run with (README, "The server"); each entry says which version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

KEY_VARIABLE = "MTPLX_API_KEY"
NO_KEY = "none"  # clients refuse to start without a key, and a server without keys takes any
PROVIDER = "mtplx"


@dataclass(frozen=True, slots=True)
class Target:
    """The server to be used.

    Attributes:
        url: its address without /v1. context: tokens of its model's context. keyed: whether it asks for a key.
    """

    url: str
    model: str
    context: int
    keyed: bool

    @property
    def key(self) -> str:
        """What stands for the key where a client can only take one as text."""
        return f"${KEY_VARIABLE}" if self.keyed else NO_KEY


@dataclass(frozen=True, slots=True)
class Settings:
    """What is to stand in a configuration file; all else in it stays.

    Attributes:
        file: absolute path. values: nested; a list's entries are found again by their id or name.
        beginning: what a file that is not there yet begins with.
    """

    file: Path
    form: Literal["json", "toml", "yaml"]
    values: Mapping[str, Any]
    beginning: str = ""


@dataclass(frozen=True, slots=True)
class Connection:
    """How one client is connected.

    Attributes:
        settings: what `--write` writes; None where the client keeps its settings out of reach.
        variables: environment variables to start it with. notes: what else one has to know. start: the command.
    """

    start: str
    settings: Settings | None = None
    variables: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()


def claude_code(target: Target, home: Path) -> Connection:
    """Claude Code 2.1: variables, which its settings file can hold. It asks for models by three sizes' names."""
    variables = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_MODEL": target.model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.model,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    notes = [_room(target, 30_000, "Claude Code")]
    if target.keyed:
        notes.append(f"In the file, write the key itself in the place of {target.key}.")
    settings = Settings(home / ".claude" / "settings.json", "json", {"env": variables})
    return Connection("claude", settings, variables, tuple(filter(None, notes)))


def codex(target: Target, home: Path) -> Connection:
    """Codex 0.171: it speaks the Responses API only."""
    provider: dict[str, Any] = {"name": "mtplx-tui", "base_url": f"{target.url}/v1", "wire_api": "responses"}
    if target.keyed:
        provider["env_key"] = KEY_VARIABLE
    values = {"model": target.model, "model_provider": PROVIDER, "model_providers": {PROVIDER: provider}}
    settings = Settings(home / ".codex" / "config.toml", "toml", values)
    return Connection("codex", settings, _key_variable(target), tuple(filter(None, [_room(target, 20_000, "Codex")])))


def opencode(target: Target, home: Path) -> Connection:
    """opencode 1.18."""
    options = {"baseURL": f"{target.url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}" if target.keyed else NO_KEY}
    limit = {"context": target.context, "output": min(target.context // 2, 4096)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "mtplx-tui",
        "options": options,
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    values = {"provider": {PROVIDER: provider}, "model": f"{PROVIDER}/{target.model}"}
    settings = Settings(home / ".config" / "opencode" / "opencode.json", "json", values)
    return Connection(
        "opencode", settings, _key_variable(target), tuple(filter(None, [_room(target, 12_000, "opencode")]))
    )


def pi(target: Target, home: Path) -> Connection:
    """pi 1.6 (in npm: @earendil-works/pi-coding-agent)."""
    model = {"id": target.model, "name": target.model, "reasoning": True, "contextWindow": target.context}
    provider = {
        "baseUrl": f"{target.url}/v1",
        "api": "openai-completions",
        "apiKey": KEY_VARIABLE if target.keyed else NO_KEY,
        "models": [model | {"input": ["text"], "maxTokens": min(target.context // 2, 4096)}],
    }
    settings = Settings(home / ".pi" / "agent" / "models.json", "json", {"providers": {PROVIDER: provider}})
    start = f"pi --provider {PROVIDER} --model {target.model}"
    return Connection(start, settings, _key_variable(target), tuple(filter(None, [_room(target, 4_000, "pi")])))


def open_webui(target: Target, home: Path) -> Connection:
    """Open WebUI keeps its settings in a database of its own; it takes variables at its first start."""
    variables = {"OPENAI_API_BASE_URL": f"{target.url}/v1", "OPENAI_API_KEY": target.key}
    note = "In a running one: Settings, Connections, OpenAI, and the same two values. From Docker, this machine is "
    return Connection(
        "open-webui serve",
        None,
        variables,
        (note + "host.docker.internal, which the server takes only with `serve --host` and a key.",),
    )


def continue_dev(target: Target, home: Path) -> Connection:
    """Continue (VS Code, JetBrains, cn): config.yaml, schema v1."""
    entry = {
        "name": "mtplx-tui",
        "provider": "openai",
        "model": target.model,
        "apiBase": f"{target.url}/v1",
        "apiKey": f"${{{{ secrets.{KEY_VARIABLE} }}}}" if target.keyed else NO_KEY,
        "roles": ["chat", "edit", "apply"],
    }
    beginning = "name: Local\nversion: 1.0.0\nschema: v1\n"
    return Connection("cn", Settings(home / ".continue" / "config.yaml", "yaml", {"models": [entry]}, beginning))


CLIENTS: Mapping[str, Callable[[Target, Path], Connection]] = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
    "pi": pi,
    "open-webui": open_webui,
    "continue": continue_dev,
}


def _key_variable(target: Target) -> dict[str, str] | None:
    return {KEY_VARIABLE: "the server's key"} if target.keyed else None


def _room(target: Target, needed: int, client: str) -> str | None:
    """A warning where the client's own first prompt does not fit."""
    if target.context >= needed:
        return None
    return (
        f"{client} begins with a prompt of about {needed:,} tokens and {target.model} has room for {target.context:,}: "
        "serve a model with a longer context."
    )
