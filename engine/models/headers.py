"""The headers of a model's safetensors files: names, types and shapes of all tensors, without reading a weight."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelBrokenError

SIDECARS = ("mtp.safetensors", "mtp/weights.safetensors")
_MAX_HEADER = 100_000_000  # the format's own limit, bytes
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F4": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file's header describes it; `dtype` in safetensors' names (BF16, U32, ...)."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def weight_files(folder: Path) -> list[Path]:
    """The files that mlx-lm reads by itself, the head's `model-mtp.safetensors` among them."""
    return sorted(folder.glob("model*.safetensors"))


def sidecar_files(folder: Path) -> list[Path]:
    """Files that hold a head and that mlx-lm does not read."""
    return [folder / name for name in SIDECARS if (folder / name).is_file()]


def read_headers(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model folder by name, those of a sidecar as under `mtp.`. Raises as `read_header` does."""
    tensors = {name: tensor for file in weight_files(folder) for name, tensor in read_header(file).items()}
    for file in sidecar_files(folder):
        for name, tensor in read_header(file).items():
            tensors.setdefault(name if "mtp." in name else f"mtp.{name}", tensor)
    return tensors


def read_header(file: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file.

    Raises ModelBrokenError, naming the file, where it is truncated or its header is not sane: such a file must not
    reach MLX, which reads where the header points.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if start + stream.read(16) == b"version https://git-lfs.":
                raise _broken(file, "is a Git LFS pointer, not the weights", "Run `git lfs pull` in its folder.")
            if size < 8 or length > size - 8:
                raise _broken(file, f"is truncated: {size} bytes, with a header of {length}")
            if length > _MAX_HEADER:
                raise _broken(file, f"claims a header of {length} bytes, more than the format allows")
            stream.seek(8)
            header = json.loads(stream.read(length))
    except OSError as error:
        raise _broken(file, f"can not be read: {error.strerror}", "Check the file and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise _broken(file, "has a damaged header") from error
    if not isinstance(header, dict):
        raise _broken(file, "has a damaged header")
    header.pop("__metadata__", None)
    tensors = dict(_tensors(file, header, size - 8 - length))
    if sum(t.nbytes for t in tensors.values()) > size - 8 - length:
        raise _broken(file, "has tensors that overlap")
    return tensors


def _tensors(file: Path, header: dict[str, Any], room: int) -> Iterator[tuple[str, Tensor]]:
    end_of_all = 0
    for name, entry in header.items():
        try:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            sane = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
            nbytes = (math.prod(shape) * _BITS[dtype] + 7) // 8 if sane else 0
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(file, f"describes its tensor {name!r} in a way that can not be read") from error
        if not sane or end - begin != nbytes:
            raise _broken(file, f"gives its tensor {name!r} bytes that do not fit its shape {list(shape)} of {dtype}")
        end_of_all = max(end_of_all, end)
        yield name, Tensor(dtype, shape, nbytes, file.name)
    if end_of_all > room:
        raise _broken(file, f"is truncated: {room} bytes of weights where its header promises {end_of_all}")


def _broken(file: Path, what: str, fix: str = "Copy or download this file again.") -> ModelBrokenError:
    return ModelBrokenError(f"{file} {what}. {fix}")
