"""How many slots a KV cache is given. No mlx: the memory plan counts with it before there is a cache."""

SMALLEST = 256
DOUBLED = 1 << 14
"""Slots up to which a capacity doubles. Further ones are a quarter of a power of two apart: 200,000 tokens get 229,376
slots instead of 262,144, and the last growth copies 196,608 of them, a thousandth of what reading them costs."""


def capacity(slots: int) -> int:
    """Slots for `slots` tokens, at least SMALLEST: few different ones, and a cache that grows is copied rarely."""
    held = SMALLEST
    while held < slots:
        held += held if held < DOUBLED else (1 << (held.bit_length() - 1)) // 4
    return held
