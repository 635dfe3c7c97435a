"""Chat prompts that the self-test and the benchmarks run: of the kinds that the bundled model was made for, and plain
enough for any other."""

import random

from engine.errors import BadRequestError

PROMPTS = (
    "What is 47 + 85?",
    "Tell me a short story about a fox.",
    "Write a Python function that reverses a list.",
    "What is the capital of France?",
    "Sort these numbers: 42, 7, 19, 3.",
    "A shop sells pens for 3 dollars each. How much do 14 pens cost?",
)

Conversation = tuple[tuple[str, str], ...]
"""(role, text) of each turn; the last one is the user's."""

_PRIME = """\
```python
def is_prime(n):
    if n < 2:
        return False
    for i in range(2, int(n ** 0.5) + 1):
        if n % i == 0:
            return False
    return True
```

Example: `is_prime(7)` returns `True`."""
_FIBONACCI = """\
```python
def fibonacci(n):
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]
```

Example: `fibonacci(6)` returns `[0, 1, 1, 2, 3, 5]`."""


def _ask(question: str) -> Conversation:
    return (("user", question),)


def _ask_again(question: str, answer: str) -> Conversation:
    return (("user", question), ("assistant", answer), ("user", question))


KINDS: dict[str, tuple[Conversation, ...]] = {
    "prose": (
        _ask("Tell me a short story about a fox."),
        _ask("Tell me a bedtime story."),
        _ask("Write a story that takes place in the old barn."),
    ),
    "code": (
        _ask("Write a Python function that checks if a number is prime."),
        _ask("Write a Python function that returns the first n Fibonacci numbers."),
        _ask("Write a Python function that removes duplicates from a list."),
        _ask("Write a Python function that computes a factorial."),
    ),
    "copy": (
        _ask_again("Write a Python function that checks if a number is prime.", _PRIME),
        _ask_again("Write a Python function that returns the first n Fibonacci numbers.", _FIBONACCI),
        _ask("Make a table of names and ages: Hugo 42, Ivy 17, Nora 63, Theo 8."),
        _ask("Repeat this sentence: Zoe the hedgehog took the golden whistle to the old barn."),
    ),
}
"""By what the answers are: new prose, new code, and text that mostly stands in the prompt already, as in an edit.

With demo-13m, greedily: 106 to 147 tokens, 62 to 86, and 18 to 86."""

_NAMES = "Mia Ben Lily Tom Zoe Max Anna Leo Ruby Sam Ella Finn Nora Jack Ivy Theo Rosa Omar Maya Noah"
_ANIMALS = "cat dog rabbit mouse fox bear bird duck frog turtle squirrel hedgehog pony lamb goat"
_OBJECTS = "ball kite hat book drum bell lamp key basket blanket boat shell scarf button whistle map"


def stories(count: int, seed: int) -> list[str]:
    """Requests for a story, no two alike and always the same for a seed, so that no cache knows the whole of one.

    Raises BadRequestError where there are not that many.
    """
    names, animals, objects = _NAMES.split(), _ANIMALS.split(), _OBJECTS.split()
    every = [f"Write a short story about {n} the {a} and a {o}." for n in names for a in animals for o in objects]
    if count > len(every):
        raise BadRequestError(f"{count} different prompts are needed and there are {len(every)}; ask for fewer.")
    return random.Random(seed).sample(every, count)


def passage(sentences: int, seed: int) -> str:
    """Text to fill a context with, always the same for a seed: plain sentences in which little repeats."""
    draw = random.Random(seed)
    names, animals, objects = _NAMES.split(), _ANIMALS.split(), _OBJECTS.split()
    return " ".join(
        f"{draw.choice(names)} the {draw.choice(animals)} took {draw.randint(2, 99)} things and a "
        f"{draw.choice(objects)} to {draw.choice(names)}."
        for _ in range(sentences)
    )
