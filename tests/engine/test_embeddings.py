"""Vectors of texts: those that the checkpoint's own library gives, whatever is beside them and however they are cut
into jobs."""

import json
import shutil
import threading
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
import tiny_models
from mlx_lm.models import qwen3
from retrieval_helpers import MINILM, SENTENCES, as_array, ids, vectors
from tiny_encoders import HIDDEN, QWEN3, save_bert, save_pooling, save_qwen3, save_roberta

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.errors import EngineError, ModelBrokenError, NumericalError, OutOfMemoryError, UnsupportedModelError
from engine.events import Event, ReadyEvent
from engine.retrieval import on_cpu
from engine.retrieval.card import read_card
from engine.retrieval.config import RetrievalConfig
from engine.retrieval.forward import next_batch, run
from engine.retrieval.load import BLOCK, Encoder, begin
from engine.retrieval.pooling import vectors as pooled
from engine.retrieval.retriever import Retrieval
from engine.retrieval.texts import Reader, Tokens
from engine.supervised import SupervisedEngine

BERT_VALUES = [
    [0.275168, 0.052338, 0.066857, -0.209228, 0.078517, 0.028343],
    [0.256603, 0.037943, 0.101722, -0.228999, 0.101231, 0.040111],
    [0.232167, 0.033422, 0.102554, -0.199843, 0.077866, 0.050224],
]
ROBERTA_VALUES = [
    [-0.685477, 0.180817, 1.711143, -0.108566, -0.586636, 1.862932],
    [-0.69894, 0.078461, 1.84018, -0.06922, -0.612644, 1.922285],
    [-0.588327, 0.170247, 1.715083, -0.26146, -0.727965, 1.862678],
]
"""The first values of SENTENCES from the tiny checkpoints, by transformers 4.38.2 on PyTorch 1.13."""
MIB = 2**20


def test_all_minilm_gives_the_similarities_that_its_own_library_documents(engine: ThreadEngine) -> None:
    given = vectors(
        engine, MINILM, ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    )
    documented = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(given @ given.T, documented, atol=6e-5)
    np.testing.assert_allclose(given[0, :4], [0.01919577, 0.12008536, 0.15959832, 0.06706591], atol=2e-6)


def test_bert_gives_the_vectors_that_transformers_gives(engine: ThreadEngine, tmp_path: Path) -> None:
    given = vectors(engine, save_bert(tmp_path))
    np.testing.assert_allclose(given[:, :6], BERT_VALUES, atol=3e-6)
    np.testing.assert_allclose(np.linalg.norm(given, axis=1), 1, atol=1e-6)


def test_roberta_gives_the_vectors_that_transformers_gives(engine: ThreadEngine, tmp_path: Path) -> None:
    np.testing.assert_allclose(vectors(engine, save_roberta(tmp_path))[:, :6], ROBERTA_VALUES, atol=6e-6)


@pytest.mark.parametrize("prefix", ["model.", ""], ids=["as-converted", "as-published"])
def test_qwen3_gives_the_last_hidden_of_mlx_lms_own_model(engine: ThreadEngine, tmp_path: Path, prefix: str) -> None:
    folder = save_qwen3(tmp_path, embedding=True, prefix=prefix)
    reader = Reader(read_card(str(folder), "embedding"))
    model = qwen3.Model(qwen3.ModelArgs.from_dict(QWEN3))
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    model.load_weights([(name if prefix else f"model.{name}", value) for name, value in weights.items()])
    for text, vector in zip(SENTENCES, vectors(engine, folder), strict=True):
        tokens = reader.text(text).ids
        assert reader.text("").ids == tokens[-1:], "the tokenizer ends each text with a token of its own"
        last = np.array(model.model(mx.array([tokens]))[0, -1])
        np.testing.assert_allclose(vector, last / np.linalg.norm(last), atol=2e-6)


def loaded(folder: Path) -> tuple[Encoder, int]:
    card = read_card(str(folder), "embedding")
    encoder, parts, _ = begin(card)
    mx.eval(parts)
    return encoder, card.vocab_size


def ran(encoder: Encoder, batch: list[Tokens], size: int) -> tuple[np.ndarray, list[float]]:
    """Hiddens of a batch, and what each job did."""
    steps: Generator[float, None, mx.array] = run(encoder, batch, size, lambda encoder, hidden, lengths: hidden)
    done = []
    while True:
        try:
            done.append(next(steps))
        except StopIteration as end:
            return np.array(end.value), done


@pytest.mark.parametrize("save", [save_bert, save_roberta, save_qwen3])
def test_an_input_is_what_it_is_alone_beside_longer_ones(save: Any, tmp_path: Path) -> None:
    encoder, vocabulary = loaded(save(tmp_path))
    batch = [ids(length, vocabulary, length) for length in (31, 4, 17, 1)]
    together, _ = ran(encoder, batch, 1024)
    for place, each in enumerate(batch):
        alone, _ = ran(encoder, [each], 1024)
        np.testing.assert_allclose(together[place, : len(each.ids)], alone[0], atol=1e-5)


