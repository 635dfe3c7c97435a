"""A trunk and a head, built by hand, that agree at every token exactly where the contract between them is kept.

The trunk's rule: the token after t_i is t_i + t_(i-2) mod 251. A token is the phases of a few waves, so that adding
tokens is multiplying phases, which SwiGLU does exactly: silu(x) y + silu(-x) (-y) = x y. The head computes the same
rule for the token after next from three places, so that it fails where any of them is wrong:

- t_(i+1) from the embedding that it is given;
- t_(i-1) from its own KV cache, where the row before left what it read from its hidden;
- nothing, from a checksum over its own hidden: two copies of t_i whose difference is 0 only if the trunk's final norm
  has multiplied them by the gains that the head expects.

Its output after its norm is what the trunk's would be one position later, so recycled hiddens are exact as well.
"""

import json
from pathlib import Path
from typing import Literal

import mlx.core as mx
import numpy as np
from tiny_models import VOCAB, save_tokenizer

MODULUS = 251
WAVES = 8
CODE = 2 * WAVES
A, A2, B, SUM, SEEN = (slice(i * CODE, (i + 1) * CODE) for i in range(5))
"""Channels: the token and its copy, the token two before, the rule's answer, and (in the head) the hidden's token."""
ONE = 5 * CODE  # a channel that is always 1
HIDDEN = 96
HEAD_DIM = 32
MIDDLE = 8 * WAVES
ROPE_THETA = 1e6
ROTATIONS = 4  # the fastest ones: their cosines' mean is 1 at the position that is looked for, and below 0.86 elsewhere
LEVEL = 0.93  # taken off by the slowest, so that an empty slot (0) beats every position but the right one
SHARPNESS = 125.0
CHECKSUM = 50.0

Mistake = Literal["none", "concat", "same_position"]


def rule(tokens: list[int], count: int) -> list[int]:
    """`tokens` and what follows them by the trunk's rule."""
    tokens = list(tokens)
    for _ in range(count):
        tokens.append((tokens[-1] + tokens[-3]) % MODULUS)
    return tokens


def save_lookup(folder: Path, mistake: Mistake = "none") -> Path:
    """Write the model as a llama checkpoint.

    Args:
        mistake: makes a head for another contract than the engine's: its two inputs the other way round (concat), or
            its hidden from the position of its token instead of the one before (same_position).
    """
    folder.mkdir()
    rng = np.random.default_rng(0)
    final_gain, input_gain = (_signs(rng) for _ in range(2))
    codes = _codes(rng)
    embedding = np.zeros((VOCAB, HIDDEN))
    embedding[:MODULUS, A] = embedding[:MODULUS, A2] = codes
    embedding[:, ONE] = 1.0
    lm_head = np.zeros((VOCAB, HIDDEN))
    lm_head[:MODULUS, SUM] = 20.0 * codes / final_gain[SUM]
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": final_gain,
        "lm_head.weight": lm_head,
        **_layer("model.layers.0.", back=2, source=A),
        "mtp.enorm.weight": np.ones(HIDDEN),
        "mtp.hnorm.weight": input_gain,
        "mtp.fc.weight": _projection(final_gain * input_gain, mistake),
        **_layer("mtp.layers.0.", back=1, source=SEEN),
        "mtp.norm.weight": final_gain,
    }
    tensors = {name: mx.array(value.astype(np.float32)) for name, value in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors)
    config = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MIDDLE,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "vocab_size": VOCAB,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(folder)
    return folder


def _signs(rng: np.random.Generator) -> np.ndarray:
    """Gains that differ in size and sign from channel to channel, so that leaving them out destroys what they scale."""
    return rng.choice([-1.0, 1.0], size=HIDDEN) * rng.uniform(0.5, 2.0, size=HIDDEN)


def _codes(rng: np.random.Generator) -> np.ndarray:
    """[MODULUS, CODE]: cosines, then sines."""
    frequencies = rng.choice(np.arange(1, MODULUS // 2), size=WAVES, replace=False)
    phases = 2 * np.pi * np.outer(np.arange(MODULUS), frequencies) / MODULUS
    return np.concatenate([np.cos(phases), np.sin(phases)], axis=1)


def _layer(prefix: str, back: int, source: slice) -> dict[str, np.ndarray]:
    """Attention that adds `source` of the row `back` positions before to B, then an MLP that adds A * B to SUM."""
    query, key, value, out = (np.zeros((HEAD_DIM, HIDDEN)) for _ in range(4))
    half = HEAD_DIM // 2
    angles = back * ROPE_THETA ** (-np.arange(ROTATIONS) / half)
    key[:half, ONE] = 1.0
    query[:ROTATIONS, ONE] = SHARPNESS * np.cos(angles)
    query[half : half + ROTATIONS, ONE] = -SHARPNESS * np.sin(angles)
    query[half - 1, ONE] = -SHARPNESS * ROTATIONS * LEVEL
    value[:CODE, source] = out[:CODE, B] = np.eye(CODE)
    # The norms in front divide by the row's root mean square, so both products come out as a constant times the code.
    gate, up, down = np.zeros((MIDDLE, HIDDEN)), np.zeros((MIDDLE, HIDDEN)), np.zeros((HIDDEN, MIDDLE))
    for wave in range(WAVES):
        cos, sin = wave, WAVES + wave
        for place, (x, y, result, sign) in enumerate(
            [(cos, cos, cos, 1), (sin, sin, cos, -1), (cos, sin, sin, 1), (sin, cos, sin, 1)]
        ):
            for unit, side in ((8 * wave + 2 * place, 1), (8 * wave + 2 * place + 1, -1)):
                gate[unit, A.start + x] = up[unit, B.start + y] = side
                down[SUM.start + result, unit] = sign
    return {
        f"{prefix}input_layernorm.weight": np.ones(HIDDEN),
        f"{prefix}post_attention_layernorm.weight": np.ones(HIDDEN),
        f"{prefix}self_attn.q_proj.weight": query,
        f"{prefix}self_attn.k_proj.weight": key,
        f"{prefix}self_attn.v_proj.weight": value,
        f"{prefix}self_attn.o_proj.weight": out.T,
        f"{prefix}mlp.gate_proj.weight": gate,
        f"{prefix}mlp.up_proj.weight": up,
        f"{prefix}mlp.down_proj.weight": down,
    }


def _projection(hidden_gain: np.ndarray, mistake: Mistake) -> np.ndarray:
    """[HIDDEN, 2 HIDDEN]: from (embedding, hidden) to the head's channels."""
    from_embedding, from_hidden = np.zeros((HIDDEN, HIDDEN)), np.zeros((HIDDEN, HIDDEN))
    from_embedding[A, A] = from_embedding[A2, A] = np.eye(CODE)
    from_embedding[ONE, ONE] = 1.0
    if mistake == "same_position":
        from_hidden[B, B] = np.diag(1 / hidden_gain[B])
    else:
        from_hidden[SEEN, A] = np.diag(1 / hidden_gain[A])
        from_hidden[B, A] = CHECKSUM * np.diag(1 / hidden_gain[A])
        from_hidden[B, A2] = -CHECKSUM * np.diag(1 / hidden_gain[A2])
    halves = [from_embedding, from_hidden]
    return np.concatenate(halves[::-1] if mistake == "concat" else halves, axis=1)
