"""How much a measurement asks for, from how fast a model is: a slow one gets shorter answers, then fewer repeats."""

LEAST_TOKENS = 32  # of an answer; fewer tell nothing
REPEATS, REPEATS_SLOW = 5, 3


def fitting(tokens: float, most: int) -> tuple[int, int]:
    """(tokens an answer may have, repeats), where so many tokens an answer fit the time of a repeat."""
    return max(LEAST_TOKENS, min(most, int(tokens))), REPEATS if int(tokens) >= LEAST_TOKENS else REPEATS_SLOW
