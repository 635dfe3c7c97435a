"""Random checkpoints: whole, the same each time, and run by both engines to the limit."""

from pathlib import Path

import mlx.core as mx
import pytest

from engine.bench.peer import Peer
from engine.bench.random_models import ensure, write
from engine.bench.runs import run
from engine.bench.shapes import DEMO_VOCABULARY, SHAPES, Shape, shape
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.errors import BadRequestError

WIDE = Shape(4, 64, 128, 2, 1, 32, 2, 4, 32, vocabulary=DEMO_VOCABULARY + 512, context=256)


@pytest.mark.parametrize("bits", [None, 4])
def test_both_engines_run_it_to_the_limit_and_say_the_same(bits: int | None, tmp_path: Path) -> None:
    wanted = Shape(**{name: getattr(WIDE, name) for name in WIDE.__slots__} | {"bits": bits})
    write(tmp_path / "model", wanted)
    engine = DirectEngine(EngineConfig(str(tmp_path / "model"), cache_bytes=0))
    assert engine.loaded.info.context == 256
    assert engine.loaded.info.head is not None
    prompt = engine.loaded.chat.render([{"role": "user", "content": "Hello"}])
    answers = [run(engine, prompt, 40, depth).ids for depth in (0, 2)]
    assert len(answers[0]) == 40
    assert answers[0] == answers[1] == Peer(engine.loaded.info).run(prompt, 40).ids
    assert max(answers[0]) < DEMO_VOCABULARY


def test_a_shape_gives_the_same_weights_each_time_and_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ensure("wide", WIDE)
    assert folder.name == "random-wide"
    written = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert ensure("wide", WIDE) == folder
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == written
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing unfinished stays"
    write(tmp_path / "again", WIDE)
    for file in sorted(folder.glob("*.safetensors")):
        one, other = mx.load(str(file)), mx.load(str(tmp_path / "again" / file.name))
        assert one.keys() == other.keys()
        assert all(mx.array_equal(one[name], other[name]) for name in one)


def test_every_shape_is_a_qwen_hybrid_that_fits_the_tokenizer() -> None:
    for each in SHAPES.values():
        assert each.layers % 4 == 0
        assert each.vocabulary >= DEMO_VOCABULARY
        assert each.heads % each.kv_heads == each.value_heads % each.key_heads == 0
    with pytest.raises(BadRequestError, match="tiny-24"):
        shape("70b")
