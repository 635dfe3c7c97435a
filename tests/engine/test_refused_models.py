"""Checkpoints that can not run are refused with what is wrong with them and the way on, never with a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tiny_models import VOCAB, Tiny, make, opened, save

from engine.errors import EngineError, ModelBrokenError, NoMTPHeadError, UnsupportedModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


def rewrite_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


def rewrite_tensor(folder: Path, name: str, change: Callable[[mx.array], mx.array | None]) -> None:
    """Change one tensor wherever it lies; None removes it (and the index, which would give that away)."""
    for file in folder.glob("*.safetensors"):
        tensors = dict(mx.load(str(file)))
        if name in tensors:
            value = change(tensors.pop(name))
            mx.eval(*tensors.values())
            mx.save_safetensors(str(file), tensors | ({} if value is None else {name: value}))
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)


def test_no_head_names_the_model_what_was_looked_for_and_both_ways_on(folder: Path) -> None:
    save(folder.with_name("my-model"), make("qwen3_5"), place=None)
    with pytest.raises(NoMTPHeadError) as raised:
        opened(folder.with_name("my-model"))
    text = str(raised.value)
    for part in ("my-model", "mtp.*", "language_model.model.mtp.*", "mtp.safetensors", "--mode ar", "kept its head"):
        assert part in text


def test_an_unknown_family_is_named_with_those_that_run(folder: Path) -> None:
    save(folder, make("llama"))
    rewrite_config(folder, model_type="rwkv7")
    with pytest.raises(UnsupportedModelError, match=r"'rwkv7'.*llama, qwen3_5"):
        opened(folder)


@pytest.mark.parametrize(
    ("family", "key"), [("qwen3_5", "mtp_num_hidden_layers"), ("llama", "num_nextn_predict_layers")]
)
def test_a_head_of_more_than_one_layer_is_refused_by_its_config(folder: Path, family: str, key: str) -> None:
    save(folder, make(family))
    rewrite_config(folder, **{key: 2})
    with pytest.raises(UnsupportedModelError, match=rf"2 layers \({key}\).*--mode ar"):
        opened(folder)
    assert opened(folder, mode="ar").spec.head is None


def test_a_head_of_more_than_one_layer_is_refused_by_its_tensors(folder: Path) -> None:
    model = make("qwen3_5")
    second = {name.replace("layers.0.", "layers.1."): value for name, value in model.head.items()}
    save(folder, Tiny(model.family, model.config, model.trunk, model.head | second, model.empty, model.layer))
    rewrite_config(folder, mtp_num_hidden_layers=...)
    with pytest.raises(UnsupportedModelError, match="2 layers"):
        opened(folder)


def test_sliding_windows_are_refused(folder: Path) -> None:
    save(folder, make("llama"))
    kinds = ["full_attention", "sliding_attention"] * 2
    rewrite_config(folder, layer_types=kinds, sliding_window=8)
    with pytest.raises(UnsupportedModelError, match="sliding-window"):
        opened(folder)


@pytest.mark.parametrize("place", ["shards", "mtp.safetensors"])
@pytest.mark.parametrize("change", [lambda x: None, lambda x: x[:-1], lambda x: x[None]])
@pytest.mark.parametrize("name", ["fc", "norm", "layers.0.self_attn.q_proj", "layers.0.self_attn.q_norm"])
def test_a_head_with_a_tensor_missing_or_misshapen_is_broken(
    folder: Path, name: str, change: Callable[[mx.array], mx.array | None], place: str
) -> None:
    save(folder, make("qwen3_5"), place=place)
    rewrite_tensor(folder, f"mtp.{name}.weight", change)
    with pytest.raises(ModelBrokenError, match=rf"mtp\.{name}\.weight"):
        opened(folder)


@pytest.mark.parametrize("change", [lambda x: None, lambda x: x[..., :-1], lambda x: x[None]])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.3.self_attn.k_proj.weight", "model.layers.0.linear_attn.A_log"]
)
def test_a_trunk_with_a_tensor_missing_or_misshapen_is_broken(
    folder: Path, name: str, change: Callable[[mx.array], mx.array | None]
) -> None:
    save(folder, make("qwen3_5"), trunk="delta", head="delta")
    rewrite_tensor(folder, name, change)
    with pytest.raises(ModelBrokenError, match=name.removesuffix(".weight")):
        opened(folder)


@pytest.mark.parametrize(
    "family",
    ["qwen3_next", *(pytest.param(family, marks=pytest.mark.slow) for family in ("qwen3_5_moe", "llama"))],
)
def test_no_value_in_a_config_raises_anything_but_our_own_errors(folder: Path, family: str) -> None:
    save(folder, make(family), trunk="delta", head="delta")
    sound = json.loads((folder / "config.json").read_text())
    others = ("rope_scaling", "layer_types", "quantization", "text_config", "partial_rotary_factor")
    refused = []
    for key in (*sound, *others):
        for value in (..., "x", 0, {"a": 1}):
            rewrite_config(folder, **sound | {key: value})
            try:
                opened(folder)
            except EngineError as error:
                refused.append(str(error))
            (folder / "config.json").write_text(json.dumps(sound))
    assert len(refused) > len(sound)
    assert all(len(text) > 40 for text in refused)


@pytest.mark.parametrize(
    "settings", [{"temperature": -1}, {"temperature": "hot"}, {"top_p": 7}, {"top_k": [1]}, {"min_p": {}}]
)
def test_a_recommendation_that_can_not_be_followed_names_its_file(folder: Path, settings: dict[str, Any]) -> None:
    save(folder, make("llama"))
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelBrokenError, match=r"generation_config\.json"):
        opened(folder)


@pytest.mark.parametrize("ids", [[0, VOCAB], [-1, 3], [[1, 2]], [0.5], []])
def test_a_draft_vocabulary_of_another_model_is_refused(folder: Path, ids: list[Any]) -> None:
    save(folder, make("llama"))
    mx.save_safetensors(str(folder / "token_frequency.safetensors"), {"ids_by_frequency": mx.array(ids)})
    with pytest.raises(ModelBrokenError, match=r"token_frequency\.safetensors"):
        opened(folder)
