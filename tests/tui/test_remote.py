"""A link to a server of ours: what is asked and told over it, and what is left of an answer when it drops."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import remote_servers  # noqa: F401  makes the server's test helpers importable
from remote_servers import Proxy, until
from scripted_engine import ScriptedEngine, ScriptedRow
from speaker import Speaker, atoms

import engine
from engine.chat import ChatFormat, load_chat_format
from engine.config import EngineConfig
from engine.errors import BadRequestError, EngineError
from engine.events import Event, FinishEvent, LoadEvent, PrefillEvent, QueuedEvent, ReadyEvent, TokenEvent
from engine.request import Request, Sampling
from mtplx_tui.commands.screen import LateServer
from mtplx_tui.link import Question
from mtplx_tui.options import UsageError
from mtplx_tui.remote.ours import RemoteLink
from mtplx_tui.remote.probe import UnreachableError, connect, kind_of
from mtplx_tui.running import Front, Start, servers
from mtplx_tui.server_settings import LocalSettings
from server import admin_events, event_hub
from server.journal import Journal
from server.keys import Keys
from server.run import ServerThread

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def chat_format() -> ChatFormat:
    return load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m")


@pytest.fixture
def scripted(chat_format: ChatFormat) -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine(chat_format)
    yield scripted
    scripted.close()


@pytest.fixture
def server(scripted: ScriptedEngine) -> Iterator[ServerThread]:
    server = ServerThread(scripted, port=0)
    server.start()
    yield server
    assert server.stop(0.5)


@pytest.fixture
def proxy(server: ServerThread) -> Iterator[Proxy]:
    assert server.address is not None
    proxy = Proxy(int(server.address.rpartition(":")[2]))
    yield proxy
    proxy.close()


@pytest.fixture
def link(proxy: Proxy) -> Iterator[RemoteLink]:
    """A link through the proxy, once it is ready."""
    link = ready(RemoteLink(proxy.url))
    yield link
    link.close()


def ready(link: RemoteLink) -> RemoteLink:
    """The link, connected."""
    link.listen(lambda event: None)
    until(lambda: link.state == "ready", "the connection")
    return link


class Heard:
    """What a listener has got of one request."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def atoms(self) -> list[tuple[str, str]]:
        return atoms(span for event in self.events if isinstance(event, TokenEvent) for span in event.spans)

    @property
    def ids(self) -> list[int]:
        return [token for event in self.events if isinstance(event, TokenEvent) for token in event.ids]

    @property
    def finishes(self) -> list[FinishEvent]:
        return [event for event in self.events if isinstance(event, FinishEvent)]

    @property
    def finish(self) -> FinishEvent:
        until(lambda: self.finishes, "the end")
        (finish,) = self.finishes
        return finish


class Steps:
    """A script that says one piece each time that the test lets it, and then ends."""

    def __init__(self, scripted: ScriptedEngine, chat: ChatFormat, pieces: list[list[int]]) -> None:
        self.pieces = pieces
        self.speaker: Speaker | None = None
        self._gates = [threading.Semaphore(0) for _ in range(2)]
        self._said = threading.Semaphore(0)
        self._chat = chat
        scripted.script = self._play

    def say(self, count: int = 1) -> None:
        """Have so many pieces said; what follows the last is the end."""
        for _ in range(count):
            self._gates[0].release()
            assert self._said.acquire(timeout=20)

    @property
    def atoms(self) -> list[tuple[str, str]]:
        assert self.speaker is not None
        return atoms(self.speaker.heard)

    def _play(self, row: ScriptedRow) -> None:
        self.speaker = Speaker(self._chat, row)
        row.prefill(1)
        for piece in [*self.pieces, None]:
            while not self._gates[0].acquire(timeout=0.01):
                row._check()
            if piece is None:
                self.speaker.finish()
            else:
                self.speaker.say(piece)
            self._said.release()


def pieces(chat: ChatFormat) -> list[list[int]]:
    """An answer with thinking, characters of several tokens, and a call."""
    think, call = chat.think_ids, chat.tool_ids
    assert think is not None
    assert call is not None
    text = [[token] for token in chat.encode("The 🦊 said naïve things, and 日本語 too.")]
    return [list(chat.encode("hm, well")), [think[1]], *text, [call[0]], list(chat.encode("<function=f>")), [call[1]]]


def asked(link: RemoteLink, **fields: object) -> Heard:
    heard = Heard()
    link.ask(Question(MESSAGES, **fields), heard)  # type: ignore[arg-type]
    return heard


