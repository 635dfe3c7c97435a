"""Shapes of models that are measured with random weights, where no checkpoint of that size is here. Data."""

from dataclasses import dataclass
from typing import Any

from engine.errors import BadRequestError

DEMO_VOCABULARY = 6144  # of the bundled tokenizer, which every random model gets
QWEN_VOCABULARY = 248_320


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3.5 hybrid: three gated-delta layers to one of full attention, and a head of one layer.

    Attributes:
        hidden, inner: widths of the stream and of the MLP. heads, kv_heads, head_dim: of full attention.
        key_heads, value_heads, linear_dim: of the gated-delta layers.
        vocabulary: at least that of the bundled tokenizer.
        bits: of quantised weights in groups of 64; None is bfloat16.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    linear_dim: int
    vocabulary: int = QWEN_VOCABULARY
    context: int = 262_144
    tied: bool = False
    bits: int | None = None

    def config(self) -> dict[str, Any]:
        """The checkpoint's config.json."""
        quantization = {} if self.bits is None else {"quantization": {"group_size": 64, "bits": self.bits}}
        return {
            "model_type": "qwen3_5",
            "architectures": ["Qwen3_5ForCausalLM"],
            "dtype": "bfloat16",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "full_attention_interval": 4,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.linear_dim,
            "linear_value_head_dim": self.linear_dim,
            "linear_conv_kernel_dim": 4,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": self.context,
            "rope_parameters": {
                "type": "default",
                "rope_theta": 10_000_000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [11, 11, 10],
            },
            "tie_word_embeddings": self.tied,
            "mtp_num_hidden_layers": 1,
        } | quantization


SHAPES: dict[str, Shape] = {
    "tiny-24": Shape(24, 256, 512, 4, 2, 64, 4, 4, 64, vocabulary=DEMO_VOCABULARY, tied=True),
    "0.8b": Shape(24, 1024, 3584, 8, 2, 256, 16, 16, 128, tied=True),
    "0.8b-4bit": Shape(24, 1024, 3584, 8, 2, 256, 16, 16, 128, tied=True, bits=4),
    "9b": Shape(32, 4096, 12288, 16, 4, 256, 16, 32, 128),
    "9b-4bit": Shape(32, 4096, 12288, 16, 4, 256, 16, 32, 128, bits=4),
}


def shape(name: str) -> Shape:
    """Raises BadRequestError where there is none of that name, with those that there are."""
    if name not in SHAPES:
        raise BadRequestError(f"There is no random model {name!r}; there are: {', '.join(SHAPES)}.", "random")
    return SHAPES[name]
