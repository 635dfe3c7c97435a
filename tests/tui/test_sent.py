"""What was sent to the model: the same for the screen beside the engine, over HTTP, and for requests of either."""

from collections.abc import Iterator

import httpx
import pytest
from remote_servers import until

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import EngineError
from engine.events import FinishEvent
from mtplx_tui.dashboard.detail import sent_lines
from mtplx_tui.glyphs import UNICODE
from mtplx_tui.layout.spans import plain
from mtplx_tui.link import LocalLink, Question
from mtplx_tui.remote.ours import RemoteLink
from server.run import ServerThread

QUESTION = "Mia the cat took 12 things and a lamp to Ben. " * 6 + "Who took the lamp?"


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[LocalLink, str]]:
    """A link beside the engine, and the address of the server that shares what it knows."""
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    link = LocalLink(engine)
    server = ServerThread(engine, port=0, journal=link.journal)
    server.start()
    assert server.address is not None
    yield link, server.address
    assert server.stop(2.0)
    engine.close()


def test_a_question_of_the_screen_and_one_over_http_are_told_alike_here_and_there(place: tuple[LocalLink, str]) -> None:
    link, url = place
    over: list[str] = []
    link.listen(lambda event: over.append(event.request_id) if isinstance(event, FinishEvent) else None)
    messages = [{"role": "user", "content": QUESTION}]
    link.ask(Question(messages, max_tokens=4, seed=1, id="rscreen"), lambda event: None)
    until(lambda: over == ["rscreen"], "the answer to the screen")
    body = {"model": "demo-13m", "messages": messages, "max_tokens": 4, "seed": 1}
    asked = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["id"]
    until(lambda: len(over) == 2, "the answer over HTTP")
    remote = RemoteLink(url, None)
    try:
        for request_id in ("rscreen", asked):
            here = link.sent(request_id)
            assert here.prompt.tokens is not None
            assert QUESTION in "".join(token.text or "" for token in here.prompt.tokens)
            assert remote.sent(request_id) == here
        assert here.cache.cached_tokens > 32
        assert [token.cached for token in here.prompt.tokens].count(True) == here.cache.cached_tokens
        end = remote.sent(asked, start=len(here.prompt.tokens) - 3)
        assert end.prompt.tokens == here.prompt.tokens[-3:]
        text = [plain(line) for line in sent_lines(end, UNICODE)]
        assert f"the first {end.prompt.start:,} of {end.prompt.total:,} tokens are not shown" in text
        with pytest.raises(EngineError, match="There is no request 'nope'"):
            remote.sent("nope")
    finally:
        remote.close()
    with pytest.raises(EngineError, match="Nothing is kept any more of request nope"):
        link.sent("nope")
