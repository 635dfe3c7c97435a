"""A checkpoint's tensors, split into the trunk's and the head's, under the names that our modules use."""

from pathlib import Path

import mlx.core as mx

from engine.models.contract import Contract
from engine.models.headers import sidecar_files


def split(weights: dict[str, mx.array], contract: Contract) -> tuple[dict[str, mx.array], dict[str, mx.array]]:
    """(trunk, head); the head's names start with `mtp.` and its input norms are called enorm and hnorm."""
    trunk: dict[str, mx.array] = {}
    head: dict[str, mx.array] = {}
    renamed = {contract.embed_norm: "enorm", contract.hidden_norm: "hnorm"}
    for name, tensor in weights.items():
        prefix = next((p for p in contract.prefixes if name.startswith(p)), None)
        if prefix is None:
            trunk[name] = tensor
            continue
        first, _, rest = name.removeprefix(prefix).partition(".")
        head[f"mtp.{renamed.get(first, first)}.{rest}"] = tensor
    return trunk, _stack_experts(head)


def sidecar(path: Path) -> dict[str, mx.array]:
    """Tensors of a head file that mlx-lm's glob has not read, named as under `mtp.`."""
    for file in sidecar_files(path):
        tensors = mx.load(str(file))
        assert isinstance(tensors, dict)
        return {k if "mtp." in k else f"mtp.{k}": v for k, v in tensors.items()}
    return {}


def _stack_experts(head: dict[str, mx.array]) -> dict[str, mx.array]:
    """Fused (qwen3_5_moe) or numbered (qwen3_next) experts to mlx-lm's `switch_mlp`."""
    mlp = "mtp.layers.0.mlp"
    fused = head.pop(f"{mlp}.experts.gate_up_proj", None)
    if fused is not None:
        middle = fused.shape[-2] // 2
        head[f"{mlp}.switch_mlp.gate_proj.weight"] = fused[..., :middle, :]
        head[f"{mlp}.switch_mlp.up_proj.weight"] = fused[..., middle:, :]
        head[f"{mlp}.switch_mlp.down_proj.weight"] = head.pop(f"{mlp}.experts.down_proj")
    for part in ("gate_proj", "up_proj", "down_proj"):
        for kind in ("weight", "scales", "biases"):
            numbered: list[mx.array] = []
            while (tensor := head.pop(f"{mlp}.experts.{len(numbered)}.{part}.{kind}", None)) is not None:
                numbered.append(tensor)
            if numbered:
                head[f"{mlp}.switch_mlp.{part}.{kind}"] = mx.stack(numbered)
    return head


def is_original_layout(trunk: dict[str, mx.array]) -> bool:
    """True for a Qwen checkpoint as published (its convolutions not yet transposed): all norms stored as delta."""
    return any("conv1d.weight" in name and tensor.shape[-1] != 1 for name, tensor in trunk.items())
