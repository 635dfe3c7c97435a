"""What a conversation costs in memory beside the weights, from a model's config. No mlx."""

from collections.abc import Mapping
from typing import Any

from engine.caches.groups import bits_a_value, group_of
from engine.models.contract import Contract

_STATE_BYTES = 4  # the recurrent state is float32 everywhere


def context_bytes(
    text_config: Mapping[str, Any],
    contract: Contract | None,
    *,
    with_head: bool,
    kv_bits: int | None = None,
    native_bits: int = 16,
) -> tuple[int | None, int | None]:
    """(cache bytes a token, bytes of the recurrent state a row); None is unknown.

    Args:
        kv_bits: bits of the trunk's cached keys and values; None keeps the model's own type, as the head always does.
        native_bits: of that type: 16 on a GPU, 32 on a CPU.
    """
    if contract is None:
        return None, None
    try:
        layers, head = text_config["num_hidden_layers"] - _recurrent_layers(text_config), 0
        if with_head:
            head = text_config.get(contract.depth_key) or 1
        bits: float = native_bits
        if kv_bits is not None:
            group = group_of(_width(text_config))
            if group is None:
                return None, None  # they can not be packed
            bits = bits_a_value(kv_bits, native_bits, group)
        kv = _values(text_config) * (layers * bits + head * native_bits) / 8
        return int(kv), _recurrent(text_config, native_bits // 8)
    except (KeyError, TypeError, ZeroDivisionError):
        return None, None  # the config lacks the sizes, and a guess would be worse than none


def _values(config: Mapping[str, Any]) -> int:
    """Keys and values of a token in one layer."""
    return int(2 * (config.get("num_key_value_heads") or config["num_attention_heads"]) * _width(config))


def _width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _recurrent(config: Mapping[str, Any], value_bytes: int) -> int:
    layers = _recurrent_layers(config)
    if not layers:
        return 0
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    state = config["linear_num_value_heads"] * config["linear_key_head_dim"] * config["linear_value_head_dim"]
    window = (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return int(layers * (state * _STATE_BYTES + window * value_bytes))


def _recurrent_layers(config: Mapping[str, Any]) -> int:
    """Gated-delta layers: all but each `full_attention_interval`-th, in the families that have them."""
    if "linear_num_value_heads" not in config:
        return 0
    layers: int = config["num_hidden_layers"]
    return layers - layers // int(config.get("full_attention_interval", 4))
