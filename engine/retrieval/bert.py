"""BERT and RoBERTa encoders (Devlin et al. 2018, arXiv 1810.04805; Liu et al. 2019, arXiv 1907.11692)."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import BaseModelArgs

from engine.device import is_cpu
from engine.retrieval import on_cpu

ACTIVATIONS = {
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
}
_NAMES = (
    ("embeddings.word_embeddings.", "words."),
    ("embeddings.position_embeddings.", "positions."),
    ("embeddings.token_type_embeddings.", "types."),
    ("embeddings.LayerNorm.", "norm."),
    ("encoder.layer.", "layers."),
    (".attention.self.", "."),
    (".attention.output.dense.", ".out."),
    (".attention.output.LayerNorm.", ".out_norm."),
    (".intermediate.dense.", ".up."),
    (".output.dense.", ".down."),
    (".output.LayerNorm.", ".norm."),
    ("pooler.dense.", "pooler."),
    ("classifier.dense.", "pooler."),  # RoBERTa's classifier has what BERT calls the pooler
    ("classifier.out_proj.", "classifier."),
    (".gamma", ".weight"),  # names from before 2019
    (".beta", ".bias"),
)
"""Parts of a tensor's name in checkpoints, and here."""


@dataclass
class BertArgs(BaseModelArgs):  # type: ignore[misc]  # mlx-lm has no types
    """What an encoder's config.json says of its shapes."""

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    pad_token_id: int = 1


class Layer(nn.Module):  # type: ignore[misc]  # mlx.nn has no types
    """One encoder layer, norms behind the sums."""

    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        size = args.hidden_size
        self.heads = args.num_attention_heads
        self.scale = (size // args.num_attention_heads) ** -0.5
        self.on_cpu = is_cpu()
        self.activation = on_cpu.gelu if self.on_cpu and args.hidden_act == "gelu" else ACTIVATIONS[args.hidden_act]
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.up = nn.Linear(size, args.intermediate_size)
        self.down = nn.Linear(args.intermediate_size, size)
        self.out_norm = nn.LayerNorm(size, eps=args.layer_norm_eps)
        self.norm = nn.LayerNorm(size, eps=args.layer_norm_eps)

    def project(self, hidden: mx.array, start: int) -> tuple[mx.array, mx.array]:
        """Keys and values of a block of tokens: [B, t, H] -> [B, heads, t, d] twice."""
        return self._split(self.key(hidden)), self._split(self.value(hidden))

    def attend(self, hidden: mx.array, keys: mx.array, values: mx.array, start: int, mask: mx.array | None) -> mx.array:
        """The layer's output for a block of tokens that sees all keys but the masked ones: [B, t, H]."""
        queries = self._split(self.query(hidden))
        if self.on_cpu:
            seen = on_cpu.attention(queries, keys, values, self.scale, mask)
        else:
            seen = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=self.scale, mask=mask)
        hidden = self.out_norm(hidden + self.out(seen.swapaxes(1, 2).reshape(hidden.shape)))
        output: mx.array = self.norm(hidden + self.down(self.activation(self.up(hidden))))
        return output

    def _split(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], self.heads, -1).swapaxes(1, 2)


class Bert(nn.Module):  # type: ignore[misc]
    """The encoder; `pooler` and `classifier` are there where the checkpoint has a classifier."""

    def __init__(self, args: BertArgs) -> None:
        super().__init__()
        size = args.hidden_size
        self.first_position = 0 if args.model_type == "bert" else args.pad_token_id + 1
        self.words = nn.Embedding(args.vocab_size, size)
        self.positions = nn.Embedding(args.max_position_embeddings, size)
        self.types = nn.Embedding(args.type_vocab_size, size)
        self.norm = nn.LayerNorm(size, eps=args.layer_norm_eps)
        self.layers = [Layer(args) for _ in range(args.num_hidden_layers)]
        self.pooler = nn.Linear(size, size)
        self.classifier = nn.Linear(size, 1)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The tensors that this class runs, by its own names; heads for other tasks are left out."""
        kept = {_name(name): value for name, value in weights.items()}
        if "classifier.weight" not in kept:
            del self.pooler, self.classifier
        wanted = tuple(f"{name}." for name in self.children())
        return {name: value for name, value in kept.items() if name.startswith(wanted)}

    def embed(self, ids: mx.array, types: mx.array) -> mx.array:
        """[B, T] token ids and the text that each belongs to, 0 or 1 -> [B, T, H]."""
        positions = self.positions(mx.arange(self.first_position, self.first_position + ids.shape[1]))
        if self.types.weight.shape[0] == 1:
            types = mx.zeros_like(types)
        hidden: mx.array = self.norm(self.words(ids) + self.types(types) + positions)
        return hidden

    def mask(self, lengths: Sequence[int]) -> mx.array | None:
        """True where a key is no padding, [B, 1, 1, T]; None where there is no padding."""
        if min(lengths) == max(lengths):
            return None
        return (mx.arange(max(lengths)) < mx.array(list(lengths))[:, None])[:, None, None]

    def finish(self, hidden: mx.array) -> mx.array:
        return hidden

    def scores(self, hidden: mx.array, lengths: Sequence[int], answers: Sequence[int]) -> mx.array:
        """[B, T, H] of queries with documents -> [B] logits of the only label."""
        logits: mx.array = self.classifier(mx.tanh(self.pooler(hidden[:, 0])))
        return logits[:, 0]


def _name(name: str) -> str:
    name = name.removeprefix("bert.").removeprefix("roberta.")
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    return name
