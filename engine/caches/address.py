"""Where a prefix is kept: an address follows from all that decides its numbers, and from its tokens. No mlx."""

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from engine.handle import ModelInfo
from engine.models.headers import sidecar_files, weight_files

FORMAT = 1  # of what a file holds; raise it when the caches keep something else, or keep it otherwise
WIDTH = 4  # bytes of a packed token
_SAMPLE = 512  # bytes of each tensor that a model's address depends on
_DIGEST = 20  # bytes


def build() -> str:
    """What wrote a file, in words: another build may round differently, so it does not read it."""
    programs = ", ".join(f"{name} {version(name)}" for name in ("mtplx-tui", "mlx", "mlx-lm"))
    return f"format {FORMAT}, {programs}"


def root(info: ModelInfo, kv_bits: int | None) -> str:
    """The address of the empty prefix: of a model as it runs here, by one build of the program.

    Of the weights it takes in names, sizes, times of change, headers and half a kilobyte of each tensor, 10 ms for a
    thousand tensors. Raises OSError or ValueError where the model's files have gone or were damaged since it was
    loaded.
    """
    folder = Path(info.path)
    facts = [build(), info.dtype, info.device, info.mode, str(kv_bits)]
    digest = hashlib.blake2b("\0".join(facts).encode(), digest_size=_DIGEST)
    digest.update((folder / "config.json").read_bytes())
    for file in [*weight_files(folder), *sidecar_files(folder)]:
        digest.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0{file.stat().st_mtime_ns}\0".encode())
        for part in _samples(file):
            digest.update(part)
    return digest.hexdigest()


def scoped(root: str, scope: str) -> str:
    """The address of the empty prefix for one scope of requests, which share nothing with those of others."""
    return after(root, scope.encode()) if scope else root


def after(parent: str, tokens: bytes | memoryview) -> str:
    """The address of a prefix, from that of its beginning and the `packed` tokens behind it."""
    return hashlib.blake2b(tokens, key=bytes.fromhex(parent), digest_size=_DIGEST).hexdigest()


def packed(ids: Sequence[int]) -> bytes:
    """Token ids, WIDTH bytes each."""
    return array("i", ids).tobytes()  # int is four bytes on all that MLX runs on


def _samples(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        length = stream.read(8)
        header = stream.read(int.from_bytes(length, "little"))
        yield header
        data = 8 + len(header)
        for name, tensor in json.loads(header).items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                stream.seek(data + (begin + end) // 2)
                yield stream.read(min(_SAMPLE, end - begin))
