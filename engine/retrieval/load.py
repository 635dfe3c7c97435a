"""From a card to its encoder on the engine's thread, without its weights first and then part by part."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from mlx_lm.utils import dequantize_model, load_model

from engine.device import is_cpu
from engine.errors import ModelBrokenError
from engine.retrieval.bert import Bert, BertArgs
from engine.retrieval.card import Card
from engine.retrieval.qwen3 import Qwen3

log = logging.getLogger(__name__)

PART = 64 << 20  # bytes of weights that one job reads
BLOCK = 256
"""Tokens of an input that a layer works on at once. It bounds the scores of attention, which grow with the input."""


class Layer(Protocol):
    """A layer in two parts, so that a long input can be read block by block: all keys first, then what sees them."""

    def project(self, hidden: mx.array, start: int) -> tuple[mx.array, mx.array]: ...

    def attend(self, hidden: mx.array, keys: mx.array, values: mx.array, start: int, mask: Any) -> mx.array: ...


class Encoder(Protocol):
    """A trunk, and what makes a score of its hiddens where the checkpoint has that."""

    layers: list[Layer]

    def embed(self, ids: mx.array, types: mx.array) -> mx.array: ...

    def mask(self, lengths: Sequence[int]) -> mx.array | None: ...

    def finish(self, hidden: mx.array) -> mx.array: ...

    def scores(self, hidden: mx.array, lengths: Sequence[int], answers: Sequence[int]) -> mx.array: ...


def begin(card: Card) -> tuple[Encoder, list[list[mx.array]], int]:
    """The encoder of a checkpoint, none of whose weights is read yet.

    Returns:
        The encoder; its weights in parts, each to be evaluated; the bytes that they and its work will take.
    Raises:
        ModelBrokenError: the weights do not fit config.json.
    """
    classes = (Qwen3, qwen3.ModelArgs) if card.family == "qwen3" else (Bert, BertArgs)
    try:
        model, _ = load_model(card.path, lazy=True, get_model_classes=lambda config: classes)
    except Exception as error:  # mlx-lm's classes raise whatever odd values in a config make them raise
        log.error("%s could not be loaded", card.path, exc_info=error)  # clients are told no paths
        raise ModelBrokenError(
            f"{card.name} could not be loaded: its weights and its config.json do not fit together. The log has more; "
            "fetch the model again."
        ) from error
    if is_cpu():  # where quantised and 16-bit products are slow
        model.set_dtype(mx.float32)
        dequantize_model(model)
        model.set_dtype(mx.float32)
    weights = [array for _, array in tree_flatten(model.parameters())]
    return model, list(_parts(weights)), sum(array.nbytes for array in weights) + _work(card)


def _work(card: Card) -> int:
    """Bytes that the longest input computes with: hiddens, keys and values of one layer, and a block's scores."""
    config = card.config
    heads, width = int(config["num_attention_heads"]), int(config["hidden_size"])
    tokens = 6 * card.window * width  # hiddens before and after a layer, keys and values, and a copy of each pair
    scores = 2 * heads * BLOCK * card.window
    return 4 * (tokens + scores + 3 * BLOCK * int(config["intermediate_size"]))


def _parts(weights: Sequence[mx.array]) -> Iterator[list[mx.array]]:
    part: list[mx.array] = []
    for array in weights:
        part.append(array)
        if sum(each.nbytes for each in part) >= PART:
            yield part
            part = []
    if part:
        yield part
