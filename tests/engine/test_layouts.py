"""Whatever layout a checkpoint comes in, it loads to the same model, and the trunk is mlx-lm's own."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.utils import load_model
from tiny_models import CONFIGS, VOCAB, Norms, Tiny, Weights, dequantised, make, opened, save

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.models import norms
from engine.models.load import LoadedModel
from engine.models.locate import ASSETS
from engine.models.probe import agreement, own_text
from engine.prompts import PROMPTS
from engine.request import Request, Sampling

TOKENS = mx.array([np.random.default_rng(0).integers(0, VOCAB, 70).tolist()])
INPUT_NORMS = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight")
PREFIXES = ("mtp.", "model.mtp.", "language_model.mtp.", "language_model.model.mtp.")
FILES = ("shards", "model-mtp.safetensors", "mtp.safetensors", "mtp/weights.safetensors")
QWEN = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where decisions about norms are kept: in a place of this test's own, so that nothing is decided yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mtplx-tui" / "heads"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def stock(folder: Path) -> nn.Module:
    """The model as mlx-lm loads it by itself."""
    return load_model(folder)[0]


def outputs(loaded: LoadedModel) -> tuple[mx.array, mx.array]:
    """(trunk logits, head outputs) over TOKENS."""
    state = loaded.spec.new_state()
    state.read(True)
    hidden = loaded.spec.hidden(TOKENS, state)
    return loaded.spec.logits(hidden), loaded.spec.head_hidden(TOKENS[:, 1:], hidden[:, :-1], state)


@cache
def expected(family: str) -> tuple[mx.array, mx.array]:
    """The same from mlx-lm's classes and the contract's formula, over the weights as they were made."""
    model = make(family)
    return reference(model, model.trunk)


def reference(model: Tiny, trunk: Weights) -> tuple[mx.array, mx.array]:
    base = model.empty()
    base.load_weights(list(trunk.items()))
    hidden = base.model(TOKENS)
    embedding = base.model.embed_tokens(TOKENS)
    return base.lm_head(hidden), model.head_pass(embedding[:, 1:], hidden[:, :-1])


def same(ours: tuple[mx.array, mx.array], theirs: tuple[mx.array, mx.array], tolerance: float = 5e-5) -> bool:
    return all(float(mx.abs(a - b).max()) < tolerance for a, b in zip(ours, theirs, strict=True))


# --- layouts


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize("layout", ["delta", "absolute"])
@pytest.mark.parametrize("family", CONFIGS)
def test_a_head_in_any_file_loads_to_the_same_model(folder: Path, family: str, layout: Any, place: str) -> None:
    save(folder, make(family), trunk=layout, head=layout, place=place)
    assert same(outputs(opened(folder)), expected(family))


@pytest.mark.parametrize(
    ("family", "prefix"), [*((f, p) for f in QWEN[:2] for p in PREFIXES), ("llama", "mtp."), ("llama", "model.mtp.")]
)
def test_a_head_under_any_prefix_loads_to_the_same_model(folder: Path, family: str, prefix: str) -> None:
    save(folder, make(family), prefix=prefix)
    assert same(outputs(opened(folder)), expected(family))


@pytest.mark.parametrize("family", CONFIGS)
def test_a_file_of_its_own_needs_no_prefix(folder: Path, family: str) -> None:
    save(folder, make(family), prefix="", place="mtp.safetensors")
    assert same(outputs(opened(folder)), expected(family))


@pytest.mark.parametrize("family", QWEN[:2])
def test_a_checkpoint_with_a_vision_tower_runs_as_text(folder: Path, family: str) -> None:
    save(folder, make(family), trunk="delta", head="delta", wrapped=True)
    loaded = opened(folder)
    assert same(outputs(loaded), expected(family))
    assert (loaded.info.vocab_size, loaded.info.context) == (VOCAB, 1024)


@pytest.mark.parametrize("layout", ["delta", "absolute"])
@pytest.mark.parametrize("family", CONFIGS)
def test_the_trunk_is_what_mlx_lm_makes_of_the_same_folder(folder: Path, family: str, layout: Any) -> None:
    save(folder, make(family), trunk=layout, head=layout, place="mtp.safetensors")
    logits, _ = outputs(opened(folder))
    assert mx.allclose(logits, stock(folder)(TOKENS), atol=5e-5)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_mlx_lm_reads_a_folder_with_the_head_inside_as_we_do(folder: Path, prefix: str) -> None:
    save(folder, make("qwen3_5"), trunk="delta", head="delta", prefix=prefix)
    logits, _ = outputs(opened(folder))
    assert mx.allclose(logits, stock(folder)(TOKENS), atol=5e-5)


@pytest.mark.parametrize(("family", "prefix"), [*((f, "mtp.") for f in CONFIGS), ("qwen3_5", "language_model.mtp.")])
def test_a_quantised_head_with_a_layer_of_another_width(folder: Path, family: str, prefix: str) -> None:
    save(folder, make(family), bits=4, prefix=prefix)
    loaded = opened(folder)
    assert loaded.info.quantization == "4-bit"
    model = make(family)
    plain = Tiny(family, model.config, model.trunk, dequantised(model.head, 4), model.empty, model.layer)
    assert same(outputs(loaded), reference(plain, dequantised(model.trunk, 4)), tolerance=2e-4)


def test_weights_stay_packed_where_the_device_has_kernels_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, make("qwen3_5"), bits=4)
    dense = outputs(opened(folder))
    monkeypatch.setattr("engine.models.load.is_cpu", lambda: False)
    loaded = opened(folder)
    head = loaded.spec.head
    assert head is not None
    assert (head.fc.bits, head.layers[0].mlp.up_proj.bits) == (8, 4)
    assert same(outputs(loaded), dense, tolerance=5e-3)


def test_in_plain_mode_no_head_is_asked_for_or_kept(folder: Path) -> None:
    save(folder, make("llama"), place=None)
    loaded = opened(folder, mode="ar")
    assert loaded.spec.head is None
    assert loaded.info.head is None


def test_a_draft_vocabulary_is_used_in_ascending_order(folder: Path) -> None:
    save(folder, make("llama"))
    mx.save_safetensors(str(folder / "token_frequency.safetensors"), {"ids_by_frequency": mx.array([9, 2, 5])})
    spec = opened(folder).spec
    assert spec.draft_ids is not None
    assert spec.draft_ids.tolist() == [2, 5, 9]
    hidden = mx.random.normal((1, 32), key=mx.random.key(0))
    assert mx.allclose(spec.draft_logits(hidden), spec.logits(hidden)[:, mx.array([2, 5, 9])], atol=1e-5)


# --- norms


MIXTURES: list[tuple[Norms, Norms, tuple[str, ...], tuple[bool, ...]]] = [
    ("absolute", "absolute", (), (False, False, False)),
    ("absolute", "delta", (), (True, True, True)),
    ("delta", "absolute", (), (False, False, False)),
    ("absolute", "delta", ("norm.weight",), (True, True, False)),
    ("absolute", "delta", INPUT_NORMS, (True, False, True)),
    ("absolute", "delta", (*INPUT_NORMS, "norm.weight"), (True, False, False)),
]


@pytest.mark.parametrize(
    ("family", "trunk", "head", "absolute", "shifts"),
    [
        # each mixture once, the families in turn; all of each in the slow suite
        pytest.param(family, *mixture, marks=[] if i % len(QWEN) == j else [pytest.mark.slow])
        for i, mixture in enumerate(MIXTURES)
        for j, family in enumerate(QWEN)
    ],
)
def test_any_mixture_of_norm_conventions_is_told_apart(
    folder: Path, notes: Path, family: str, trunk: Norms, head: Norms, absolute: tuple[str, ...], shifts: Any
) -> None:
    save(folder, make(family), trunk=trunk, head=head, absolute=absolute, place="mtp.safetensors")
    assert same(outputs(opened(folder)), expected(family))
    (note,) = notes.glob("*.json")
    told = json.loads(note.read_text())
    assert told["shifts"] == dict(zip(("layer", "input", "final"), shifts, strict=True))
    assert told["model"] == "model"
    assert 0.3 < told["overlap"] <= 1.0


def test_a_checkpoint_as_published_needs_no_probe(folder: Path, notes: Path) -> None:
    save(folder, make("qwen3_5"), trunk="delta", head="delta")
    opened(folder)
    assert not notes.exists()


def test_a_decision_is_made_once_and_made_again_where_its_note_is_damaged(folder: Path, notes: Path) -> None:
    save(folder, make("qwen3_5"))
    right = outputs(opened(folder))
    (note,) = notes.glob("*.json")
    note.write_text(json.dumps({"shifts": {"layer": False, "input": True, "final": False}}))
    assert not same(outputs(opened(folder)), right)  # the note is believed
    for damaged in ("\x00", '{"shifts": {"layer": true}}'):
        note.write_text(damaged)
        assert same(outputs(opened(folder)), right)
        assert json.loads(note.read_text())["shifts"] == {"layer": False, "input": False, "final": False}


def test_a_cache_that_can_not_be_written_costs_nothing_but_the_note(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, make("qwen3_5"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert same(outputs(opened(folder)), expected("qwen3_5"))


def test_gains_keep_the_type_of_the_stored_norms() -> None:
    stored = {name: mx.zeros((4,), dtype=mx.bfloat16) for group in norms.GROUPS.values() for name in group}
    gains = norms.shifted(stored, norms.Shifts(True, False, True))
    assert {x.dtype for x in gains.values()} == {mx.bfloat16}
    assert gains["mtp.norm.weight"].tolist() == [1.0] * 4
    assert gains["mtp.enorm.weight"].tolist() == [0.0] * 4


# --- the bundled model in other layouts


def rewritten_demo(folder: Path, delta: Callable[[str], bool]) -> Path:
    """The bundled model as MLX converters write it, except for the head's norms that `delta` picks."""
    source = ASSETS / "demo-13m"
    shutil.copytree(source, folder)
    trunk, head = (dict(mx.load(str(source / file))) for file in ("model.safetensors", "model-mtp.safetensors"))
    for name, value in trunk.items():
        if "conv1d" in name:
            trunk[name] = value.moveaxis(2, 1)
        elif "norm" in name and "linear_attn" not in name:
            trunk[name] = value + 1
    head = {name: value + 1 if "norm" in name and not delta(name) else value for name, value in head.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), trunk)
    mx.save_safetensors(str(folder / "model-mtp.safetensors"), head)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shifts", "delta"),
    [
        ((False, False, False), lambda name: False),
        ((True, True, False), lambda name: name != "mtp.norm.weight"),
    ],
)
def test_a_trained_head_drafts_as_well_in_every_layout(
    folder: Path, notes: Path, direct: DirectEngine, shifts: tuple[bool, ...], delta: Callable[[str], bool]
) -> None:
    engine = DirectEngine(EngineConfig(model=str(rewritten_demo(folder, delta))))
    (note,) = notes.glob("*.json")
    told = json.loads(note.read_text())
    assert tuple(told["shifts"].values()) == shifts
    tokens = own_text(direct.loaded.spec, direct.loaded.chat)
    assert told["agreement"] == pytest.approx(agreement(direct.loaded.spec, tokens), abs=0.03)
    prompt = direct.loaded.chat.render([{"role": "user", "content": PROMPTS[1]}])
    request = Request(prompt, Sampling(temperature=0.0), max_tokens=48, depth=3)
    ((ours,), (theirs,)) = engine.run([request]), direct.run([request])
    assert ours.ids == theirs.ids
    assert ours.stats.steps == pytest.approx(theirs.stats.steps, abs=2)
