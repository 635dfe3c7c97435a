"""In which convention a head's norm gains are stored, and the probe that settles it.

Qwen checkpoints store most norm weights as gain - 1 ("delta"); MLX wants the gain itself ("absolute"), and
conversions exist in which only some of the head's groups were shifted. A wrong group never crashes: it only costs
acceptance. So the weights' own statistics make a first guess, and acceptance by the trunk decides.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from itertools import product

import mlx.core as mx

GROUPS: dict[str, tuple[str, ...]] = {
    "layer": (
        "mtp.layers.0.input_layernorm.weight",
        "mtp.layers.0.post_attention_layernorm.weight",
        "mtp.layers.0.self_attn.q_norm.weight",
        "mtp.layers.0.self_attn.k_norm.weight",
    ),
    "input": ("mtp.enorm.weight", "mtp.hnorm.weight"),
    "final": ("mtp.norm.weight",),
}
DECISIVE = ("mtp.layers.0.self_attn.q_norm.weight", "mtp.layers.0.self_attn.k_norm.weight")
DELTA_BELOW = 1.25  # q and k gains: 0.5 to 0.75 stored as delta, 1.5 and up as absolute, in every checkpoint seen
MARGIN = 0.005  # share of drafts accepted that a departure from the guess must win, for each group


@dataclass(frozen=True, slots=True)
class Shifts:
    """Which groups need 1 added to their stored weights."""

    layer: bool
    input: bool
    final: bool


def guess(weights: dict[str, mx.array]) -> Shifts:
    """From the means of the q and k norms, which tell the conventions apart; the other groups follow."""
    known = [weights[name] for name in DECISIVE if name in weights]
    delta = bool(known) and all(float(w.astype(mx.float32).mean()) < DELTA_BELOW for w in known)
    return Shifts(delta, delta, delta)


def shifted(weights: dict[str, mx.array], shifts: Shifts) -> dict[str, mx.array]:
    """The norm weights among `weights` as gains, in the type that they are stored in."""
    gains = {}
    for group, names in GROUPS.items():
        add = 1.0 if getattr(shifts, group) else 0.0
        for name in names:
            if name in weights:
                gains[name] = (weights[name].astype(mx.float32) + add).astype(weights[name].dtype)
    return gains


def choose(first: Shifts, acceptance: Callable[[Shifts], float]) -> tuple[Shifts, float]:
    """The choice with the best acceptance, and that figure; each group in which it is not `first` must earn MARGIN."""
    others = [shifts for flags in product((True, False), repeat=3) if (shifts := Shifts(*flags)) != first]
    scores = {shifts: acceptance(shifts) for shifts in (first, *others)}

    def worth(shifts: Shifts) -> float:
        changed: int = sum(a != b for a, b in zip(astuple(shifts), astuple(first), strict=True))
        return scores[shifts] - MARGIN * changed

    best = max(scores, key=worth)
    return best, scores[best]
