"""Chat prompts that the self-test and the benchmarks run: of the kinds that the bundled model was made for, and plain
enough for any other."""

PROMPTS = (
    "What is 47 + 85?",
    "Tell me a short story about a fox.",
    "Write a Python function that reverses a list.",
    "What is the capital of France?",
    "Sort these numbers: 42, 7, 19, 3.",
    "A shop sells pens for 3 dollars each. How much do 14 pens cost?",
)
