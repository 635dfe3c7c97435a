"""Claude Code's requests, and those of other Anthropic clients, replayed at the size at which they were recorded."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from anthropic_events import events, folded
from recorded import Recorded, recorded
from scripted_engine import ScriptedEngine

REQUESTS = recorded("anthropic_clients.json")
ANSWERED = [request for request in REQUESTS if request.path == "/v1/messages"]
COUNTED = [request for request in REQUESTS if request.path != "/v1/messages"]
CONTEXT = 262_144
WROTE_ABOUT = 0.05  # of a body's size


def session(client: str) -> dict[int, Recorded]:
    return {request.number: request for request in ANSWERED if request.client == client}


@pytest.fixture
def large(scripted: ScriptedEngine) -> ScriptedEngine:
    """A scripted engine with room for a coding agent's prompts."""
    scripted.context = CONTEXT
    return scripted


def prompt(client: httpx.Client, large: ScriptedEngine, request: Recorded) -> tuple[int, ...]:
    response = request.send(client)
    assert response.status_code == 200, response.text
    return large.rows[-1].request.prompt


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two prompts begin with alike."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def test_requests_are_replayed_at_full_size() -> None:
    large = [request for request in REQUESTS if request.client.startswith("claude") and request.size > 2000]
    assert len(large) == 13
    for request in large:
        assert len(str(request.body)) == pytest.approx(request.size, rel=WROTE_ABOUT)


@pytest.mark.parametrize("request_", ANSWERED, ids=lambda request: f"{request.client}-{request.number}")
def test_every_message_is_answered(client: httpx.Client, large: ScriptedEngine, request_: Recorded) -> None:
    response = request_.send(client)
    assert response.status_code == 200, response.text
    message = folded(events(response)) if request_.body.get("stream") else response.json()
    assert message["content"] == [{"type": "text", "text": "Hello there."}]
    assert message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"] == len(
        large.rows[-1].request.prompt
    )
    assert "cache_control" not in large.chat.decode(large.rows[-1].request.prompt)


def test_head_that_claude_code_begins_with_is_answered(client: httpx.Client) -> None:
    assert client.head("/", headers={"user-agent": "Bun/1.4.0"}).status_code == 200


def test_fourteen_counts_at_once_are_answered_while_the_engine_is_busy(
    client: httpx.Client, large: ScriptedEngine
) -> None:
    large.script = lambda row: row.wait()
    claude = [request for request in COUNTED if request.client == "claude_code_interactive"]
    assert len(claude) == 14
    with client.stream("POST", "/v1/messages", json={**claude[0].body, "stream": True}):
        with ThreadPoolExecutor(len(claude)) as pool:
            responses = list(pool.map(lambda request: request.send(client), claude))
        (row,) = large.rows
        assert not row.finished.is_set()
    assert [response.status_code for response in responses] == [200] * len(claude)
    assert all(set(response.json()) == {"input_tokens"} for response in responses)


@pytest.mark.parametrize("request_", COUNTED + ANSWERED, ids=lambda request: f"{request.client}-{request.number}")
def test_count_is_the_prompts_that_the_same_body_makes(
    client: httpx.Client, large: ScriptedEngine, request_: Recorded
) -> None:
    count = client.post("/v1/messages/count_tokens?beta=true", json=request_.body).json()["input_tokens"]
    response = client.post("/v1/messages?beta=true", json={**request_.body, "stream": False})
    assert response.status_code == 200, response.text
    assert count == len(large.rows[-1].request.prompt)


@pytest.mark.parametrize(("name", "first", "second"), [
    ("claude_code_print", 2, 3), ("claude_code_interactive", 3, 4), ("pi_anthropic", 1, 2),
])  # fmt: skip
def test_a_tool_turn_goes_on_with_the_prompt_before_it(
    client: httpx.Client, large: ScriptedEngine, name: str, first: int, second: int
) -> None:
    requests = session(name)
    before, after = (prompt(client, large, requests[number]) for number in (first, second))
    assert after[: len(before)] == before
    assert len(before) > 0.95 * len(after)
    added = large.chat.decode(after[len(before) :])
    assert added.index("Let me think about it.") < added.index("<tool_call>") < added.index("<tool_response>")


def test_compaction_goes_on_with_the_prompt_before_it(client: httpx.Client, large: ScriptedEngine) -> None:
    requests = session("claude_code_interactive")
    tool_turn, later, compact = (prompt(client, large, requests[number]) for number in (4, 20, 21))
    assert shared(later, tool_turn) > 0.95 * len(tool_turn)
    assert shared(compact, later) > 0.95 * len(later)


def test_mid_conversation_system_turn_stands_behind_the_first_prompt(
    client: httpx.Client, large: ScriptedEngine
) -> None:
    request = session("claude_code_print")[2]
    first, told = request.body["messages"]
    with_it = prompt(client, large, request)
    request.send(client, messages=[first])
    without = large.rows[-1].request.prompt
    ending = large.chat.encode("<|im_start|>assistant\n<think>\n")
    head = without[: len(without) - len(ending)]
    assert with_it[: len(head)] == head
    assert large.chat.decode(with_it[len(head) :]) == (
        f"<|im_start|>system\n{told['content']}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_titles_are_held_to_their_schema(client: httpx.Client, large: ScriptedEngine) -> None:
    prompt(client, large, session("claude_code_interactive")[2])
    grammar = large.rows[-1].request.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"
