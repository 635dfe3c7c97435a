"""Prefixes whose arrays follow from their tokens, and a program that writes and reads them until it is killed."""

import random
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

from engine.caches import address
from engine.caches.blobs import UnusableError
from engine.caches.disk import Disk
from engine.caches.stretch import Stretch

MODEL = "made-up"
ROOT = "ab" * 20


def stretch(key: str, tokens: int = 40) -> Stretch:
    """Two layers, a head and a hidden, of all types that caches have, filled with noise that belongs to the key."""
    noise = np.random.default_rng(int(key[:8], 16))

    def values(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        return mx.array(noise.normal(size=shape).astype(np.float32)).astype(dtype)

    trunk = [
        (values(1, 2, tokens, 99, dtype=mx.bfloat16), values(1, 2, tokens, 99, dtype=mx.float16)),
        (values(1, 3, 24), values(1, 4, 8, 8)),
        (mx.array(noise.integers(0, 1 << 32, (1, 2, tokens, 4), dtype=np.uint32)), *(values(1, 2, tokens, 1),) * 2),
    ]
    made = Stretch(trunk, [(values(1, 2, tokens, 99), values(1, 2, tokens, 99))], values(1, 1, 32, dtype=mx.bfloat16))
    mx.eval(made.arrays())
    return made


def raw(held: Stretch) -> list[tuple[str, tuple[int, ...], bytes]]:
    """All that a stretch holds, to compare bit by bit."""
    return [(str(array.dtype), array.shape, memoryview(array).tobytes()) for array in held.arrays()]


def conversation(number: int, stretches: int = 3) -> tuple[int, ...]:
    """A prompt: its first forty tokens are those of every other one."""
    draw = random.Random(number)
    return (*range(40), *(draw.randrange(1000) for _ in range(40 * (stretches - 1))))


def write(disk: Disk, prompt: tuple[int, ...]) -> list[str]:
    """Offer a prompt in stretches of forty tokens; gives their keys."""
    keys = [ROOT]
    for start in range(0, len(prompt), 40):
        keys.append(address.after(keys[-1], address.packed(prompt[start : start + 40])))
        disk.offer(keys[-1], keys[-2], start, start + 40, stretch(keys[-1]), ROOT)
    return keys[1:]


def read(disk: Disk, prompt: tuple[int, ...]) -> int:
    """Load as much of a prompt as there is, and compare it with what was written; gives the tokens."""
    tokens = memoryview(address.packed(prompt))
    key, end = ROOT, 0
    while further := disk.continuing(key, tokens, end):
        key, end = max(further, key=lambda found: found[1])
        try:
            held = disk.load(key)
        except UnusableError:
            return end - 40
        assert raw(held) == raw(stretch(key)), f"{key} is not what was written"
        disk.touch(key)
    return end


def main() -> None:
    """Arguments: folder, limit in bytes, seed, how many prompts. Prints a line once it runs, and one at its end."""
    folder, limit, seed, count = sys.argv[1], *map(int, sys.argv[2:])
    draw = random.Random(seed)
    disk = Disk(Path(folder), limit, MODEL, ROOT)
    print("runs", flush=True)
    found = 0
    for _ in range(count):
        write(disk, conversation(draw.randrange(30)))
        found += read(disk, conversation(draw.randrange(30)))
    disk.close(60.0)
    print(f"read {found}", flush=True)


if __name__ == "__main__":
    main()
