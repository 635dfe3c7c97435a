"""A link to servers that are not ours: one like vLLM, and our own by its OpenAI API alone."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from remote_servers import VllmLike, until
from scripted_engine import ScriptedEngine

import engine
from engine.chat import load_chat_format
from engine.errors import BadRequestError
from engine.events import Event, FinishEvent, LoadEvent, Span, TokenEvent
from engine.request import Sampling
from mtplx_tui.link import Question
from mtplx_tui.remote import openai
from mtplx_tui.remote.figures import ServerFigures, figures_of
from mtplx_tui.remote.openai import OpenAILink, model_of
from mtplx_tui.remote.probe import kind_of
from server.run import ServerThread

MESSAGES = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    {"role": "user", "content": "go on"},
]


@pytest.fixture
def other() -> Iterator[VllmLike]:
    other = VllmLike()
    yield other
    other.close()


@pytest.fixture
def link(other: VllmLike) -> Iterator[OpenAILink]:
    link = OpenAILink(other.url)
    until(lambda: link.state == "ready" and link.figures is not None, "the server's figures")
    yield link
    link.close()


def chunk(delta: str, finish: str = "null", usage: str = "null") -> str:
    return f'{{"choices": [{{"index": 0, "delta": {delta}, "finish_reason": {finish}}}], "usage": {usage}}}'


def asked(link: OpenAILink, **fields: object) -> list[Event]:
    heard: list[Event] = []
    link.ask(Question(MESSAGES, **fields), heard.append)  # type: ignore[arg-type]
    return heard


def ended(heard: list[Event]) -> FinishEvent:
    until(lambda: any(isinstance(event, FinishEvent) for event in heard), "the end")
    (finish,) = [event for event in heard if isinstance(event, FinishEvent)]
    return finish


def spans(heard: list[Event]) -> list[Span]:
    return [span for event in heard if isinstance(event, TokenEvent) for span in event.spans]


def test_an_answer_comes_as_events(link: OpenAILink, other: VllmLike) -> None:
    other.lines = [
        chunk('{"role": "assistant", "content": ""}'),
        chunk('{"reasoning_content": "let me\\u2028see"}', usage='{"completion_tokens": 3}'),
        chunk('{"content": "Hel"}', usage='{"completion_tokens": 5}'),
        chunk('{"content": "lo"}', finish='"stop"', usage='{"completion_tokens": 6}'),
        '{"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 7}}',
        "[DONE]",
    ]
    assert kind_of(other.url, None) == "openai"
    assert (link.model.name, link.model.context) == ("org/big", 32768)
    heard = asked(link, sampling=Sampling(temperature=0.5), thinking=False, max_tokens=9, seed=1)
    finish = ended(heard)
    assert spans(heard) == [Span("reasoning", "let me\u2028see"), Span("text", "Hel"), Span("text", "lo")]
    assert sum(len(event.ids) for event in heard if isinstance(event, TokenEvent)) == 6
    assert (finish.reason, finish.usage.prompt_tokens, finish.usage.completion_tokens) == ("stop", 20, 7)
    (body,) = other.bodies
    assert body == {
        "model": "org/big",
        "messages": [{"role": m["role"], "content": m["content"]} for m in MESSAGES],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.5,
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 9,
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([chunk('{"content": "a"}'), '{"error": {"message": "out of blocks"}}', "[DONE]"], "out of blocks"),
        ([chunk('{"content": "a"}')], "without saying why"),
        ([chunk('{"content": "a"}'), "no json", "[DONE]"], "no chat completion"),
        ([chunk('{"content": "a"}'), '{"choices": [5]}', "[DONE]"], "no chat completion"),
    ],
)
def test_an_answer_that_breaks_off_says_so_and_keeps_what_came(
    link: OpenAILink, other: VllmLike, lines: list[str], said: str
) -> None:
    other.lines = lines
    heard = asked(link)
    finish = ended(heard)
    assert finish.reason == "error"
    assert said in (finish.error or "")
    assert spans(heard) == [Span("text", "a")]


def test_a_refusal_is_said_in_the_servers_words(link: OpenAILink, other: VllmLike) -> None:
    other.refusal = (400, {"object": "error", "error": {"message": "too many tokens"}})
    with pytest.raises(BadRequestError, match="too many tokens"):
        asked(link)


def test_a_cancel_ends_a_stream_that_says_nothing(link: OpenAILink, other: VllmLike) -> None:
    other.gate.clear()
    other.lines = [chunk('{"content": "a"}'), "[DONE]"]
    heard = asked(link)
    until(lambda: spans(heard))
    link.cancel(heard[0].request_id)  # type: ignore[union-attr]
    assert ended(heard).reason == "cancelled"


def test_the_metrics_tell_of_load_and_drafts(link: OpenAILink) -> None:
    assert link.figures == ServerFigures(2, 1, 0.65, (0.8, 0.5), 2.3)
    assert figures_of("") == ServerFigures()


def test_a_server_that_went_away_tells_nothing_and_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "POLL_S", 0.02)
    other = VllmLike()
    told: list[Event] = []
    with closing(OpenAILink(other.url)) as link:
        link.listen(told.append)
        until(lambda: link.state == "ready" and link.figures is not None, "the server's figures")
        other.close()
        until(lambda: link.state == "loading" and link.figures is None, "its figures are gone with it")
        # a request that was on its way says first that the connection broke
        until(lambda: "reconnecting, no server answers" in link.line, "what is wrong now")
        stages = {event.stage for event in told if isinstance(event, LoadEvent)}
        assert stages == {f"reconnecting to 127.0.0.1:{other.port}"}
        with closing(VllmLike(other.port)) as again:
            until(lambda: link.state == "ready" and link.figures is not None, "it is found again")
            again.lines = [chunk('{"content": "a"}', '"stop"'), "[DONE]"]
            assert ended(asked(link)).reason == "stop"


def test_a_context_that_is_not_told_is_unknown() -> None:
    assert model_of({"id": "m"}).context == 0
    assert model_of({"id": "m", "context_length": 4096}).context == 4096


def test_our_own_server_is_one_of_them() -> None:
    scripted = ScriptedEngine(load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m"))
    server = ServerThread(scripted, port=0)
    server.start()
    assert server.address is not None
    link = OpenAILink(server.address)
    until(lambda: link.state == "ready")
    heard = asked(link)
    assert ended(heard).reason == "stop"
    assert "".join(span.text for span in spans(heard)) == "Hello there."
    link.close()
    assert server.stop(0.5)
    scripted.close()
