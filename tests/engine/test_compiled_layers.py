"""A decoder layer cut into what is traced and what the cache decides: attention, which needs no GPU to be compared."""

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from engine.models import compiled
from engine.models.spec import SpecModel
from tests.engine.tiny_models import make, opened, save


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """What is traced runs as it is written: on a CPU a trace takes a C++ compiler seconds."""
    mx.disable_compile()
    yield
    mx.enable_compile()


def steps(spec: SpecModel) -> list[mx.array]:
    """Hiddens of a prompt, and of blocks of which some are refused in part."""
    state = spec.new_state()
    state.read(True)
    out = [spec.hidden(mx.array([[5, 7, 9, 11, 2, 3]]), state)]
    state.clock.advance_all(6)
    state.read(False)
    for block, kept in (([3, 4, 8, 100], 2), ([77], 1), ([10, 2, 3, 4, 5], 5), ([6, 7], 1)):
        out.append(spec.hidden(mx.array([block]), state))
        state.accept(mx.array([kept]), len(block))
    return out


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_attention_cut_in_two_gives_the_same(family: str, tmp_path: Path) -> None:
    spec = opened(save(tmp_path / family, make(family))).spec
    expected = steps(spec)
    compiled.compile_steps(spec._trunk.layers)
    assert all(isinstance(layer, compiled._Compiled) for layer in spec._trunk.layers)
    assert all(mx.allclose(a, b, atol=1e-5) for a, b in zip(expected, steps(spec), strict=True))
