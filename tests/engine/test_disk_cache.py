"""A prompt that an engine read before a restart is not read again, and nothing that is said depends on it."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import mlx.core as mx
import pytest
import tiny_models
from prefix_writer import raw
from tiny_models import EOS

from engine.caches import address
from engine.caches.bank import Bank, open_bank
from engine.caches.disk import open_disk
from engine.collect import Answer, Completion
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.engine import ThreadEngine
from engine.events import Event, PrefillEvent
from engine.prefill import Prefill
from engine.request import Request, Sampling
from engine.row import Row
from engine.selftest.states import difference

SEEDED = Sampling(temperature=0.8, top_k=20)
LONG = "The fox saw a river and a bench, and Nora went to the forest to sing. " * 12


def bank(engine: DirectEngine, folder: Path, cache_bytes: int = 1 << 30, disk_bytes: int = 1 << 30) -> Bank:
    config = EngineConfig(cache_bytes=cache_bytes, cache_folder=folder, disk_bytes=disk_bytes)
    opened = open_bank(config, engine.loaded.info)
    assert opened is not None
    return opened


def read(engine: DirectEngine, prompt: Sequence[int], bank: Bank | None) -> Prefill:
    row = Row(Request(tuple(prompt)), 0, "mtp", engine.loaded.chat, 2048, lambda event: None)
    prefill = Prefill(engine.loaded.spec, row, bank, engine.loaded.chat.eos_ids)
    while not prefill.finished:
        prefill.advance(97)
    return prefill


def turns(seed: int, *lengths: int) -> list[int]:
    draw = random.Random(seed)
    return [token for length in lengths for token in (*(draw.randrange(250) for _ in range(length)), EOS)]


def answer(engine: ThreadEngine, request: Request) -> tuple[Completion, PrefillEvent]:
    """The answer, and what was told of the prompt's reading."""
    events: SimpleQueue[Event] = SimpleQueue()
    taken = Answer()
    engine.submit(request, events.put)
    reading = None
    while True:
        event = events.get(timeout=60)
        reading = event if isinstance(event, PrefillEvent) else reading
        completion = taken.add(event)
        if completion is not None:
            assert reading is not None
            return completion, reading


def started(folder: Path | None, **settings: int | str | None) -> ThreadEngine:
    engine = ThreadEngine(EngineConfig(cache_folder=folder, **settings))  # type: ignore[arg-type]
    engine.wait_ready()
    return engine


@pytest.mark.parametrize(
    ("depth", "kv_bits"),
    [(None, 8), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, None), (None, None), (3, 4)))],
)
def test_after_a_restart_the_second_turn_says_what_a_cold_one_says(
    depth: int | None, kv_bits: int | None, tmp_path: Path
) -> None:
    engine = started(tmp_path, kv_bits=kv_bits)
    question = {"role": "user", "content": LONG + "What is 47 + 85?"}
    first = engine.chat.render([question])
    answer(engine, Request(first, SEEDED, max_tokens=8, seed=1, depth=depth))
    assert engine.close()
    second = engine.chat.render(
        [question, {"role": "assistant", "content": "47 + 85 is 132."}, {"role": "user", "content": "And 12 + 30?"}]
    )
    request = Request(second, SEEDED, max_tokens=40, seed=3, depth=depth)
    told = {}
    for name, folder, cache_bytes in (("warm", tmp_path, 1 << 30), ("cold", None, 0)):
        engine = started(folder, cache_bytes=cache_bytes, kv_bits=kv_bits)
        told[name], _ = answer(engine, request)
        assert engine.close()
    assert told["warm"].ids == told["cold"].ids
    assert told["warm"].usage.cached_tokens > 0.8 * len(first)
    assert told["cold"].usage.cached_tokens == 0


