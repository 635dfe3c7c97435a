"""The answers of health checks and of /v1/mtplx, where these are not plain facts of `server.facts` already."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from engine.handle import EngineState, ModelInfo
from server.api.errors import FORM, Shape
from server.facts import RequestFacts


class Root(Shape):
    name: Literal["mtplx-tui"]
    api: str


class Health(Shape):
    status: Literal["ok", "loading", "stalled", "failed", "closed"]
    heartbeat_age_s: float


class Readiness(Shape):
    status: Literal["ok", "loading", "stalled", "failed", "closed", "closing"]


class Server(Shape):
    version: str
    pid: int
    address: str
    started: float
    keyed: bool
    uptime_s: float
    state: EngineState
    heartbeat_age_s: float
    model: ModelInfo | None


class Started(Shape):
    id: str


class Requests(Shape):
    requests: list[RequestFacts]


class Token(Shape):
    """`bytes`, in base64, where they alone are no text. `cached`, in prompts: it was there already."""

    id: int
    text: str | None
    special: bool
    bytes: str = ""
    cached: bool = False


class Tokens(Shape):
    """A window of a prompt's or an answer's tokens; `why` says where there are none."""

    total: int | None
    start: int | None
    tokens: list[Token] | None
    why: str | None


class CacheUse(Shape):
    prompt_tokens: int
    cached_tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class RequestDetail(RequestFacts):
    """The figures of `RequestFacts`, and what was sent to the model."""

    __pydantic_config__: ClassVar[ConfigDict] = FORM

    asked: dict[str, Any] | None
    cache: CacheUse
    prompt: Tokens
    answer: Tokens


class Setting(Shape):
    """`effective` is what holds: the value, or the model's own where there is none."""

    name: str
    type: Literal["number", "integer", "boolean", "choice", "list"]
    null: bool
    minimum: float | None
    above: float | None
    maximum: float | None
    choices: list[str | int] | None
    default: Any
    value: Any
    effective: Any
    help: str


class AllSettings(Shape):
    settings: list[Setting]


class MemoryCache(Shape):
    stretches: int
    tokens: int
    bytes: int
    limit_bytes: int
    evicted: int


class DiskModel(Shape):
    entries: int
    bytes: int


class DiskCache(Shape):
    folder: str
    entries: int | None
    bytes: int | None
    models: dict[str, DiskModel] | None
    error: str | None


class Cache(Shape):
    """`requests` counts hits and misses, `tokens` where prompts' tokens came from, `misses` the reasons."""

    memory: MemoryCache | None
    disk: DiskCache | None
    requests: dict[str, int]
    tokens: dict[str, int]
    misses: dict[str, int]
