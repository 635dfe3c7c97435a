"""The stream's frames for exact event scripts, and that it ends whatever happens."""

import threading

import httpx
import pytest
from http_helpers import Connect, ask, frames, until
from scripted_engine import ScriptedEngine, ScriptedRow, stays_in

from engine.events import Span, TokenLogprob


def content(chunks: list[dict], key: str = "content", index: int = 0) -> str:
    return "".join(
        choice["delta"].get(key) or ""
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk.get("choices", ())
        if choice["index"] == index
    )


def finishes(chunks: list[dict], index: int = 0) -> list[str]:
    return [
        choice["finish_reason"]
        for chunk in chunks
        if chunk != "[DONE]"
        for choice in chunk.get("choices", ())
        if choice["index"] == index and choice["finish_reason"]
    ]


def test_stream_has_role_deltas_one_finish_and_done(client: httpx.Client) -> None:
    got = frames(ask(client, stream=True))
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert content(got) == "Hello there."
    assert got[-2]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert got[-1] == "[DONE]"
    assert finishes(got) == ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in got[:-1]}) == 1
    assert got[0]["id"].startswith("chatcmpl-")
    assert len(got[0]["id"]) >= len("chatcmpl-") + 24
    assert all("usage" not in chunk for chunk in got[:-1])


def test_usage_comes_in_one_last_chunk_where_it_was_asked_for(client: httpx.Client) -> None:
    got = frames(ask(client, stream=True, stream_options={"include_usage": True}))
    assert all(chunk["usage"] is None for chunk in got[:-2])
    assert got[-2]["choices"] == []
    assert got[-2]["usage"]["completion_tokens"] == 4
    assert got[-2]["usage"] == ask(client).json()["usage"]


