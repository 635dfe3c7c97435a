"""What differs between the MTP heads of different model families, as data."""

from dataclasses import dataclass
from typing import Literal

Concat = Literal["embedding_first", "hidden_first"]


@dataclass(frozen=True, slots=True)
class Contract:
    """Where a family keeps its head and how the head's input is made.

    The head's row for position i reads (hidden of position i, embedding of token i + 1) and predicts token i + 2:
    `norm(layer(fc(concat(embed_norm(e), hidden_norm(h)))))`, then the trunk's lm_head. The hidden is the trunk's
    after its final norm, and a recycled hidden is the head's own after `norm`.

    Attributes:
        family: `model_type` of the checkpoint's config.
        prefixes: where the head's tensors may lie; the first match wins and is replaced by `mtp.`.
        embed_norm, hidden_norm: tensor names of the two input norms under the prefix.
        concat: order of the two halves in front of `fc`.
        zero_centred: the family's original checkpoints store norm gains as w - 1.
        depth_key: config key with the number of head layers.
    """

    family: str
    prefixes: tuple[str, ...]
    embed_norm: str
    hidden_norm: str
    concat: Concat
    zero_centred: bool
    depth_key: str


_QWEN_PREFIXES = ("language_model.model.mtp.", "language_model.mtp.", "model.mtp.", "mtp.")


def _qwen(family: str, depth_key: str) -> Contract:
    return Contract(
        family=family,
        prefixes=_QWEN_PREFIXES,
        embed_norm="pre_fc_norm_embedding",
        hidden_norm="pre_fc_norm_hidden",
        concat="embedding_first",
        zero_centred=True,
        depth_key=depth_key,
    )


CONTRACTS: dict[str, Contract] = {
    contract.family: contract
    for contract in (
        _qwen("qwen3_5", "mtp_num_hidden_layers"),
        _qwen("qwen3_5_moe", "mtp_num_hidden_layers"),
        _qwen("qwen3_next", "num_nextn_predict_layers"),
        Contract(
            family="llama",
            prefixes=("model.mtp.", "mtp."),
            embed_norm="enorm",
            hidden_norm="hnorm",
            concat="embedding_first",
            zero_centred=False,
            depth_key="num_nextn_predict_layers",
        ),
    )
}