def test_what_is_restored_is_what_was_kept_bit_by_bit_the_heads_rows_included(
    small: DirectEngine, tmp_path: Path
) -> None:
    prompt = [*turns(1, 60, 300, 90), 5, 6]
    before = bank(small, tmp_path)
    cold = read(small, prompt, before)
    kept = before.find(prompt).node
    before.close()
    after = bank(small, tmp_path)
    found = after.find(prompt)
    assert found.reason == "everything cached on this way was used"
    assert [node.end for node in found.node.path()] == [node.end for node in kept.path()] == [61, 453]
    for ours, theirs in zip(found.node.path(), kept.path(), strict=True):
        assert raw(ours.held) == raw(theirs.held)
        assert len(ours.held.head) == 1
    warm = read(small, prompt, after)
    assert warm.cached == 453
    assert max(difference(warm.rows().state, cold.rows().state)) < 1e-4
    after.close()


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next", "llama"])
def test_each_kind_of_model_goes_on_as_from_memory(family: str, tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path / "model", tiny_models.make(family))
    prompt = (*random.Random(2).choices(range(250), k=300), tiny_models.EOS, 7, 8)
    request = Request(prompt, Sampling(temperature=1.0), max_tokens=30, seed=5)
    told = []
    for kept in (None, tmp_path / "cache", tmp_path / "cache"):
        engine = started(kept, model=str(folder), cache_bytes=0 if kept is None else 1 << 30)
        told.append(answer(engine, request)[0])
        assert engine.close()
    cold, first, again = told
    assert cold.ids == first.ids == again.ids
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 301)


def test_what_left_memory_comes_back_from_disk(small: DirectEngine, tmp_path: Path) -> None:
    tight = bank(small, tmp_path, cache_bytes=1)  # keeps only the way of the last prompt
    prompts = [[*turns(0, 50), *turns(seed, 100), 5, 6] for seed in range(1, 6)]
    for prompt in prompts:
        read(small, prompt, tight)
    tight.close()
    tight = bank(small, tmp_path, cache_bytes=1)
    for prompt in prompts * 2:
        assert tight.known(prompt) == 152
        assert read(small, prompt, tight).cached == 152
    tight.close()


def test_a_prefix_that_memory_lets_go_while_it_is_read_on_is_still_right(small: DirectEngine, tmp_path: Path) -> None:
    limited = bank(small, tmp_path, cache_bytes=1, disk_bytes=1 << 16)  # the disk lets go as well
    stem = turns(0, 60)
    read(small, [*stem, 5, 6], limited)
    one, other = ([*stem, *turns(seed, 400, 50), 5, 6] for seed in (1, 2))
    row = Row(Request(tuple(one)), 0, "mtp", small.loaded.chat, 2048, lambda event: None)
    reading = Prefill(small.loaded.spec, row, limited, small.loaded.chat.eos_ids)
    assert reading.cached == 61
    while not reading.finished:
        reading.advance(100)
        read(small, [*turns(7, 80), 5, 6], limited)
        read(small, other, limited)
    limited.clear()
    assert max(difference(reading.rows().state, read(small, one, None).rows().state)) < 1e-4
    again = read(small, one, limited)
    assert max(difference(again.rows().state, read(small, one, None).rows().state)) < 1e-4
    limited.close()


def test_the_deepest_way_is_taken_where_checkpoints_differ(small: DirectEngine, tmp_path: Path) -> None:
    prompt = turns(3, 50, 50, 50)
    short = bank(small, tmp_path)
    read(small, [*prompt[:102], 5, 6], short)  # checkpoints at 51 and 102
    short.close()
    again = bank(small, tmp_path)
    read(small, [*prompt, 5, 6], again)  # goes on at 102, so 153 follows 102
    again.close()
    longest = bank(small, tmp_path)
    assert longest.find([*prompt, 5, 6]).node.end == 153
    longest.close()


