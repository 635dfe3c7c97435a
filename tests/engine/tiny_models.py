"""Checkpoints small enough to build in a test, with random weights, in every layout that checkpoints come in.

A `Tiny` holds the weights once, as MLX wants them: norms as gains, convolutions transposed, experts stacked. `save`
writes them as one of the layouts; whatever it writes must load to the same model.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen3_5, qwen3_5_moe, qwen3_next
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.config import EngineConfig, Mode
from engine.models.load import LoadedModel, load

Weights = dict[str, mx.array]
Norms = Literal["delta", "absolute"]

BYTES = 256
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB = 264  # some rows more than the tokenizer has tokens, as in published checkpoints
EOS = BYTES + SPECIAL.index("<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
SHIFTED = (
    ".input_layernorm.weight",
    ".post_attention_layernorm.weight",
    "model.norm.weight",
    ".q_norm.weight",
    ".k_norm.weight",
)
"""Norms of a Qwen trunk that are stored as gain - 1; the one inside the gated-delta layers is not."""
OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")

_COMMON: dict[str, Any] = {
    "eos_token_id": EOS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
_HYBRID: dict[str, Any] = {
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "norm_topk_prob": True,
}
_ROPE = {
    "rope_parameters": {"type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2]}
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5": _COMMON | _HYBRID | _ROPE | {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe": _COMMON | _HYBRID | _ROPE | _EXPERTS | {"mtp_num_hidden_layers": 1},
    "qwen3_next": _COMMON
    | _HYBRID
    | _EXPERTS
    | {"rope_theta": 10000.0, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": 1},
    "llama": _COMMON | {"rope_theta": 10000.0, "num_nextn_predict_layers": 1},
}


@dataclass(frozen=True)
class Tiny:
    """One model. Trunk tensors are named as in the original checkpoint's root, head tensors without any prefix."""

    family: str
    config: dict[str, Any]
    trunk: Weights
    head: Weights
    empty: Callable[[], nn.Module] = field(repr=False)
    """Builds the trunk with its lm_head, of mlx-lm's own class, before its weights are in."""
    layer: Callable[[], nn.Module] = field(repr=False)
    """Builds a decoder layer of the kind that the head has, likewise."""

    def head_pass(self, embedding: mx.array, hidden: mx.array) -> mx.array:
        """The head's output for [1, T, H] inputs, by the contract's formula with mlx-lm's own layer and no cache."""
        w = {name.removesuffix(".weight"): tensor for name, tensor in self.head.items()}
        names = ("enorm", "hnorm") if self.family == "llama" else ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
        e, h = (mx.fast.rms_norm(x, w[n], 1e-6) for x, n in zip((embedding, hidden), names, strict=True))
        layer = self.layer()
        prefix = "layers.0."
        layer.load_weights([(k.removeprefix(prefix), v) for k, v in self.head.items() if k.startswith(prefix)])
        x = layer(mx.concatenate([e, h], axis=-1) @ w["fc"].T, "causal", None)
        return mx.fast.rms_norm(x, w["norm"], 1e-6)


