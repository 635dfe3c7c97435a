"""POST /v1/completions on the real engine: every form of prompt, numbers that are the engine's, raw text."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_helpers import frames, until

from engine.collect import complete
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.events import FinishEvent
from engine.handle import EngineHandle
from engine.request import Request
from server.run import ServerThread

FOX = "Once there was a fox who"
ASKED = "<|im_start|>user\nWhat is 47 + 85?<|im_end|>\n<|im_start|>assistant\n"


def send(client: httpx.Client, prompt: object, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": prompt, **fields})


def good(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in body["choices"]] == list(range(len(body["choices"])))
    return body


def gathered(response: httpx.Response) -> list[dict[str, Any]]:
    """The choices of a stream put together: text, logprobs, and the one finish reason."""
    chunks = frames(response)
    assert chunks[-1] == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks[:-1]:
        assert chunk["object"] == "text_completion"
        for given in chunk["choices"]:
            choice = choices.setdefault(
                given["index"], {"index": given["index"], "text": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing follows the finish"
            choice["text"] += given["text"]
            choice["finish_reason"] = given["finish_reason"]
            if given["logprobs"] is not None:
                before = choice["logprobs"] or {key: [] for key in given["logprobs"]}
                choice["logprobs"] = {key: before[key] + given["logprobs"][key] for key in before}
    return [choices[index] for index in sorted(choices)]


# --- prompts


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("hello", 1),
        (["hello"], 1),
        (["hello", "world"], 2),
        ([10, 11, 12], 1),
        ([10.0, 11.0], 1),
        ([[10, 11], [12]], 2),
        ([[5]], 1),
        ("\U0001f600é\u0000", 1),
        ("<|im_end|>", 1),
    ],
)
def test_every_form_of_a_prompt_is_taken(demo: httpx.Client, prompt: Any, choices: int) -> None:
    body = good(send(demo, prompt, max_tokens=2, ignore_eos=True))
    assert len(body["choices"]) == choices
    assert all(choice["finish_reason"] == "length" for choice in body["choices"])
    assert body["usage"]["completion_tokens"] == 2 * choices
    assert body["id"].startswith("cmpl-")
    assert len(body["id"]) >= len("cmpl-") + 24


def test_ids_of_a_text_mean_that_text(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    ids = demo_engine.chat.encode(FOX)
    fields: dict[str, Any] = {"seed": 3, "temperature": 1, "echo": True}
    one, other = (good(send(demo, prompt, **fields))["choices"] for prompt in (FOX, ids))
    assert one == other


def test_each_of_several_prompts_gets_what_it_gets_alone_n_times(demo: httpx.Client) -> None:
    prompts = [FOX, "Nora went to the", ASKED]
    fields: dict[str, Any] = {"temperature": 1, "max_tokens": 12}
    body = good(send(demo, prompts, n=2, seed=5, **fields))
    assert len(body["choices"]) == 6
    alone = [good(send(demo, prompt, seed=seed, **fields)) for prompt in prompts for seed in (5, 6)]
    assert [choice["text"] for choice in body["choices"]] == [each["choices"][0]["text"] for each in alone]
    usages = [each["usage"] for each in alone]
    assert body["usage"]["prompt_tokens"] == sum(usage["prompt_tokens"] for usage in usages[::2])
    assert body["usage"]["completion_tokens"] == sum(usage["completion_tokens"] for usage in usages)
    assert len({choice["text"] for choice in body["choices"]}) > 3


BAD: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": {"text": "a"}}),
    ("prompt", {"prompt": 5}),
    ("prompt", {"prompt": ["a"] * 65}),
    ("prompt", {"prompt": ["a"] * 9, "n": 8}),
    ("prompt", {"prompt": [5] * 2048}),
    ("prompt", {"prompt": "word " * 4000}),
    ("prompt", {"prompt": "x" * 5_000_000}),
    ("prompt[0]", {"prompt": ["", "a"]}),
    ("prompt[1]", {"prompt": ["a", ""]}),
    ("prompt[1]", {"prompt": ["a", 5]}),
    ("prompt[1]", {"prompt": ["a", [5]]}),
    ("prompt[1]", {"prompt": [[5], "a"]}),
    ("prompt[1]", {"prompt": [[5], []]}),
    ("prompt[1]", {"prompt": [[5], [5] * 2048]}),
    ("prompt[0]", {"prompt": [99_999_999]}),
    ("prompt[0]", {"prompt": [6144]}),
    ("prompt[1]", {"prompt": [5, -5]}),
    ("prompt[1]", {"prompt": [5, 2**70]}),
    ("prompt[1]", {"prompt": [5, 1.5]}),
    ("prompt[1]", {"prompt": [5, True]}),
    ("prompt[1]", {"prompt": [5, None]}),
    ("prompt[1]", {"prompt": [5, "a"]}),
    ("prompt[0]", {"prompt": [None]}),
    ("prompt[1][0]", {"prompt": [[5], [99_999_999]]}),
    ("prompt[0][1]", {"prompt": [[5, [5]]]}),
    ("prompt[0][0]", {"prompt": [["a"]]}),
    ("suffix", {"prompt": "a", "suffix": "b"}),
    ("best_of", {"prompt": "a", "best_of": 2}),
    ("best_of", {"prompt": "a", "best_of": 1, "n": 2}),
    ("best_of", {"prompt": "a", "best_of": 0}),
    ("n", {"prompt": "a", "n": 1_000_000}),
    ("logprobs", {"prompt": "a", "logprobs": 6}),
    ("logprobs", {"prompt": "a", "logprobs": -1}),
    ("logprobs", {"prompt": "a", "logprobs": True}),
    ("echo", {"prompt": "a", "echo": "yes"}),
    ("max_tokens", {"prompt": "a", "max_tokens": 0}),
    ("max_tokens", {"prompt": "a", "max_tokens": -1, "echo": True}),
    ("temperature", {"prompt": "a", "temperature": -1}),
    ("stop", {"prompt": "a", "stop": list("abcdefghijklmnopq")}),
    ("logit_bias.99999999", {"prompt": "a", "logit_bias": {"99999999": 1}}),
]


@pytest.mark.parametrize(("path", "fields"), BAD)
def test_what_can_not_run_is_refused_with_its_path_and_the_engine_lives_on(
    demo: httpx.Client, path: str, fields: dict[str, Any]
) -> None:
    response = demo.post("/v1/completions", json=fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["type"]) == (path, "invalid_request_error")
    assert error["message"]
    assert good(send(demo, [5, 6], max_tokens=1))


def test_a_prompt_that_is_too_long_is_told_with_both_numbers(demo: httpx.Client) -> None:
    error = send(demo, ["a", "word " * 4000]).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt[1]")
    assert "2048 tokens" in error["message"]
    assert "4001 tokens" in error["message"]


def test_an_unknown_model_is_404_and_both_paths_are_served(demo: httpx.Client) -> None:
    assert send(demo, "a", model="gpt-3.5-turbo-instruct").json()["error"]["code"] == "model_not_found"
    assert demo.post("/completions", json={"prompt": "a", "model": "demo-13m", "max_tokens": 1}).status_code == 200


# --- fields


def test_16_tokens_are_made_where_nothing_is_said_and_no_more_than_fit(demo: httpx.Client) -> None:
    assert good(send(demo, FOX, ignore_eos=True))["usage"]["completion_tokens"] == 16
    body = good(send(demo, [5] * 2044, ignore_eos=True, max_tokens=1_000_000))
    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "length"


def test_null_fields_give_what_absent_ones_give(demo: httpx.Client) -> None:
    names = ("suffix", "echo", "logprobs", "best_of", "max_tokens", "n", "stream", "stream_options", "stop", "user")
    bare = good(send(demo, FOX, seed=2))
    assert good(send(demo, FOX, seed=2, **dict.fromkeys(names)))["choices"] == bare["choices"]


def test_fields_that_change_nothing_are_listed(demo: httpx.Client) -> None:
    options = {"include_usage": True, "chunk_usage": True}
    response = send(demo, "a", max_tokens=1, user="me", guided_regex="x", stream=True, stream_options=options)
    assert response.headers["x-mtplx-ignored-fields"] == "guided_regex, stream_options.chunk_usage, user"
    assert "x-mtplx-ignored-fields" not in send(demo, "a", max_tokens=1, best_of=2, n=2, suffix="").headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_exactly_before_it(demo: httpx.Client, stream: bool) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
    text = good(send(demo, FOX, **fields))["choices"][0]["text"]
    stop = text[20:26]
    response = send(demo, FOX, **fields, stop=stop, stream=stream)
    (choice,) = gathered(response) if stream else good(response)["choices"]
    assert choice["text"] == text[: text.index(stop)]
    assert choice["finish_reason"] == "stop"


def test_the_text_is_raw_and_its_tokens_line_up_with_it(demo: httpx.Client) -> None:
    body = good(send(demo, ASKED, temperature=0, max_tokens=200, logprobs=0))
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert "132" in choice["text"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
    thought = good(send(demo, ASKED + "<think>\n", temperature=0, max_tokens=200))["choices"][0]["text"]
    assert "</think>" in thought, "the tag is text, and stays"
    assert "132" in thought
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert len(choice["logprobs"]["tokens"]) == body["usage"]["completion_tokens"]


def test_special_tokens_may_be_written_into_a_prompt(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    rendered = demo_engine.chat.render([{"role": "user", "content": "What is 47 + 85?"}])
    body = good(send(demo, demo_engine.chat.decode(rendered), max_tokens=1))
    assert body["usage"]["prompt_tokens"] == len(rendered)


# --- log-probabilities


def offsets_fit(choice: dict[str, Any]) -> None:
    """Where a token is whole characters, it stands at its offset; one that is not, inside the character there."""
    table = choice["logprobs"]
    assert len({len(table[key]) for key in table}) == 1
    for token, offset in zip(table["tokens"], table["text_offset"], strict=True):
        if token.startswith("bytes:"):
            raw = bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
            assert raw in choice["text"][offset].encode()
        else:
            assert choice["text"][offset:].startswith(token)


PROMPTS = [FOX, "Ein 👋🏽 für Zoë: 日本語, наконец.", "<|im_start|>user\nhi<|im_end|>\n", "a\n\n  b\t\u0000"]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("as_ids", [False, True])
def test_scores_of_a_prompt_are_the_engines(
    demo: httpx.Client, demo_engine: EngineHandle, prompt: str, as_ids: bool
) -> None:
    ids = demo_engine.chat.encode(prompt)
    expected = complete(demo_engine, Request(ids, max_tokens=0, prompt_logprobs=3)).prompt_logprobs
    body = good(send(demo, ids if as_ids else prompt, max_tokens=0, echo=True, logprobs=3))
    (choice,) = body["choices"]
    table = choice["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (prompt, "length")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (len(ids), 0)
    assert table["token_logprobs"] == [None, *(pytest.approx(token.logprob, abs=1e-4) for token in expected)]
    assert table["top_logprobs"][0] is None
    for number, own, top, token in zip(
        table["token_logprobs"][1:], table["tokens"][1:], table["top_logprobs"][1:], expected, strict=True
    ):
        assert top[own] == number
        assert 3 <= len(top) <= 4
        assert list(top.values())[:3] == [pytest.approx(value, abs=1e-4) for _, _, value in token.top]
    offsets_fit(choice)


def test_a_harness_that_scores_choices_gets_what_it_computes_with(
    demo: httpx.Client, demo_engine: EngineHandle
) -> None:
    """The body and the arithmetic of lm-evaluation-harness: one token is made and dropped again."""
    chat = demo_engine.chat
    context = chat.encode(ASKED)
    whole = [[*context, *chat.encode(f"47 + 85 is {number}.")] for number in (132, 717)]
    fields: dict[str, Any] = {"max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True, "temperature": 0}
    body = good(send(demo, whole, model="demo-13m", **fields))
    sums, greedy = [], []
    for choice in body["choices"]:
        table = choice["logprobs"]
        numbers, tops = (table[key][len(context) : -1] for key in ("token_logprobs", "top_logprobs"))
        sums.append(sum(numbers))
        greedy.append(all(number == max(top.values()) for number, top in zip(numbers, tops, strict=True)))
    assert sums[0] > sums[1] + 5
    assert greedy == [True, False]


def test_scores_of_many_prompts_at_once_are_those_of_each(demo: httpx.Client) -> None:
    prompts = [f"{FOX} Number {number} of them ran" for number in range(12)]
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 0}
    together = good(send(demo, prompts, **fields))["choices"]
    for prompt, choice in zip(prompts[::5], together[::5], strict=True):
        (alone,) = good(send(demo, prompt, **fields))["choices"]
        assert choice["text"] == alone["text"] == prompt
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(
            alone["logprobs"]["token_logprobs"][1:], abs=1e-3
        )


def test_no_more_tokens_are_scored_at_once_than_memory_has_room_for(
    demo: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.completion_request.MOST_SCORED", 100)
    fields: dict[str, Any] = {"max_tokens": 0, "echo": True, "logprobs": 0}
    for prompt, n in (([[5] * 1025, [5] * 1024], 1), ([5] * 300, 7)):
        response = send(demo, prompt, n=n, **fields)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
        assert "2048" in response.json()["error"]["message"]
    assert good(send(demo, [5] * 300, n=2, **fields))


def test_an_echoed_prompt_without_numbers_has_none(demo: httpx.Client) -> None:
    (choice,) = good(send(demo, FOX, max_tokens=0, echo=True))["choices"]
    assert choice == {"index": 0, "text": FOX, "logprobs": None, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("max_tokens", "echo", "logprobs"),
    [(12, False, None), (12, False, 2), (12, True, None), (12, True, 0), (0, True, None), (0, True, 2)],
)
def test_streamed_and_whole_answers_are_the_same(
    demo: httpx.Client, max_tokens: int, echo: bool, logprobs: int | None
) -> None:
    fields: dict[str, Any] = {"temperature": 1, "seed": 9, "n": 2, "max_tokens": max_tokens, "ignore_eos": True}
    fields |= {"echo": echo, "logprobs": logprobs}
    prompts = [FOX, PROMPTS[1]]
    whole = good(send(demo, prompts, **fields))
    response = send(demo, prompts, **fields, stream=True, stream_options={"include_usage": True})
    streamed = gathered(response)
    usage = frames(response)[-2]
    assert usage["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage["usage"][key] == whole["usage"][key]
    for one, other in zip(streamed, whole["choices"], strict=True):
        tables = one.pop("logprobs"), other.pop("logprobs")
        assert one == other
        assert (tables[0] is None) == (tables[1] is None) == (logprobs is None)
        if tables[0] is not None:
            assert tables[0]["tokens"] == tables[1]["tokens"]
            assert tables[0]["text_offset"] == tables[1]["text_offset"]
            assert tables[0]["token_logprobs"][1:] == pytest.approx(tables[1]["token_logprobs"][1:], abs=1e-3)
            offsets_fit({**one, "logprobs": tables[0]})


def test_every_chunk_has_one_id_and_usage_only_where_it_was_asked_for(demo: httpx.Client) -> None:
    chunks = frames(send(demo, FOX, stream=True, max_tokens=8, ignore_eos=True, stream_options={}))[:-1]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]


def test_usage_so_far_comes_with_each_chunk_where_it_was_asked_for(demo: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = frames(send(demo, FOX, stream=True, max_tokens=8, n=2, ignore_eos=True, stream_options=options))[:-1]
    made = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert made == sorted(made)
    assert made[0] < made[-1] == 16
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1
    assert all(chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + count
               for chunk, count in zip(chunks, made, strict=True))  # fmt: skip


def test_no_fewer_tokens_are_made_than_were_asked_for(demo: httpx.Client, demo_engine: EngineHandle) -> None:
    prompt = list(demo_engine.chat.render([{"role": "user", "content": "hi"}], thinking=False))
    brief = good(send(demo, prompt, temperature=0, max_tokens=200))
    count = brief["usage"]["completion_tokens"]
    longer = good(send(demo, prompt, temperature=0, max_tokens=200, min_tokens=count + 5))
    assert brief["choices"][0]["finish_reason"] == "stop"
    assert longer["usage"]["completion_tokens"] >= count + 5
    assert longer["choices"][0]["text"].startswith(brief["choices"][0]["text"])


# --- places


@pytest.fixture
def small() -> Iterator[tuple[ThreadEngine, httpx.Client]]:
    """A server with room for three answers: one is made, two wait."""
    engine = ThreadEngine(EngineConfig(max_rows=1, max_waiting=2))
    engine.wait_ready(120)
    server = ServerThread(engine, port=0)
    server.start()
    assert server.address is not None
    with httpx.Client(base_url=server.address, timeout=60, trust_env=False) as client:
        yield engine, client
    assert server.stop(0.5)
    assert engine.close(30)


def test_more_answers_than_places_are_refused_as_one_and_none_is_made(
    small: tuple[ThreadEngine, httpx.Client],
) -> None:
    engine, client = small
    reasons: list[str] = []
    engine.listen(lambda event: reasons.append(event.reason) if isinstance(event, FinishEvent) else None)
    asked: list[tuple[list[str], dict[str, Any]]] = [
        (["a", "b", "c", "d"], {}),
        (["a", "b"], {"n": 2}),
        (["a"] * 4, {"stream": True}),
    ]
    for number, (prompt, fields) in enumerate(asked):
        response = send(client, prompt, max_tokens=1500, ignore_eos=True, **fields)
        assert (response.status_code, response.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert response.headers["retry-after"] == "1"
        until(lambda ended=3 * (number + 1): len(reasons) == ended)
    assert len(good(send(client, ["a", "b", "c"], max_tokens=2))["choices"]) == 3
    assert reasons[:9] == ["cancelled"] * 9


def test_a_body_as_the_llm_command_sends_it(demo: httpx.Client) -> None:
    raw = json.dumps({"model": "demo-13m", "prompt": "hi", "stream": True, "stream_options": {"include_usage": True}})
    response = demo.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    (choice,) = gathered(response)
    usage = frames(response)[-2]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert choice["finish_reason"] in ("stop", "length")
