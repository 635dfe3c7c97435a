"""Figures as short text. Unknown is `n/a`, never 0."""


def count(value: int) -> str:
    """A count in at most five characters: 214, 3.1k, 128k, 1.2M."""
    if value < 1000:
        return str(value)
    for unit, size in (("k", 1000), ("M", 1_000_000)):
        scaled = value / size
        if scaled < 9.95:
            return f"{scaled:.1f}{unit}"
        if scaled < 999.5 or unit == "M":
            return f"{scaled:.0f}{unit}"
    raise AssertionError("unreachable")


def rate(value: float | None) -> str:
    """Tokens a second: one decimal under 10, else whole."""
    if value is None:
        return "n/a"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def seconds(value: float | None) -> str:
    """A duration: 0.38s, 4.1s, 72s, 3:05."""
    if value is None:
        return "n/a"
    if value < 1:
        return f"{value:.2f}s"
    if value < 99.95:
        return f"{value:.1f}s" if value < 9.95 else f"{value:.0f}s"
    return f"{int(value) // 60}:{int(value) % 60:02d}"


def percent(fraction: float | None) -> str:
    """A share of one, as whole percent."""
    return "n/a" if fraction is None else f"{fraction:.0%}"


def size(value: int) -> str:
    """A number of bytes: 812 B, 5.2 KB, 1.0 MB."""
    if value < 1000:
        return f"{value} B"
    for unit, scale in (("KB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if value < scale * 999.5 or unit == "GB":
            return f"{value / scale:.1f} {unit}"
    raise AssertionError("unreachable")


def nice_top(value: float) -> float:
    """The end of an axis that starts at 0 and holds `value`: 1, 1.2, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next((power * step for step in (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8) if power * step >= value), power * 10)
