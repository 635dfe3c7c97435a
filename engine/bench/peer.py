"""mlx-lm's own generator on the same weights, as the peer that speed is measured against."""

import time
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import stream_generate
from mlx_lm.utils import load_model, load_tokenizer

from engine.device import is_cpu
from engine.handle import ModelInfo
from engine.models.load import to_float32


@dataclass(frozen=True, slots=True)
class PeerRun:
    """A greedy continuation: `ids` with the end-of-turn token, seconds to the first, and from there to the last."""

    ids: tuple[int, ...]
    first_s: float
    decode_s: float


class Peer:
    """Stock mlx-lm: its model class, its caches, its loop. On the CPU its weights are dense float32, as ours are."""

    def __init__(self, info: ModelInfo) -> None:
        self._model, _ = load_model(Path(info.path), lazy=True)
        if is_cpu():
            to_float32(self._model)
        mx.eval(self._model.parameters())
        self._tokenizer = load_tokenizer(Path(info.path))

    def run(self, prompt: tuple[int, ...], max_tokens: int) -> PeerRun:
        """Read the prompt into fresh caches, at mlx-lm's own chunk size, and go on from it."""
        ids: list[int] = []
        first = last = 0.0
        begun = time.perf_counter()
        for response in stream_generate(self._model, self._tokenizer, list(prompt), max_tokens=max_tokens):
            last = time.perf_counter()
            first = first or last
            ids.append(response.token)
        return PeerRun(tuple(ids), first - begun, last - first)