@pytest.mark.parametrize("save", [save_bert, save_qwen3])
def test_a_long_input_is_the_same_in_one_job_and_in_many_bounded_ones(save: Any, tmp_path: Path) -> None:
    settings = {"positions": 1500} if save is save_bert else {}
    encoder, vocabulary = loaded(save(tmp_path, **settings))
    batch = [ids(1500, vocabulary), ids(1203, vocabulary, 1)]
    whole, one = ran(encoder, batch, 1 << 30)
    assert len(one) == 1
    for size in (200, 700):
        parted, done = ran(encoder, batch, size)
        np.testing.assert_allclose(parted, whole, atol=1e-5)
        assert sum(done) == pytest.approx(3000)
        assert max(done) <= size + 2 * BLOCK / len(encoder.layers)
        assert len(done) > 3000 / (size + 2 * BLOCK)


def test_batches_hold_what_a_job_may_run_with_padding_and_one_input_at_least() -> None:
    inputs = [Tokens([7] * length, length) for length in (5, 100, 20, 20, 1, 3000)]
    order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place].ids))
    batches = []
    while order:
        batches.append(next_batch(inputs, order, 128))
    assert [sorted(len(inputs[place].ids) for place in batch) for batch in batches] == [[3000], [100], [1, 5, 20, 20]]


def test_many_inputs_of_all_lengths_come_back_in_their_order(engine: ThreadEngine, tmp_path: Path) -> None:
    words = ("fox", "owl", "night", "stadium", "sunny", "lovely")
    texts = [" ".join([words[number % 6]] * (1 + number * 7 % 30)) for number in range(90)]
    together = vectors(engine, save_bert(tmp_path), texts)
    for place in (0, 1, 44, 89):
        np.testing.assert_allclose(together[place], vectors(engine, tmp_path, [texts[place]])[0], atol=1e-5)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("pooling_mode_cls_token", lambda hidden: hidden[0]),
        ("pooling_mode_mean_tokens", lambda hidden: hidden.mean(0)),
        ("pooling_mode_max_tokens", lambda hidden: hidden.max(0)),
        ("pooling_mode_lasttoken", lambda hidden: hidden[-1]),
    ],
)
@pytest.mark.parametrize("normalise", [True, False])
def test_vectors_are_pooled_as_the_checkpoint_says(tmp_path: Path, flag: str, expected: Any, normalise: bool) -> None:
    save_bert(tmp_path)
    save_pooling(tmp_path, flag, normalise=normalise)
    card = read_card(str(tmp_path), "embedding")
    hidden = np.random.default_rng(0).normal(size=(2, 9, HIDDEN)).astype(np.float32)
    given = np.array(pooled(mx.array(hidden), [9, 4], card, None))
    for row, length in enumerate((9, 4)):
        vector = expected(hidden[row, :length])
        np.testing.assert_allclose(given[row], vector / np.linalg.norm(vector) if normalise else vector, atol=1e-6)


def test_fewer_dimensions_are_the_first_ones_at_length_one(engine: ThreadEngine, tmp_path: Path) -> None:
    whole, cut = vectors(engine, save_roberta(tmp_path)), vectors(engine, tmp_path, dimensions=8)
    np.testing.assert_allclose(cut, whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True), atol=1e-6)


def rewritten(folder: Path, rename: Any) -> Path:
    file = str(folder / "model.safetensors")
    weights = mx.load(file)
    assert isinstance(weights, dict)
    changed = rename(weights)
    mx.eval(list(changed.values()))
    mx.save_safetensors(file, changed)
    return folder


LAYOUTS = {
    "with a prefix": lambda weights: {f"bert.{name}": value for name, value in weights.items()},
    "with names from before 2019": lambda weights: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    },
    "with what other tasks need": lambda weights: (
        weights
        | {
            "embeddings.position_ids": mx.arange(40)[None],
            "cls.predictions.bias": mx.zeros((len(weights),)),
        }
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_gives_the_same_in_every_layout(engine: ThreadEngine, tmp_path: Path, layout: str) -> None:
    folder = rewritten(save_bert(tmp_path), LAYOUTS[layout])
    np.testing.assert_allclose(vectors(engine, folder)[:, :6], BERT_VALUES, atol=3e-6)


def test_a_quantised_checkpoint_gives_what_its_values_stand_for(engine: ThreadEngine, tmp_path: Path) -> None:
    def packed(weights: dict[str, mx.array], unpack: bool) -> dict[str, mx.array]:
        result = {}
        for name, value in weights.items():
            if "LayerNorm" in name or value.ndim < 2:
                result[name] = value
                continue
            parts = mx.quantize(value, group_size=32, bits=8)
            if unpack:
                result[name] = mx.dequantize(*parts, group_size=32, bits=8)
            else:
                stem = name.removesuffix("weight")
                result |= {stem + part: x for part, x in zip(("weight", "scales", "biases"), parts, strict=True)}
        return result

    plain = rewritten(save_bert(tmp_path / "plain"), lambda weights: packed(weights, True))
    small = rewritten(save_bert(tmp_path / "small"), lambda weights: packed(weights, False))
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"quantization": {"group_size": 32, "bits": 8}}))
    np.testing.assert_allclose(vectors(engine, small), vectors(engine, plain), atol=3e-6)


