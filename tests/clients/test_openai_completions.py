"""`completions` of the real `openai` package, whole, streamed and for scoring."""

from collections.abc import Iterator

import httpx
import openai
import pytest


@pytest.fixture
def client(api: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=api, api_key="none", max_retries=0, timeout=60, http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


STORY = "Once there was a fox who"


def test_whole_and_streamed_text_are_the_same(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="demo-13m", prompt=STORY, seed=7, max_tokens=20)
    assert whole.object == "text_completion"
    assert whole.choices[0].finish_reason in ("stop", "length")
    text, usage = "", None
    for chunk in client.completions.create(
        model="demo-13m", prompt=STORY, seed=7, max_tokens=20, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].text
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_many_prompts_come_back_in_their_order(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo-13m", prompt=["One, two,", "A cat"], n=2, max_tokens=3, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[:5] for choice in answer.choices] == ["One, ", "One, ", "A cat", "A cat"]


def test_a_likelier_text_scores_higher(client: openai.OpenAI) -> None:
    texts = ["Once upon a time there was a little fox.", "Once upon fox little a was a there time."]
    answer = client.completions.create(model="demo-13m", prompt=texts, max_tokens=0, echo=True, logprobs=1)
    sums = []
    for text, choice in zip(texts, answer.choices, strict=True):
        assert choice.text == text
        assert choice.logprobs is not None
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == text
        first, *numbers = choice.logprobs.token_logprobs or []
        assert first is None
        sums.append(sum(numbers))
    assert sums[0] > sums[1] + 5


def test_errors_arrive_as_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="demo-13m", prompt=[99_999_999])
    assert bad.value.param == "prompt[0]"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-3.5-turbo-instruct", prompt="a")
