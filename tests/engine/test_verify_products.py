"""How few rows are multiplied with quantised weights: every way gives MLX's own result, and the choice is kept."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest

from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.kernels import reading
from engine.kernels.timings import Timings
from engine.kernels.verify import (
    MOST_ROWS,
    STOCK,
    WAYS,
    Calibration,
    Widths,
    small_parts,
    time_ways,
    use_fastest,
)
from engine.request import Request, Sampling


def quantised(columns: int = 128, outputs: int = 96, bits: int = 4) -> nn.QuantizedLinear:
    mx.random.seed(3)
    return nn.QuantizedLinear.from_linear(nn.Linear(columns, outputs, bias=True), group_size=64, bits=bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 20])
def test_a_layer_gives_what_it_gave_before(rows: int, bits: int) -> None:
    layer = quantised(bits=bits)
    x = mx.random.normal((2, rows, 128))
    expected = layer(x)
    use_fastest(layer, Calibration(Timings("here")))
    assert layer(x).shape == expected.shape
    assert mx.allclose(layer(x), expected, atol=1e-4)


@pytest.mark.parametrize("name", [STOCK, "padded"])
def test_every_way_of_a_quantised_weight_gives_mlx_own_result(name: str) -> None:
    layer = quantised()
    x = mx.random.normal((5, 128))
    assert mx.allclose(WAYS[name](x, layer), WAYS[STOCK](x, layer), atol=1e-4)


def test_a_way_that_is_off_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "padded", lambda x, layer: WAYS[STOCK](x, layer) + 1.0)
    seconds = time_ways(quantised(), 3, mx.float32)
    assert "padded" not in seconds
    assert STOCK in seconds


def test_what_was_timed_is_kept_for_this_machine_only(tmp_path: Path) -> None:
    file = tmp_path / "timings.json"
    first = Timings("one", file).get("a", lambda: {"x": 1.0})
    assert Timings("one", file).get("a", lambda: {"x": 2.0}) == first
    assert Timings("another", file).get("a", lambda: {"x": 3.0}) == {"x": 3.0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"machine": "here"}', '{"machine": "here", "seconds": {"a": 1}}'])
def test_a_damaged_file_is_timed_again(tmp_path: Path, text: str) -> None:
    file = tmp_path / "timings.json"
    file.write_text(text)
    assert Timings("here", file).get("a", lambda: {"x": 2.0}) == {"x": 2.0}
    assert Timings("here", file).get("a", lambda: {"x": 5.0}) == {"x": 2.0}


def test_a_file_that_can_not_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    assert Timings("here", tmp_path / "taken" / "timings.json").get("a", lambda: {"x": 2.0}) == {"x": 2.0}


def test_a_step_is_widened_only_where_that_is_clearly_faster() -> None:
    like_an_h200 = [0.0, 1.0, 1.9, 2.7, 3.4, 4.2, 5.0, 5.7, 0.9, *[0.93] * 32]
    width = Widths(like_an_h200.__getitem__)
    assert [width(1, length) for length in (1, 2, 4, 8, 9, 16, 20)] == [1, 8, 8, 8, 9, 16, 20]
    assert [width(4, length) for length in (1, 2, 3, 5)] == [2, 2, 3, 5]
    like_openblas = [0.0, 0.5, 0.6, 0.75, 0.46, 0.7, 0.68, 0.9, 0.57, 0.77, 0.78, 0.8, 0.66, 0.9, 1.0, 1.1, 0.83]
    assert [Widths(like_openblas.__getitem__)(1, length) for length in range(1, 17)] == [
        *(1, 4, 4, 4), *(8,) * 4, *(12,) * 4, 13, *(16,) * 3
    ]  # fmt: skip
    assert Widths(lambda rows: 1.0)(1, 3) == 3
    assert Widths()(2, 3) == 3


def test_widths_are_timed_over_the_whole_trunk() -> None:
    trunk = nn.Sequential(quantised(128, 64), quantised(64, 128), nn.Linear(128, 32))
    width = Calibration(Timings("here")).widths([trunk], mx.float32)
    assert all(width(1, length) >= length for length in range(1, MOST_ROWS + 1))


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_columns_that_nobody_reads_change_no_text(temperature: float) -> None:
    """Depths by turns, rows that join and leave, copied spans: the same as without."""
    engine = DirectEngine(EngineConfig(cache_bytes=0))
    chat = engine.loaded.chat
    asked = ["What is 47 + 85?", "Write a Python function that reverses a list.", "Count from 1 to 20."]
    prompts = [chat.render([{"role": "user", "content": text}]) for text in asked]

    def texts() -> list[tuple[int, ...]]:
        return [
            answer.ids
            for depth in (0, 1, 3, None)
            for answer in engine.run(
                [
                    Request(prompt, Sampling(temperature=temperature), max_tokens=20 + 9 * place, seed=5, depth=depth)
                    for place, prompt in enumerate(prompts)
                ]
            )
        ]

    expected = texts()
    engine.loaded.spec.width = lambda rows, length: length + 3  # type: ignore[assignment]
    assert texts() == expected


@pytest.mark.parametrize(("columns", "outputs"), [(320, 832), (832, 320), (320, 6144), (64, 97), (2048, 4)])
@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_a_dense_weight_cut_into_parts_gives_mlx_own_result(rows: int, columns: int, outputs: int) -> None:
    parts = small_parts(rows, outputs, columns)
    assert outputs % parts == 0
    layer = nn.Linear(columns, outputs, bias=False)
    x = mx.random.normal((rows, columns), key=mx.random.key(1))
    assert mx.allclose(WAYS["in parts"](x, layer), WAYS[STOCK](x, layer), atol=1e-4)


@pytest.mark.parametrize("size", [3, reading.FEW + 1])
def test_exponentials_of_few_and_of_many_numbers_are_the_same(size: int) -> None:
    x = mx.linspace(-60, 60, size)
    assert mx.allclose(reading.exp(x), mx.exp(x), rtol=1e-6)
    assert mx.allclose(reading.silu(100 * x), x * 100 * mx.sigmoid(100 * x), atol=1e-5)