def test_a_vocabulary_without_tokenizer_json_reads_the_same(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MINILM, tmp_path / "model"))
    texts = ["Hello, Wörld! It's 5 o'clock.", "unbelievably   lovely\n北京", ""]
    before = [Reader(read_card(str(folder), "embedding")).text(text).ids for text in texts]
    (folder / "tokenizer.json").unlink()
    assert [Reader(read_card(str(folder), "embedding")).text(text).ids for text in texts] == before


@pytest.mark.parametrize("save", [save_bert, save_roberta])
def test_names_of_special_tokens_in_a_text_are_text(save: Any, tmp_path: Path) -> None:
    reader = Reader(read_card(str(save(tmp_path)), "embedding"))
    start, *inner, end = reader.text("fox [SEP] </s> <s> [CLS] owl").ids
    assert not {start, end} & set(inner)
    special = save_qwen3(tmp_path / "qwen3", embedding=True)
    reader = Reader(read_card(str(special), "embedding"))
    assert reader.text("<|endoftext|>").ids.count(reader.text("").ids[0]) == 1


def test_the_checkpoints_own_truncation_and_padding_do_not_hold(tmp_path: Path) -> None:
    reader = Reader(read_card(str(save_bert(tmp_path)), "embedding"))
    assert len(reader.text("fox").ids) == 3
    assert len(reader.text("fox " * 30).ids) == 32


@pytest.mark.parametrize(
    ("files", "window"),
    [
        ({}, 40),
        ({"sentence_bert_config.json": {"max_seq_length": 24}}, 24),
        ({"sentence_bert_config.json": {"max_seq_length": 900}}, 40),
        ({"tokenizer_config.json": {"model_max_length": 16}}, 16),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 40),
    ],
)
def test_the_window_is_the_least_of_what_the_files_allow(tmp_path: Path, files: dict[str, Any], window: int) -> None:
    for save in (save_bert, save_roberta):  # the second has 42 positions, which begin at 2
        folder = save(tmp_path / save.__name__)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))
        assert read_card(str(folder), "embedding").window == window


def changed(folder: Path, **config: Any) -> Path:
    old = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (old | config).items() if v is not None}))
    return folder


def with_module(folder: Path, kind: str | None) -> Path:
    modules = json.loads((folder / "modules.json").read_text())
    added = [{"idx": 9, "path": "9_X", "type": f"sentence_transformers.models.{kind}"}] if kind else []
    (folder / "modules.json").write_text(json.dumps(modules[:1] + (modules[1:] + added if kind else [])))
    return folder


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda folder: changed(folder, model_type="distilbert"), UnsupportedModelError, "is a distilbert model"),
        (lambda folder: changed(folder, position_embedding_type="relative_key"), UnsupportedModelError, "relative_key"),
        (lambda folder: changed(folder, hidden_act="swish"), UnsupportedModelError, "'swish'"),
        (lambda folder: changed(folder, vocab_size=None), ModelBrokenError, "vocab_size"),
        (lambda folder: with_module(folder, "Dense"), UnsupportedModelError, "a module Dense"),
        (lambda folder: with_module(folder, None), UnsupportedModelError, "no Pooling"),
    ],
)
def test_a_model_that_can_not_be_run_is_refused_at_the_start(
    tmp_path: Path, make: Any, error: type[EngineError], words: str
) -> None:
    with pytest.raises(error, match=words):
        read_card(str(make(save_bert(tmp_path))), "embedding")


def test_weights_that_do_not_fit_are_refused_when_they_are_needed(engine: ThreadEngine, tmp_path: Path) -> None:
    with pytest.raises(ModelBrokenError, match="do not fit together"):
        vectors(engine, changed(save_bert(tmp_path), hidden_size=2 * HIDDEN))
    assert engine.perform(lambda: "alive").result(10)


