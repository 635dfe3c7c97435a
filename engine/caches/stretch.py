"""What a row's caches gained over a stretch of its prompt, in memory and as a safetensors file."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from engine.caches.blobs import GoneError, UnusableError

Arrays = tuple[mx.array, ...]
_DTYPES = {
    mx.float32: "F32", mx.bfloat16: "BF16", mx.float16: "F16", mx.uint32: "U32", mx.uint16: "U16", mx.uint8: "U8",
    mx.int32: "I32", mx.int16: "I16", mx.int8: "I8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the caches of one row gained from one checkpoint to the next.

    Attributes:
        trunk: for each layer, what its cache cut: keys and values of the stretch, or a recurrent state at its end.
        head: for each head layer, likewise, of the rows that the stretch added.
        hidden: [1, 1, H], of the last token; None without a head.
    """

    trunk: list[Arrays]
    head: list[Arrays]
    hidden: mx.array | None

    def arrays(self) -> list[mx.array]:
        hidden = [] if self.hidden is None else [self.hidden]
        return [*hidden, *(array for layer in (*self.trunk, *self.head) for array in layer)]


def encode(stretch: Stretch, key: str) -> list[bytes]:
    """A stretch as the parts of a safetensors file."""
    counts = {name: [len(layer) for layer in layers] for name, layers in _layers(stretch)}
    header: dict[str, Any] = {"__metadata__": {"key": key, "layers": json.dumps(counts)}}
    parts: list[bytes] = []
    place = 0
    for name, array in _named(stretch):
        data = memoryview(array).tobytes()  # type: ignore[arg-type]  # it has the buffer protocol
        offsets = [place, place + len(data)]
        header[name] = {"dtype": _DTYPES[array.dtype], "shape": array.shape, "data_offsets": offsets}
        place += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *parts]


def _layers(stretch: Stretch) -> list[tuple[str, list[Arrays]]]:
    hidden: list[Arrays] = [] if stretch.hidden is None else [(stretch.hidden,)]
    return [("trunk", stretch.trunk), ("head", stretch.head), ("hidden", hidden)]


def _named(stretch: Stretch) -> Iterator[tuple[str, mx.array]]:
    for name, layers in _layers(stretch):
        for place, layer in enumerate(layers):
            for i, array in enumerate(layer):
                yield f"{name}.{place}.{i}", array


def decode(file: Path, key: str) -> Stretch:
    """What `encode` put into a file, evaluated.

    Raises UnusableError where the file is another one or can not be read, GoneError where there is none.
    """
    try:
        return _decode(file, key)
    except (OSError, RuntimeError, ValueError, LookupError) as error:  # what MLX and an odd header raise
        if not file.exists():  # another process may remove it at any moment
            raise GoneError("the file of this prefix was removed meanwhile") from error
        raise UnusableError(f"the file of this prefix can not be read: {error}") from error


def _decode(file: Path, key: str) -> Stretch:
    loaded: Any = mx.load(str(file), return_metadata=True)
    arrays, metadata = loaded
    if metadata.get("key") != key:
        raise UnusableError("the file of this prefix holds another one")
    mx.eval(arrays)
    trunk, head, hidden = (
        [tuple(arrays[f"{name}.{place}.{i}"] for i in range(count)) for place, count in enumerate(counts)]
        for name, counts in json.loads(metadata["layers"]).items()
    )
    return Stretch(trunk, head, hidden[0][0] if hidden else None)