@cache
def make(family: str, **changes: int) -> Tiny:
    """The random model of a family, always the same; `changes` are to the sizes in its config.

    The layers add little to the embeddings, and the head's `fc` lets the embedding through, so that the head foresees
    some of what the trunk says and a wrong norm shows in its acceptance.
    """
    config = {"model_type": family} | json.loads(json.dumps(CONFIGS[family])) | changes
    module = {"qwen3_5": qwen3_5, "qwen3_5_moe": qwen3_5_moe, "qwen3_next": qwen3_next, "llama": llama}[family]

    def empty() -> nn.Module:
        model = module.Model(module.ModelArgs.from_dict(config))
        return getattr(model, "language_model", model)

    model = empty()
    args = model.args

    def layer() -> nn.Module:
        if family == "llama":
            return llama.TransformerBlock(args)
        kind = qwen3_next.Qwen3NextDecoderLayer if family == "qwen3_next" else qwen3_5.DecoderLayer
        return kind(args, 3)

    rng = np.random.default_rng(0)
    hidden = config["hidden_size"]
    shapes = {name: x.shape for name, x in tree_flatten(model.parameters())}
    trunk = {name: _random(rng, name, shape, 0.2) for name, shape in sorted(shapes.items())}
    shapes = {f"layers.0.{name}": x.shape for name, x in tree_flatten(layer().parameters())}
    inputs = ("enorm", "hnorm") if family == "llama" else ("pre_fc_norm_embedding", "pre_fc_norm_hidden")
    shapes |= {f"{name}.weight": (hidden,) for name in (*inputs, "norm")} | {"fc.weight": (hidden, 2 * hidden)}
    head = {name: _random(rng, name, shape, 0.005) for name, shape in sorted(shapes.items())}
    foresight = mx.concatenate([mx.diag(1 / head[f"{inputs[0]}.weight"]), mx.zeros((hidden, hidden))], axis=1)
    head["fc.weight"] = 0.1 * head["fc.weight"] + foresight
    head["norm.weight"] = trunk["model.norm.weight"]
    return Tiny(family, config, trunk, head, empty, layer)


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], outputs: float) -> mx.array:
    """Values of the size that trained weights have; what layers add to the stream is scaled by `outputs`."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return mx.array(rng.uniform(1.5, 2.0, shape), dtype=mx.float32)
    if "norm" in name:
        return mx.array(rng.uniform(0.4, 1.6, shape), dtype=mx.float32)
    if name.endswith(("A_log", "dt_bias")):
        return mx.array(rng.uniform(-3.0, 0.0, shape), dtype=mx.float32)
    fan_in = 4 if "conv1d" in name else 1 if "embed_tokens" in name else shape[-1]
    scale = 4.0 if "lm_head" in name else outputs if name.endswith(OUTPUTS) else 1.0
    return mx.array(scale * rng.normal(size=shape) / math.sqrt(fan_in), dtype=mx.float32)


def opened(folder: Path, mode: Mode = "mtp") -> LoadedModel:
    """A folder as the engine loads it."""
    return load(EngineConfig(model=str(folder), mode=mode))


def save(
    folder: Path,
    tiny: Tiny,
    *,
    trunk: Norms = "absolute",
    head: Norms = "absolute",
    absolute: tuple[str, ...] = (),
    prefix: str = "mtp.",
    place: str | None = "shards",
    wrapped: bool = False,
    bits: int | None = None,
) -> Path:
    """Write a model as a checkpoint folder.

    Args:
        trunk, head: how their norm gains are stored; `absolute` names head norms that are gains all the same. What is
            stored as delta is written as published: convolutions not transposed, experts apart.
        prefix: of the head's tensor names.
        place: "shards", a file's name, or None to leave the head out.
        wrapped: as published with a vision tower.
        bits: quantise trunk and head, in groups of 32, and `fc` to 8 bits.
    """
    folder.mkdir(parents=True)
    config = dict(tiny.config)
    qwen = tiny.family != "llama"
    body, extra = dict(tiny.trunk), dict(tiny.head)
    if qwen and trunk == "delta":
        body = {k: v - 1 if k.endswith(SHIFTED) else v for k, v in body.items()}
    if qwen and head == "delta":
        extra = {k: v - 1 if "norm" in k and k not in absolute else v for k, v in extra.items()}
    if bits is not None:
        body, extra = quantised(body, bits), quantised(extra, bits)
        config["quantization"] = {"group_size": 32, "bits": bits, f"{prefix}fc": {"group_size": 32, "bits": 8}}
    if qwen and trunk == "delta":
        body = {k: v.moveaxis(2, 1) if "conv1d" in k else v for k, v in body.items()}
        body = _experts_apart(tiny.family, body)
    elif tiny.family.startswith("qwen3_5"):
        body = {f"language_model.{k}": v for k, v in body.items()}
    if qwen and head == "delta":
        extra = _experts_apart(tiny.family, extra)
    if wrapped:
        body = {k.replace("model.", "model.language_model.", 1): v for k, v in body.items()}
        body["model.visual.patch_embed.proj.weight"] = mx.zeros((2, 2))
        config = {"model_type": tiny.family, "text_config": config, "vision_config": {}}
    extra = {prefix + k: v for k, v in extra.items()} if place is not None else {}
    if place == "shards":
        _save_shards(folder, body | extra)
    else:
        _save_shards(folder, body)
        if place is not None:
            (folder / place).parent.mkdir(exist_ok=True)
            mx.save_safetensors(str(folder / place), extra)
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(folder)
    return folder


def quantised(weights: Weights, bits: int) -> Weights:
    """All matrices of the modules that mlx-lm quantises, packed."""
    packed: Weights = {}
    for name, value in weights.items():
        if value.ndim < 2 or "conv1d" in name or value.shape[-1] % 32:
            packed[name] = value
            continue
        module = name.removesuffix(".weight")
        parts = mx.quantize(value, group_size=32, bits=8 if module == "fc" else bits)
        packed |= {f"{module}.{part}": x for part, x in zip(("weight", "scales", "biases"), parts, strict=True)}
    return packed


def dequantised(weights: Weights, bits: int) -> Weights:
    """What `quantised` weights stand for."""
    packed, plain = quantised(weights, bits), {}
    for name in weights:
        module = name.removesuffix(".weight")
        if f"{module}.scales" in packed:
            parts = (packed[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
            plain[name] = mx.dequantize(*parts, group_size=32, bits=8 if module == "fc" else bits)
        else:
            plain[name] = packed[name]
    return plain


def _experts_apart(family: str, weights: Weights) -> Weights:
    """Stacked experts as the family publishes them: numbered (qwen3_next) or gate and up fused (qwen3_5_moe)."""
    apart = {name: value for name, value in weights.items() if ".switch_mlp." not in name}
    for mlp in sorted({name.partition(".switch_mlp.")[0] for name in weights if ".switch_mlp." in name}):
        gate, up, down = (weights[f"{mlp}.switch_mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
        if family == "qwen3_5_moe":
            apart[f"{mlp}.experts.gate_up_proj"] = mx.concatenate([gate, up], axis=-2)
            apart[f"{mlp}.experts.down_proj"] = down
            continue
        for number in range(gate.shape[0]):
            for part, value in (("gate", gate), ("up", up), ("down", down)):
                apart[f"{mlp}.experts.{number}.{part}_proj.weight"] = value[number]
    return apart


def _save_shards(folder: Path, weights: Weights) -> None:
    """Two files and their index; neighbours in the alphabet, a head's tensors among them, land in different files."""
    names = sorted(weights)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, held in shards.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in held}, metadata={"format": "mlx"})
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save_tokenizer(folder: Path) -> None:
    """One token a byte, three special ones, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