def test_a_question_reaches_the_engine_whole_and_its_events_come_back(
    link: RemoteLink, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    heard, everything = Heard(), Heard()
    link.listen(everything)
    sampling = Sampling(temperature=0.25, top_k=3, min_p=0.1, logit_bias=((9, 2.0),))
    link.ask(Question(MESSAGES, sampling, thinking=False, max_tokens=9, seed=4, logprobs=1, id="q1"), heard)
    assert heard.finish.reason == "stop"
    (row,) = scripted.rows
    assert row.request.id == "q1"
    assert row.request.sampling == sampling
    assert (row.request.max_tokens, row.request.seed, row.request.logprobs) == (9, 4, 1)
    assert row.request.prompt == chat_format.render(MESSAGES, thinking=False)
    assert row.request.source == "chat"
    assert heard.events == everything.events[-len(heard.events) :]
    assert "".join(text for _, text in heard.atoms) == "Hello there."
    assert all(abs(event.at - time.monotonic()) < 60 for event in heard.events)


def test_what_a_chat_leaves_to_the_model_is_as_the_server_is_set(
    link: RemoteLink, scripted: ScriptedEngine, server: ServerThread
) -> None:
    server.settings.set({"temperature": 0.35, "top_k": 8})
    own = link.model.sampling
    link.ask(Question(MESSAGES, replace(own, top_k=5)), Heard())
    until(lambda: scripted.rows, "the request")
    (row,) = scripted.rows
    assert (row.request.sampling.temperature, row.request.sampling.top_k) == (0.35, 5)


def test_another_machines_clock_is_read_as_ours(
    proxy: Proxy, scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there() -> float:
        return time.monotonic() + 100_000

    monkeypatch.setattr(admin_events, "time", SimpleNamespace(monotonic=there, time=time.time))
    scripted.script = lambda row: (row.tell(TokenEvent(row.request.id, there(), (5,), ())), row.finish())
    link = ready(RemoteLink(proxy.url))
    before = time.monotonic()
    heard = asked(link)
    assert heard.finish.reason == "stop"
    (token,) = [event for event in heard.events if isinstance(event, TokenEvent)]
    assert before - 5 < token.at < time.monotonic() + 5
    link.close()


def test_what_the_server_refuses_is_said_and_leaves_nothing_behind(link: RemoteLink, scripted: ScriptedEngine) -> None:
    with pytest.raises(BadRequestError, match="maximum context length"):
        link.ask(Question([{"role": "user", "content": "hi " * 3000}]), Heard())
    assert scripted.rows == []
    assert asked(link).finish.reason == "stop"


def test_the_model_is_the_servers_through_loads_and_failures(link: RemoteLink, scripted: ScriptedEngine) -> None:
    heard = Heard()
    link.listen(heard)
    assert link.model == scripted.model
    scripted.context = 512
    scripted.restart("another one")
    until(lambda: any(isinstance(event, ReadyEvent) for event in heard.events))
    assert link.model.context == 512
    scripted.fail("it broke")
    until(lambda: link.state == "failed")
    with pytest.raises(EngineError, match="it broke"):
        _ = link.model


def test_a_cut_connection_loses_and_doubles_nothing(
    link: RemoteLink, proxy: Proxy, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    steps = Steps(scripted, chat_format, pieces(chat_format))
    heard = asked(link)
    steps.say(5)
    until(lambda: len(heard.atoms) == len(steps.atoms), "the first words")
    proxy.refusing = True
    proxy.cut()
    until(lambda: link.state == "loading", "the drop")
    assert "reconnecting" in link.line
    steps.say(9)  # while nobody listens
    proxy.refusing = False
    until(lambda: len(heard.atoms) == len(steps.atoms), "what was missed")
    assert link.state == "ready"
    steps.say(3)
    proxy.cut()
    steps.say(len(steps.pieces) - 17 + 1)
    assert heard.finish.reason == "stop"
    assert heard.atoms == steps.atoms
    assert heard.ids == [token for piece in steps.pieces for token in piece]


@pytest.mark.parametrize("at", range(0, 36, 4))
def test_wherever_it_is_cut_the_text_is_whole(
    link: RemoteLink, proxy: Proxy, scripted: ScriptedEngine, chat_format: ChatFormat, at: int
) -> None:
    steps = Steps(scripted, chat_format, pieces(chat_format))
    heard = asked(link)
    steps.say(min(at, len(steps.pieces)))
    proxy.cut()
    steps.say(len(steps.pieces) - min(at, len(steps.pieces)) + 1)
    assert heard.finish.reason == "stop"
    assert heard.atoms == steps.atoms
    assert heard.ids == [token for piece in steps.pieces for token in piece]


def test_an_answer_that_ends_during_the_drop_ends_once(
    link: RemoteLink, proxy: Proxy, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    steps = Steps(scripted, chat_format, pieces(chat_format))
    heard = asked(link)
    steps.say(2)
    proxy.refusing = True
    proxy.cut()
    until(lambda: link.state == "loading")
    steps.say(len(steps.pieces) - 2 + 1)
    proxy.refusing = False
    assert heard.finish.reason == "stop"
    assert heard.atoms == steps.atoms
    scripted.script = lambda row: row.finish()
    assert asked(link).finish.reason == "stop"  # and it goes on


def test_events_that_the_server_left_out_are_made_good(
    link: RemoteLink, scripted: ScriptedEngine, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "BUFFER", 3)
    said = pieces(chat_format)
    speakers: list[Speaker] = []

    def in_one_go(row: ScriptedRow) -> None:
        speakers.append(Speaker(chat_format, row))
        for piece in said:
            speakers[0].say(piece)
        speakers[0].finish()

    scripted.script = in_one_go
    heard = asked(link)
    assert heard.finish.reason == "stop"
    assert heard.atoms == atoms(speakers[0].heard)


def test_a_server_that_is_another_one_ends_the_answers_of_the_one_before(
    link: RemoteLink, proxy: Proxy, scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    steps = Steps(scripted, chat_format, pieces(chat_format))
    heard = asked(link)
    steps.say(3)
    until(lambda: len(heard.atoms) == len(steps.atoms))
    second = ServerThread(scripted, port=0)
    second.start()
    assert second.address is not None
    proxy.port = int(second.address.rpartition(":")[2])  # as after a kill: the old one says no word
    proxy.cut()
    finish = heard.finish
    assert finish.reason == "error"
    assert "started again" in (finish.error or "")
    assert heard.atoms == steps.atoms
    assert second.stop(0.5)


def test_a_server_that_stops_ends_its_answers_and_is_found_again(
    scripted: ScriptedEngine, chat_format: ChatFormat
) -> None:
    first = ServerThread(scripted, port=0)
    first.start()
    assert first.address is not None
    url = first.address
    link = ready(RemoteLink(url))
    steps = Steps(scripted, chat_format, pieces(chat_format))
    heard = asked(link)
    steps.say(3)
    until(lambda: len(heard.atoms) == len(steps.atoms))
    assert first.stop(0.0)
    second = ServerThread(scripted, port=int(url.rpartition(":")[2]))
    second.start()
    assert second.address == url
    assert heard.finish.reason == "error"
    assert heard.finish.error
    assert heard.atoms == steps.atoms
    scripted.script = lambda row: row.finish()
    until(lambda: link.state == "ready")
    assert asked(link).finish.reason == "stop"
    link.close()
    assert second.stop(0.5)


def test_an_answer_is_cancelled_with_and_without_a_connection(
    link: RemoteLink, proxy: Proxy, scripted: ScriptedEngine
) -> None:
    scripted.script = lambda row: (row.say("a"), row.wait())
    one, other = asked(link), asked(link)
    until(lambda: one.atoms and other.atoms)
    link.cancel(scripted.rows[0].request.id)
    assert one.finish.reason == "cancelled"
    proxy.refusing = True
    proxy.cut()
    until(lambda: link.state == "loading")
    link.cancel(scripted.rows[1].request.id)
    assert other.finish.reason == "cancelled"  # at once
    proxy.refusing = False
    until(lambda: scripted.rows[1].finished.is_set(), "the cancel reaches the server")
    until(lambda: link.state == "ready")
    assert len(other.finishes) == 1


def test_others_requests_are_seen_from_the_start_and_end_after_a_drop(proxy: Proxy, scripted: ScriptedEngine) -> None:
    gate = threading.Event()
    scripted.script = lambda row: (row.prefill(3), row.say("a"), row.wait(gate), row.finish())
    scripted.submit(Request((5,) * 9, source="api", id="other"), lambda event: None)
    until(lambda: scripted.rows[0]._tokens)
    link, heard = RemoteLink(proxy.url), Heard()
    link.listen(heard)
    until(lambda: any(isinstance(event, PrefillEvent) for event in heard.events))
    queued = next(event for event in heard.events if isinstance(event, QueuedEvent))
    assert (queued.request_id, queued.source, queued.prompt_tokens) == ("other", "api", 9)
    proxy.refusing = True
    proxy.cut()
    until(lambda: any(isinstance(event, LoadEvent) for event in heard.events))
    gate.set()
    until(lambda: scripted.rows[0].finished.is_set())
    proxy.refusing = False
    assert heard.finish.request_id == "other"
    assert heard.finish.reason == "stop"
    link.close()


def test_leaving_cancels_what_was_asked_here(proxy: Proxy, scripted: ScriptedEngine) -> None:
    link = ready(RemoteLink(proxy.url))
    scripted.script = lambda row: row.wait()
    asked(link)
    link.close()
    assert scripted.rows[0].finished.wait(20)


def test_what_is_at_an_address_is_found_out(server: ServerThread, scripted: ScriptedEngine) -> None:
    assert server.address is not None
    bare = server.address.removeprefix("http://")
    for given in (server.address, bare, f"{server.address}/v1", f"{server.address}/v1/"):
        assert kind_of(given, None) == "ours"
    link = connect(bare)
    assert isinstance(link, RemoteLink)
    link.close()
    with pytest.raises(UnreachableError, match="no server answers"):
        kind_of("http://127.0.0.1:1", None)
    for nonsense in ("", "ftp://host", "http://", "http://host/?a=1", "http://user@host"):
        with pytest.raises(UsageError, match="no address"):
            kind_of(nonsense, None)


def test_a_server_with_keys_is_told_apart_from_none(scripted: ScriptedEngine) -> None:
    key = "0123456789abcdefghij"
    server = ServerThread(scripted, port=0, keys=Keys([key]))
    server.start()
    assert server.address is not None
    with pytest.raises(UsageError, match="asks for a key"):
        kind_of(server.address, None)
    with pytest.raises(UsageError, match="does not take this key"):
        kind_of(server.address, "another-key-of-some-length")
    link = connect(server.address, key)
    assert isinstance(link, RemoteLink)
    ready(link)
    assert asked(link).finish.reason == "stop"
    link.close()
    assert server.stop(0.5)


def test_a_workbench_is_announced_with_the_model_that_it_has(
    scripted: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    late = LateServer(scripted, Journal(), LocalSettings({}, scripted), 8000, EngineConfig(kv_bits=8))
    until(servers, "the announcement")
    (running,) = servers()
    assert (running.kind, running.model, running.context, running.keyed) == ("workbench", "demo-13m", 2048, False)
    assert running.url in late.line
    assert (running.start, running.front) == (Start("mtp", None, "turbo", 8, None), Front(port=8000))
    scripted.context = 512
    scripted.restart("another model")
    until(lambda: [each.context for each in servers()] == [512], "the new announcement")
    late.stop()
    assert servers() == []


def test_the_real_engine_answers_through_a_bad_line(demo_server: str) -> None:
    proxy = Proxy(int(demo_server.rpartition(":")[2]))
    link = ready(RemoteLink(proxy.url))
    heard, cuts = Heard(), 0
    link.ask(Question([{"role": "user", "content": "Tell me a long story about a fox"}], seed=3), heard)
    while not heard.finishes:
        seen = len(heard.ids)
        until(lambda seen=seen: heard.finishes or len(heard.ids) > seen + 20)  # type: ignore[misc]
        proxy.cut()
        cuts += 1
    again = asked_again(link, heard)
    assert cuts > 1
    assert (heard.atoms, heard.ids) == (again.atoms, again.ids)
    link.close()
    proxy.close()


def asked_again(link: RemoteLink, heard: Heard) -> Heard:
    """The same question over a line that holds."""
    until(lambda: link.state == "ready")
    again = Heard()
    link.ask(Question([{"role": "user", "content": "Tell me a long story about a fox"}], seed=3), again)
    assert again.finish.reason == heard.finish.reason
    return again


@pytest.fixture(scope="module")
def demo_server() -> Iterator[str]:
    from engine.engine import ThreadEngine

    real = ThreadEngine(EngineConfig())
    real.wait_ready(120)
    server = ServerThread(real, port=0)
    server.start()
    assert server.address is not None
    yield server.address
    server.stop(1.0)
    real.close()
