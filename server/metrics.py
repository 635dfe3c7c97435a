"""GET /metrics: what Prometheus reads of this server. Names follow vLLM's, so that one dashboard reads both.

Everything is kept in the registry of one server; nothing is global to the process.
"""

import re
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.events import Event, FinishEvent, PrefillEvent, StepEvent, TokenEvent
from engine.handle import EngineHandle
from server.facts import loaded
from server.journal import Entry, Journal
from server.tally import Counter, Histogram

MOST_NAMES = 100
"""Different values that a label may have which clients or files choose; more are counted as `other`."""

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80
)  # fmt: skip
REQUEST_S = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680
)  # fmt: skip


class Metrics(Collector):
    """All counts of one server. `hear` is called on the engine's thread, `answered` on the server's."""

    def __init__(self, engine: EngineHandle, journal: Journal) -> None:
        self._engine = engine
        self._journal = journal
        self._http = Counter("mtplx_http_requests", "HTTP requests answered.", "handler", "method", "status")
        self._unknown = Counter("mtplx_unknown_fields", "Fields in requests that changed nothing, by name.", "field")
        self._prompt = Counter("mtplx_prompt_tokens", "Prompt tokens of requests that began, cached ones included.")
        self._made = Counter("mtplx_generation_tokens", "Tokens delivered.")
        self._queries = Counter("mtplx_prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = Counter("mtplx_prefix_cache_hits", "Prompt tokens that came from the prefix cache.")
        self._lookups = Counter("mtplx_prefix_cache_lookups", "Requests looked up in the prefix cache.", "result")
        self._misses = Counter("mtplx_prefix_cache_misses", "Requests not cached whole, by what was missing.", "reason")
        self._drafts = Counter("mtplx_spec_decode_num_drafts", "Steps with drafts.", "source")
        self._drafted = Counter("mtplx_spec_decode_num_draft_tokens", "Tokens drafted.", "source")
        self._accepted = Counter("mtplx_spec_decode_num_accepted_tokens", "Drafted tokens accepted.", "source")
        self._accepted_at = Counter(
            "mtplx_spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by their place in the draft, from 0.",
            "source",
            "position",
        )
        self._rejected_at = Counter(
            "mtplx_spec_decode_num_rejected_tokens_per_pos",
            "Drafted tokens verified and refused, by their place in the draft, from 0.",
            "source",
            "position",
        )
        self._done = Counter("mtplx_request_success", "Requests answered to their end.", "finished_reason")
        self._cancelled = Counter("mtplx_requests_cancelled", "Requests cancelled, by how far they were.", "phase")
        self._failed = Counter("mtplx_request_errors", "Requests that the engine ended with an error.")
        self._queue = Histogram(
            "mtplx_request_queue_time_seconds", "From a request's arrival to the beginning of its reading.", REQUEST_S
        )
        self._first = Histogram("mtplx_time_to_first_token_seconds", "From arrival to the first tokens.", FIRST_TOKEN_S)
        self._between = Histogram(
            "mtplx_inter_token_latency_seconds",
            "Between tokens: a step's time is shared by the tokens that it delivered.",
            TOKEN_S,
        )
        self._whole = Histogram("mtplx_e2e_request_latency_seconds", "From a request's arrival to its end.", REQUEST_S)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)

    @property
    def lookups(self) -> dict[str, int]:
        """Requests looked up in the prefix cache, by `hit` or `miss`."""
        return {result: int(count) for (result,), count in self._lookups.values.items()}

    @property
    def cached_tokens(self) -> dict[str, int]:
        """Prompt tokens looked up in the prefix cache, and those that were there."""
        return {"looked_up": int(self._queries.values[()]), "cached": int(self._hits.values[()])}

    @property
    def misses(self) -> dict[str, int]:
        """Why prompts were not cached whole, in words, numbers in them as N."""
        return {reason: int(count) for (reason,), count in self._misses.values.items()}

    def answered(self, handler: str, method: str, status: int, unknown_fields: list[str]) -> None:
        """A response began. `handler` is the route's path, not the client's."""
        self._http.add(handler, method, str(status))
        for name in unknown_fields:
            self._unknown.add(_bounded(self._unknown, name))

    def hear(self, event: Event, entry: Entry | None) -> None:
        """Count an event; `entry` is its request, which has heard it already."""
        match event:
            case StepEvent():
                self._step(event)
            case TokenEvent() if event.ids and entry is not None:
                self._tokens(event, entry)
            case PrefillEvent() if entry is not None and entry.reads == 1:
                self._begin(event)
            case FinishEvent() if entry is not None:
                self._finish(event, entry)

    def _step(self, event: StepEvent) -> None:
        if not event.drafted:
            return
        source, judged = event.source, event.judged
        accepted = min(event.accepted, judged)
        self._drafts.add(source)
        self._drafted.add(source, by=event.drafted)
        self._accepted.add(source, by=accepted)
        for place in range(accepted):
            self._accepted_at.add(source, str(place))
        if accepted < judged:
            self._rejected_at.add(source, str(accepted))

    def _tokens(self, event: TokenEvent, entry: Entry) -> None:
        self._made.add(by=len(event.ids))
        if entry.before_at is not None:
            self._between.observe((event.at - entry.before_at) / len(event.ids), len(event.ids))
        elif entry.queued is not None:
            self._first.observe(event.at - entry.queued.at)

    def _begin(self, event: PrefillEvent) -> None:
        """The first word of a prompt that is being read."""
        self._queries.add(by=event.total)
        self._hits.add(by=event.cached)
        self._lookups.add("hit" if event.cached else "miss")
        if event.cached < event.total:
            self._misses.add(_bounded(self._misses, re.sub(r"\d+", "N", event.miss)))

    def _finish(self, event: FinishEvent, entry: Entry) -> None:
        if entry.read is not None:
            self._prompt.add(by=event.usage.prompt_tokens)
        if event.stats.queue_s is not None:
            self._queue.observe(event.stats.queue_s)
        if event.reason == "cancelled":
            self._cancelled.add(entry.reached)
        elif event.reason == "error":
            self._failed.add()
        else:
            self._done.add(event.reason)
            self._whole.observe(event.at - entry.begun_at)

    def collect(self) -> Iterator[Metric]:
        for figure in vars(self).values():
            if isinstance(figure, Counter | Histogram):
                yield figure.family()
        yield from self._now()

    def _now(self) -> Iterator[Metric]:
        """What holds at this moment."""
        running = [entry.reached for entry in self._journal.entries() if entry.finish is None]
        waiting = running.count("waiting")
        yield _gauge("mtplx_num_requests_running", "Requests being read or answered.", len(running) - waiting)
        yield _gauge("mtplx_num_requests_waiting", "Requests that wait for their turn.", waiting)
        yield _gauge("mtplx_engine_up", "1 where the engine takes requests.", self._engine.state == "ready")
        yield _gauge(
            "mtplx_engine_heartbeat_age_seconds",
            "Since the engine last went round its loop.",
            self._engine.heartbeat_age(),
        )
        restarts = getattr(self._engine, "restarts", 0)
        yield CounterMetricFamily("mtplx_engine_restarts", "Times that the engine was started anew.", restarts)
        cache = self._engine.cache
        if cache is not None:
            yield _gauge("mtplx_prefix_cache_bytes", "Memory that cached prefixes take.", cache.nbytes)
            yield _gauge("mtplx_prefix_cache_limit_bytes", "Most memory that they may take.", cache.limit)
            yield _gauge("mtplx_prefix_cache_entries", "Stretches of prompts in memory.", cache.stretches)
            yield CounterMetricFamily(
                "mtplx_prefix_cache_evictions", "Stretches that left memory for want of room.", cache.evicted
            )
        model = loaded(self._engine)
        if model is None:
            return
        facts = {
            "model_name": model.name,
            "family": model.family,
            "mode": model.mode,
            "head": model.head or "none",
            "quantization": model.quantization or "none",
            "dtype": model.dtype,
            "kv": model.kv,
            "device": model.device,
            "context": str(model.context),
        }
        yield InfoMetricFamily("mtplx_model", "The model that is served.", facts)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, float(value))


def _bounded(counter: Counter, name: str) -> str:
    """The name, unless there are too many already."""
    values = counter.values
    return name if (name,) in values or len(values) < MOST_NAMES else "other"
