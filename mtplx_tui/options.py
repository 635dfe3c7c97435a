"""From the options that a person gives to an EngineConfig. Nothing heavy is imported, since the first frame waits."""

import importlib.util
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from engine.config import EngineConfig

Mode = Literal["mtp", "ar"]
ProfileName = Literal["turbo", "sustained", "burst", "exact", "stock"]
KvBits = Literal["8", "4"]

UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30, "TB": 10**12, "TiB": 2**40}


class UsageError(Exception):
    """The command line asks for something that can not be done; the text can be shown to a user as it is."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of the commands that start an engine, as they were typed."""

    model: str | None = None
    mode: Mode = "mtp"
    depth: str = "auto"
    profile: ProfileName = "turbo"
    kv_bits: KvBits | None = None
    memory: str | None = None

    def config(self) -> "EngineConfig":
        """What they ask for.

        Raises UsageError for what no engine could be started with, MLXMissingError where none could be at all.
        """
        from engine.config import EngineConfig
        from engine.errors import MLXMissingError
        from engine.profiles import PROFILES
        from mtplx_tui import paths

        depth = parse_depth(self.depth)
        if self.mode == "ar" and depth:
            raise UsageError(f"--depth {depth} needs drafts, and --mode ar makes none.")
        if importlib.util.find_spec("mlx") is None:
            raise MLXMissingError(
                "MLX, which runs the models, is not installed here. Install mtplx-tui again with: uv sync. "
                "An engine on another machine can be used without it: mtplx-tui --connect URL"
            )
        return EngineConfig(
            model=self.model,
            mode=self.mode,
            depth=depth,
            profile=PROFILES[self.profile],
            kv_bits={"8": 8, "4": 4, None: None}[self.kv_bits],
            memory_bytes=None if self.memory is None else parse_memory(self.memory),
            timings_file=paths.timings_file(),
        )


def parse_depth(text: str) -> int | None:
    """A depth from the command line; None is auto. Raises UsageError."""
    if text == "auto":
        return None
    if re.fullmatch("[0-8]", text):
        return int(text)
    raise UsageError(f"--depth is {text!r}; give a number from 0 to 8, or auto.")


def parse_memory(text: str) -> int:
    """Bytes from a size with its unit, such as 8GB or 12.5GiB. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([MGT]i?B)", text, re.ASCII)
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < 1:
        raise UsageError(f"--memory is {text!r}; give a size above 0 with its unit, such as 8GB or 12GiB.")
    return size