def test_values_that_are_not_finite_are_an_error_and_no_vector(engine: ThreadEngine, tmp_path: Path) -> None:
    def broken(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        name = "encoder.layer.1.output.dense.bias"
        return weights | {name: mx.full(weights[name].shape, mx.nan)}

    with pytest.raises(NumericalError, match="not a finite number"):
        vectors(engine, rewritten(save_bert(tmp_path), broken))


def test_a_model_is_let_go_of_after_a_while_and_comes_back_the_same(engine: ThreadEngine, tmp_path: Path) -> None:
    retrieval = Retrieval(engine, RetrievalConfig(embedding=str(save_bert(tmp_path)), idle_s=0.05))
    assert retrieval.embedding is not None
    assert not retrieval.loaded, "nothing is loaded before it is needed"
    inputs = [retrieval.reader(retrieval.embedding).text(text) for text in SENTENCES]
    for _ in range(2):
        np.testing.assert_allclose(as_array(retrieval.embed(inputs).result(20))[:, :6], BERT_VALUES, atol=3e-6)
        for _ in range(400):
            if not retrieval.loaded:
                break
            threading.Event().wait(0.02)
        assert not retrieval.loaded


def test_a_model_that_does_not_fit_is_refused_until_the_other_one_has_gone(tmp_path: Path) -> None:
    small = ThreadEngine(EngineConfig(memory_bytes=250 * MIB))
    small.wait_ready(120)
    copy = Path(shutil.copytree(MINILM, tmp_path / "copy"))
    first = Retrieval(small, RetrievalConfig(embedding=MINILM, idle_s=0.5))
    second = Retrieval(small, RetrievalConfig(embedding=str(copy)))
    tokens = [Tokens([101, 7592, 102], 3)]
    vector = first.embed(tokens).result(30)
    with pytest.raises(OutOfMemoryError, match=r"needs \d+ MiB, and \d+ MiB are free beside the chat model"):
        second.embed(tokens).result(30)
    for _ in range(400):
        if not first.loaded:
            break
        threading.Event().wait(0.02)
    assert second.embed(tokens).result(30) == vector
    assert small.close()


def test_an_engine_that_is_started_again_loads_the_model_again(tmp_path: Path) -> None:
    config = EngineConfig(str(tiny_models.save(tmp_path / "chat", tiny_models.make("llama"))))
    restarted = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, ReadyEvent) and engine.restarts:
            restarted.set()

    engine = SupervisedEngine(partial(ThreadEngine, config), hear)
    engine.wait_ready(60)
    retrieval = Retrieval(engine, RetrievalConfig(embedding=str(save_bert(tmp_path / "bert"))))
    assert retrieval.embedding is not None
    inputs = [retrieval.reader(retrieval.embedding).text(text) for text in SENTENCES]
    before = retrieval.embed(inputs).result(20)
    present = engine._made.result()
    assert present._runner is not None
    present._runner.turn = lambda: 1 / 0  # type: ignore[method-assign]
    assert restarted.wait(60)
    assert retrieval.embed(inputs).result(20) == before
    now = engine._made.result()._runner
    assert now is not None
    assert now.plan.weights == present._runner.plan.weights, "its memory is set aside in the new plan too"
    assert engine.close(30)


def test_requests_at_the_same_time_share_one_loading_and_one_copy(engine: ThreadEngine) -> None:
    retrieval = Retrieval(engine, RetrievalConfig(embedding=MINILM))
    assert retrieval.embedding is not None
    reader = retrieval.reader(retrieval.embedding)
    gate = threading.Event()
    engine.perform(gate.wait)
    futures = [retrieval.embed([reader.text(f"fox number {number}")]) for number in range(4)]
    futures[0].cancel()  # whoever began it may leave
    gate.set()
    results = [future.result(30) for future in futures[1:]]
    assert len(retrieval.loaded) == 1
    assert results[0] == retrieval.embed([reader.text("fox number 1")]).result(30)


@pytest.mark.parametrize(("activation", "most"), [("gelu_new", 0.01), ("relu", 1.0)])
def test_the_activation_is_the_one_in_the_config(
    engine: ThreadEngine, tmp_path: Path, activation: str, most: float
) -> None:
    base, other = (vectors(engine, save_bert(tmp_path / name, hidden_act=name)) for name in ("gelu", activation))
    assert 0 < np.abs(base - other).max() < most


def test_gelu_on_the_cpu_is_mlx_s_own() -> None:
    x = mx.linspace(-12, 12, 9001)
    np.testing.assert_allclose(np.array(on_cpu.gelu(x)), np.array(nn.gelu(x)), atol=1e-6)


def test_attention_on_the_cpu_is_mlx_s_own() -> None:
    random = np.random.default_rng(0)
    q, k, v = (mx.array(random.normal(size=(2, 3, n, 8)).astype(np.float32)) for n in (300, 500, 500))
    mask = (mx.arange(500) < mx.array([[500], [123]]))[:, None, None]
    for each in (None, mask):
        own = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=each)
        np.testing.assert_allclose(np.array(on_cpu.attention(q, k, v, 0.3, each)), np.array(own), atol=2e-5)
