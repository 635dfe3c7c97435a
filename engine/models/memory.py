"""What a conversation costs in memory beside the weights, from a model's config. No mlx."""

from collections.abc import Mapping
from typing import Any

from engine.models.contract import Contract

_VALUE_BYTES = 2
_STATE_BYTES = 4  # the recurrent state is float32 everywhere


def context_bytes(
    text_config: Mapping[str, Any], contract: Contract | None, *, with_head: bool
) -> tuple[int | None, int | None]:
    """(cache bytes a token, bytes of the recurrent state a row), at 16 bits a cached value; None is unknown."""
    if contract is None:
        return None, None
    try:
        return _kv(text_config, contract, with_head), _recurrent(text_config)
    except (KeyError, TypeError, ZeroDivisionError):
        return None, None  # the config lacks the sizes, and a guess would be worse than none


def _kv(config: Mapping[str, Any], contract: Contract, with_head: bool) -> int:
    attention = config["num_hidden_layers"] - _recurrent_layers(config)
    head = (config.get(contract.depth_key) or 1) if with_head else 0
    kv_heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(2 * (attention + head) * kv_heads * width * _VALUE_BYTES)


def _recurrent(config: Mapping[str, Any]) -> int:
    layers = _recurrent_layers(config)
    if not layers:
        return 0
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    state = config["linear_num_value_heads"] * config["linear_key_head_dim"] * config["linear_value_head_dim"]
    window = (config["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
    return int(layers * (state * _STATE_BYTES + window * _VALUE_BYTES))


def _recurrent_layers(config: Mapping[str, Any]) -> int:
    """Gated-delta layers: all but each `full_attention_interval`-th, in the families that have them."""
    if "linear_num_value_heads" not in config:
        return 0
    layers: int = config["num_hidden_layers"]
    return layers - layers // int(config.get("full_attention_interval", 4))
