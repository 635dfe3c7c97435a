"""How cached values share scales where they are packed. No mlx: what a row will take is counted before there is one."""

GROUPS = (64, 32)  # values that share a scale and a bias: the first that divides a head


def group_of(width: int) -> int | None:
    """Values in a group, for attention heads of `width` values; None where no size divides it."""
    return next((group for group in GROUPS if width % group == 0), None)


def bits_a_value(bits: int, native_bits: int = 16, group: int = GROUPS[0]) -> float:
    """What a packed value takes with its share of its group's scale and bias, which keep the model's own type."""
    return bits + 2 * native_bits / group