def test_usage_so_far_comes_with_each_chunk_where_it_was_asked_for(client: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    got = frames(ask(client, stream=True, stream_options=options))[:-1]
    made = [chunk["usage"]["completion_tokens"] for chunk in got]
    assert (made[0], made[-1], made) == (0, 4, sorted(made))
    assert set(got[0]["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    totals = [chunk["usage"]["total_tokens"] - chunk["usage"]["completion_tokens"] for chunk in got]
    assert set(totals) == {got[-1]["usage"]["prompt_tokens"]}
    alone = frames(ask(client, stream=True, stream_options={"continuous_usage_stats": True}))[:-1]
    assert not any("usage" in chunk for chunk in alone)


def test_one_frame_a_step_with_reasoning_and_text_in_order(client: httpx.Client, scripted: ScriptedEngine) -> None:
    gate = threading.Event()

    def script(row: ScriptedRow) -> None:
        row.say("So", kind="reasoning")
        row.wait(gate)
        row.spans([Span("reasoning", " then."), Span("text", "It is "), Span("text", "7.")], tokens=3)
        row.finish()

    scripted.script = script
    with client.stream("POST", "/v1/chat/completions", json=_body(stream=True)) as response:
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        assert '"reasoning_content":"So"' in next(lines)
        gate.set()
        step = next(lines)
        assert '"delta":{"reasoning_content":" then.","content":"It is 7."}' in step
        assert '"finish_reason":"stop"' in next(lines)
        assert next(lines) == "data: [DONE]"


def test_text_before_reasoning_goes_into_an_earlier_frame(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.spans([Span("text", "a"), Span("reasoning", "b"), Span("text", "c")], tokens=3)
        row.finish()

    scripted.script = script
    deltas = [chunk["choices"][0]["delta"] for chunk in frames(ask(client, stream=True))[1:-2]]
    assert deltas == [{"content": "a"}, {"reasoning_content": "b", "content": "c"}]


def test_streamed_and_whole_answers_are_the_same(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("hm", kind="reasoning")
        row.say("call: ")
        row.say("<function=f>", "\n</function>", kind="tool")
        row.say(" \U0001f600")
        row.finish()

    scripted.script = script
    got = frames(ask(client, stream=True))
    message = ask(client).json()["choices"][0]["message"]
    assert content(got) == message["content"] == "call: <tool_call><function=f>\n</function></tool_call> \U0001f600"
    assert content(got, "reasoning_content") == message["reasoning_content"] == "hm"


def test_cut_inside_thinking_is_length_with_the_reasoning_kept(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("Let me", kind="reasoning", tokens=2)
        row.finish("length")

    scripted.script = script
    choice = ask(client).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Let me")
    assert finishes(frames(ask(client, stream=True))) == ["length"]


def test_several_choices_stream_side_by_side(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say(f"seed {row.request.seed}")
        row.finish("length" if row.request.seed == 8 else "stop")

    scripted.script = script
    got = frames(ask(client, n=3, seed=7, stream=True, stream_options={"include_usage": True}))
    assert [content(got, index=i) for i in range(3)] == ["seed 7", "seed 8", "seed 9"]
    assert [finishes(got, i) for i in range(3)] == [["stop"], ["length"], ["stop"]]
    prompt = len(scripted.rows[0].request.prompt)
    assert got[-2]["usage"]["prompt_tokens"] == prompt
    assert got[-2]["usage"]["completion_tokens"] == 3
    assert len({row.request.id for row in scripted.rows}) == 3
    assert got[0]["id"] == scripted.rows[0].request.id


def test_seed_counts_up_within_64_bits(client: httpx.Client, scripted: ScriptedEngine) -> None:
    assert ask(client, n=2, seed=-1).status_code == 200
    assert [row.request.seed for row in scripted.rows] == [2**64 - 1, 0]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_every_token_reach_the_client(client: httpx.Client, scripted: ScriptedEngine, stream: bool) -> None:
    smile = TokenLogprob(5, "\U0001f600".encode()[:2], -0.5, ((5, b"\xf0\x9f", -0.5), (6, b"\n", float("-inf"))))

    def script(row: ScriptedRow) -> None:
        row.spans([], 1, [smile])  # held back: half a character
        row.say("\U0001f600!", tokens=2, logprobs=[smile, TokenLogprob(6, b"!", 0.0)])
        row.finish()

    scripted.script = script
    response = ask(client, stream=stream, logprobs=True, top_logprobs=2)
    choices = [chunk["choices"][0] for chunk in frames(response)[1:-1]] if stream else response.json()["choices"]
    tokens = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["bytes"] for entry in tokens] == [[0xF0, 0x9F], [0xF0, 0x9F], [33]]
    assert tokens[0]["token"] == "\ufffd"
    assert tokens[0]["top_logprobs"][1] == {"token": "\n", "logprob": -9999.0, "bytes": [10]}
    assert tokens[2] == {"token": "!", "logprob": 0.0, "bytes": [33], "top_logprobs": []}
    assert scripted.rows[0].request.logprobs == 2


def test_error_after_some_text_ends_the_stream_with_an_error_frame(
    client: httpx.Client, scripted: ScriptedEngine
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("one two")
        row.finish("error", error="The model gave a logit that is not a finite number.")

    scripted.script = script
    got = frames(ask(client, stream=True))
    assert content(got) == "one two"
    assert got[-2]["error"]["message"] == "The model gave a logit that is not a finite number."
    assert got[-2]["error"]["type"] == "server_error"
    assert got[-1] == "[DONE]"
    assert finishes(got) == []
    whole = ask(client)
    assert (whole.status_code, whole.json()["error"]) == (500, got[-2]["error"])


def test_failure_of_one_choice_frees_the_others(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        if row.request.seed == 2:
            row.finish("error", error="broken")
        row.wait()

    scripted.script = script
    assert ask(client, n=2, seed=1).status_code == 500
    until(scripted.rows[0].finished.is_set)
    assert frames(ask(client, n=2, seed=1, stream=True))[-1] == "[DONE]"
    until(scripted.rows[2].finished.is_set)


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_by_the_operator_is_told_and_not_to_be_retried(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool
) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("begun")
        scripted.cancel(row.request.id)
        row.wait()

    scripted.script = script
    response = ask(client, stream=stream)
    error = frames(response)[-2]["error"] if stream else response.json()["error"]
    assert error["code"] == "cancelled"
    if not stream:
        assert (response.status_code, response.headers["x-should-retry"]) == (503, "false")


def test_silence_gets_comments_and_a_stall_gets_an_end(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02, stalled_s=5)
    scripted.script = lambda row: row.wait()
    with client.stream("POST", "/v1/chat/completions", json=_body(stream=True)) as response:
        lines = (line for line in response.iter_lines() if line)
        assert "assistant" in next(lines)
        assert next(lines) == ": waiting"
        scripted.age = 10.0
        rest = [line for line in lines if line != ": waiting"]
    assert "engine_stalled" in rest[0]
    assert rest[1:] == ["data: [DONE]"]
    until(scripted.rows[0].finished.is_set)


def test_stalled_engine_ends_a_whole_answer_too(connect: Connect, scripted: ScriptedEngine) -> None:
    client = connect(keep_alive_s=0.02, stalled_s=5)
    scripted.script = lambda row: row.wait()
    scripted.age = 10.0
    response = ask(client)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_stalled")


def test_no_comment_comes_while_tokens_do(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        for _ in range(3000):
            row.say("x")
        row.finish()

    scripted.script = script
    response = ask(client, stream=True)
    assert content(frames(response)) == "x" * 3000
    assert ": waiting" not in response.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_client_that_leaves_frees_its_rows(
    client: httpx.Client, scripted: ScriptedEngine, stream: bool, phase: str
) -> None:
    scripted.script = stays_in(phase)
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=_body(stream=stream, n=2), timeout=httpx.Timeout(5, read=0.2))
    until(lambda: len(scripted.rows) == 2)
    for row in scripted.rows:
        until(row.finished.is_set)
        assert row.cancelled.is_set()
    assert ask_after(client, scripted)


def ask_after(client: httpx.Client, scripted: ScriptedEngine) -> bool:
    scripted.script = lambda row: row.finish()
    return ask(client).status_code == 200


def test_client_that_reads_slowly_gets_everything(client: httpx.Client, scripted: ScriptedEngine) -> None:
    words = [f"{'x' * 500}{i} " for i in range(3000)]

    def script(row: ScriptedRow) -> None:
        for word in words:
            row.say(word)
        row.finish()

    scripted.script = script
    with client.stream("POST", "/v1/chat/completions", json=_body(stream=True)) as response:
        until(lambda: scripted.rows and scripted.rows[0].finished.is_set())
        text = response.read().decode()
    assert all(word in text for word in words[::100])
    assert text.count("data: ") < len(words) / 2, "steps that wait together travel in one frame"
    assert text.endswith("data: [DONE]\n\n")


def test_abandoned_streams_leave_no_row_and_no_thread(client: httpx.Client, scripted: ScriptedEngine) -> None:
    def script(row: ScriptedRow) -> None:
        row.say("a")
        row.wait()

    scripted.script = script
    threads = threading.active_count()
    for _ in range(40):
        with client.stream("POST", "/v1/chat/completions", json=_body(stream=True)) as response:
            next(response.iter_raw())
    until(lambda: all(row.finished.is_set() for row in scripted.rows))
    # asyncio's pool for rendering has at most cores + 4 threads, and keeps them.
    until(lambda: threading.active_count() <= threads + 10)


def _body(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}