def test_damage_on_the_way_is_told_and_the_text_is_the_cold_one(tmp_path: Path) -> None:
    engine = started(tmp_path)
    prompt = engine.chat.render([{"role": "system", "content": LONG}, {"role": "user", "content": LONG + "Hello!"}])
    request = Request(prompt, SEEDED, max_tokens=20, seed=2)
    cold, _ = answer(engine, request)
    assert engine.close()
    _, *others = sorted((tmp_path / "blobs").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    assert others, "checkpoints further on, the answer's among them"
    for blob in others:
        with blob.open("r+b") as file:
            file.seek(-100, 2)
            byte = file.read(1)
            file.seek(-100, 2)
            file.write(bytes([byte[0] ^ 1]))
    engine = started(tmp_path)
    warm, reading = answer(engine, request)
    assert reading.miss == "the file of this prefix was damaged: its checksum is wrong"
    assert 0 < warm.usage.cached_tokens < 0.8 * len(prompt)
    again, reading = answer(engine, replace(request, id="again"))
    assert engine.close()
    assert cold.ids == warm.ids == again.ids
    engine = started(tmp_path)
    mended, reading = answer(engine, request)
    assert engine.close()
    assert (mended.ids, reading.miss) == (cold.ids, "everything cached on this way was used")
    assert mended.usage.cached_tokens > 0.8 * len(prompt)


def test_an_engine_without_a_usable_folder_answers_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("where a folder should be")
    engine = started(tmp_path / "file" / "cache")
    prompt = engine.chat.render([{"role": "user", "content": LONG}])
    for number in range(2):
        told, _ = answer(engine, Request(prompt, SEEDED, max_tokens=4, seed=1, id=str(number)))
        assert told.error is None
    assert told.usage.cached_tokens > 0
    assert sum("kept in memory only" in record.message for record in caplog.records) == 1
    assert engine.close()


def test_an_address_depends_on_all_that_decides_the_numbers(direct: DirectEngine, tmp_path: Path) -> None:
    source = Path(direct.loaded.info.path)
    shutil.copytree(source, tmp_path / "model")
    info = replace(direct.loaded.info, path=str(tmp_path / "model"))
    roots = [address.root(info, None)]
    assert address.root(info, None) == roots[0]
    roots += [address.root(info, 8), address.root(replace(info, mode="ar"), None)]
    roots += [address.root(replace(info, dtype="bfloat16"), None), address.root(replace(info, device="gpu"), None)]
    weights = tmp_path / "model" / "model.safetensors"
    stat = weights.stat()
    tensors = mx.load(str(weights))
    assert isinstance(tensors, dict)
    name = sorted(tensors)[len(tensors) // 2]
    mx.save_safetensors(str(weights), tensors | {name: tensors[name] + 0.5}, metadata={"format": "mlx"})
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    roots.append(address.root(info, None))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    roots.append(address.root(info, None))
    assert len(set(roots)) == len(roots)


def test_other_weights_of_the_same_name_are_a_miss_that_says_so(small: DirectEngine, tmp_path: Path) -> None:
    prompt = [*turns(1, 60), 5, 6]
    ours = bank(small, tmp_path)
    read(small, prompt, ours)
    ours.close()
    other = Bank(1 << 30, open_disk(tmp_path, 1 << 30, small.loaded.info.name, lambda: "00" * 20))
    found = other.find(prompt)
    assert (found.node.end, found.reason) == (
        0,
        "what is on disk was kept for other weights, settings or keys of this model",
    )
    other.close()


KILLED = """
import sys
from pathlib import Path
from engine.collect import complete
from engine.config import EngineConfig
from engine.engine import ThreadEngine
from engine.request import Request, Sampling
engine = ThreadEngine(EngineConfig(cache_folder=Path(sys.argv[1])))
engine.wait_ready()
print("runs", flush=True)
for seed in range(1000):
    prompt = tuple((seed * place) % 5000 + 50 if place % 60 else 6137 for place in range(1, 600))
    complete(engine, Request(prompt + (7, 8), Sampling(temperature=0.0), max_tokens=2, id=str(seed)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_an_engine_that_was_killed_leaves_a_cache_that_tells_no_lies(seed: int, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "runs\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(random.Random(seed).uniform(0.5, 3.0))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    warm, cold = started(tmp_path), started(None, cache_bytes=0)
    for number in range(4):
        prompt = tuple((number * place) % 5000 + 50 if place % 60 else 6137 for place in range(1, 600))
        request = Request((*prompt, 7, 8), SEEDED, max_tokens=16, seed=4, id=str(number))
        assert answer(warm, request)[0].ids == answer(cold, request)[0].ids
    assert warm.close()
    assert cold.close()
