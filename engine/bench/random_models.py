"""Checkpoints with random weights of a given shape: a step costs what it would, what the model says means nothing."""

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import platformdirs
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5

from engine.bench.shapes import DEMO_VOCABULARY, Shape
from engine.models.locate import ASSETS, BUNDLED

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
EOS = "<|im_end|>"
GROUP = 64
LAYOUT = 1  # part of a folder's name, raised where what is written changes
SHIFTED = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "norm_embedding.weight",
    "norm_hidden.weight",
    "q_norm.weight",
    "k_norm.weight",
)
"""Norms stored as gain - 1, as Qwen publishes them; the one inside the gated-delta layers is not, and `norm.weight` of
trunk and head is told apart by its whole name."""
QUIET = 0.2  # what a layer adds to the stream, against the stream itself


def ensure(name: str, shape: Shape) -> Path:
    """The folder of a random model in the user's cache, written on its first use.

    Raises OSError where there is no room for it.
    """
    key = hashlib.sha256(json.dumps([LAYOUT, shape.config()]).encode()).hexdigest()[:8]
    folder = platformdirs.user_cache_path("mtplx-tui") / "random" / key / f"random-{name}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            write(Path(unfinished) / folder.name, shape)
            (Path(unfinished) / folder.name).replace(folder)
    return folder


def write(folder: Path, shape: Shape) -> None:
    """A checkpoint in the layout that Qwen3.5 is published in, always the same for a shape, a file for each layer.

    The tokenizer is the bundled one. Tokens that it does not have, and the end of turn, are never the likeliest, so
    that a greedy answer goes on to its limit.
    """
    folder.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    draws = iter(range(1_000_000))
    for number, names in enumerate(_files(shape)):
        file = f"model-{number:05}.safetensors"
        tensors: dict[str, mx.array] = {}
        for tensor_name, tensor_shape in names:
            value = _random(shape, tensor_name, tensor_shape, mx.random.key(next(draws)))
            tensors |= _packed(shape, tensor_name, value)
        mx.save_safetensors(str(folder / file), tensors, metadata={"format": "mlx"})
        weight_map |= dict.fromkeys(tensors, file)
    for file in TOKENIZER_FILES:
        shutil.copy(ASSETS / BUNDLED / file, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    config = shape.config() | {"eos_token_id": _eos()}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _files(shape: Shape) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Names and shapes of all tensors: outside of the layers, then layer by layer, then the head."""
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(shape.config())).language_model  # its arrays stay unevaluated
    trunk = [(name, tuple(array.shape)) for name, array in tree_flatten(model.parameters())]
    yield [each for each in trunk if ".layers." not in each[0]]
    for layer in range(shape.layers):
        yield [each for each in trunk if each[0].startswith(f"model.layers.{layer}.")]
    like = f"model.layers.{3}."  # the head's layer is one of full attention, and the fourth is the first of those
    head = [("mtp." + name.replace(like, "layers.0."), size) for name, size in trunk if name.startswith(like)]
    head += [
        (f"mtp.{name}.weight", (shape.hidden,)) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    ]
    yield [*head, ("mtp.fc.weight", (shape.hidden, 2 * shape.hidden))]


def _random(shape: Shape, name: str, size: tuple[int, ...], key: mx.array) -> mx.array:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return mx.full(size, 0.5, dtype=mx.bfloat16)  # as in trained checkpoints: it tells the convention
    if name.endswith(SHIFTED) or name in ("model.norm.weight", "mtp.norm.weight"):
        return mx.zeros(size, dtype=mx.bfloat16)
    if name.endswith("norm.weight"):
        return mx.ones(size, dtype=mx.bfloat16)
    if name.endswith(("A_log", "dt_bias")):
        return mx.random.uniform(-3.0, 0.0, size, key=key)
    if "conv1d" in name:
        return mx.random.normal((size[0], 1, size[1]), dtype=mx.bfloat16, scale=0.5, key=key)
    scale = QUIET if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1.0
    value = mx.random.normal(size, dtype=mx.bfloat16, scale=scale / math.sqrt(size[-1]), key=key)
    if "embed_tokens" in name or "lm_head" in name:
        rows = mx.arange(size[0])
        said = (rows < DEMO_VOCABULARY) & (rows != _eos())
        value = mx.where(said[:, None], value, mx.zeros_like(value))
    return value


def _packed(shape: Shape, name: str, value: mx.array) -> dict[str, mx.array]:
    if shape.bits is None or value.ndim != 2 or value.shape[-1] % GROUP:
        return {name: value}
    module = name.removesuffix(".weight")
    parts = mx.quantize(value, group_size=GROUP, bits=shape.bits)
    return {f"{module}.{part}": array for part, array in zip(("weight", "scales", "biases"), parts, strict=True)}


def _eos() -> int:
    tokens: list[dict[str, Any]] = json.loads((ASSETS / BUNDLED / "tokenizer.json").read_text(encoding="utf-8"))[
        "added_tokens"
    ]
    return next(int(token["id"]) for token in tokens if token["content"] == EOS)
