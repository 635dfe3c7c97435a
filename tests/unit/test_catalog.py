"""The catalog's data and its advice, and what is said to fit a machine's memory."""

import re
from pathlib import Path
from typing import Any

import pytest

from engine import device
from engine.caches.capacity import capacity
from engine.catalog import GIB, advised, catalog, rules
from engine.fits import CONTEXT, fit, fit_by_peak
from engine.hub import is_repository
from engine.memory import STATES, MemoryPlan, RowCost
from mtplx_tui.models_page.shelf import shelf

CHIPS = [None, "m1", "m2", "m3", "m4", "m5", "intel"]


def test_each_model_has_what_the_screens_show() -> None:
    assert len({model.repo for model in catalog()}) == len(catalog()) >= 20
    for model in catalog():
        assert is_repository(model.repo)
        assert 10**9 < model.size < 10**12
        assert GIB < model.peak < 200 * GIB
        assert model.head.startswith("mtp")
        assert re.match(r"\d-bit|ternary", model.quantization)
        assert model.context is None or model.context >= 4096


@pytest.mark.parametrize("chip", CHIPS)
def test_some_rule_holds_for_every_machine_and_none_advises_what_can_not_run(chip: str | None) -> None:
    known = {model.repo: model for model in catalog()}
    assert all(repo in known for rule in rules() for repo in rule.repos)
    for gib in (4, 8, 16, 24, 31, 32, 48, 64, 96, 128, 192, 256, 512):
        assert any(rule.holds(gib * GIB, chip) for rule in rules())
        for repo in advised(gib * GIB, chip):
            assert known[repo].peak <= gib * GIB
            assert repo.endswith("-FP16") == (chip in ("m1", "m2"))


@pytest.mark.parametrize(
    ("gib", "chip", "first"),
    [
        (8, "m4", "Qwen3.5-4B-MTPLX-Optimized-Speed"),
        (24, "m4", "Ternary-Bonsai-2-27B-MTPLX-Optimized-Speed"),
        (24, "m1", "Qwen3.5-9B-MTPLX-Optimized-Speed-FP16"),
        (36, "m3", "Qwen3.8-27B-MTPLX-Optimized-Speed"),
        (64, "m2", "Qwen3.8-27B-MTPLX-Optimized-Speed-FP16"),
        (96, "m4", "Qwen3.8-Flash-Next-MTPLX-Bare-Speed"),
        (128, "m4", "Qwen3.8-Flash-Next-MTPLX-Optimized-Speed"),
        (512, "m3", "Qwen3.8-Flash-Next-MTPLX-Optimized-Speed"),
    ],
)
def test_what_is_advised_first(gib: int, chip: str, first: str) -> None:
    assert advised(gib * GIB, chip)[0] == f"Youssofal/{first}"


def test_nothing_is_advised_on_intel() -> None:
    assert advised(64 * GIB, "intel") == ()


@pytest.mark.parametrize(("machine", "verdict"), [(9, "no"), (10, "tight"), (14, "tight"), (15, "yes"), (99, "yes")])
def test_a_measured_peak_wants_half_as_much_again(machine: int, verdict: str) -> None:
    assert fit_by_peak(10 * GIB, machine * GIB, CONTEXT).verdict == verdict


TOKEN, RECURRENT, LONGEST = 1000, 5000, 100_000


@pytest.mark.parametrize("context", [1000, 30_000, 100_000])
@pytest.mark.parametrize("weights", [0, 10**8, 5 * 10**8, 9 * 10**8, 10**9])
def test_what_fits_is_what_the_engine_would_take(weights: int, context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.fits.sys.platform", "darwin")
    room = fit(weights, TOKEN, RECURRENT, LONGEST, context, 10**9)
    if weights + 2 * capacity(1) * TOKEN > 0.9 * 10**9:
        assert room.verdict == "no"
        return
    plan = MemoryPlan(10**9, weights, RowCost(TOKEN, STATES * RECURRENT), LONGEST)
    assert room.longest == plan.most_tokens
    assert room.verdict == ("yes" if plan.most_tokens >= context else "tight")
    assert room.needed is not None
    assert room.needed > weights


def test_keys_and_values_take_twice_as_much_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.fits.cuda_is_used", lambda: False)
    needed: dict[str, int] = {}
    for system in ("linux", "darwin"):
        monkeypatch.setattr("engine.fits.sys.platform", system)
        found = fit(0, TOKEN, 0, LONGEST, 50_000, 10**10).needed
        assert found is not None
        needed[system] = found
    assert needed["linux"] == 2 * needed["darwin"]


def test_an_unknown_cache_is_not_guessed() -> None:
    assert fit(10**8, None, None, 4096, 1000, 10**9).verdict == "unknown"
    assert fit(10**10, None, None, 4096, 1000, 10**9).verdict == "no"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_the_shelf_begins_with_what_is_here_and_knows_the_bundled_model(cache: Path) -> None:
    rows = shelf()
    first = rows[0]
    assert (first.name, first.where, first.tier, first.fits) == ("demo-13m", "bundled", "verified", "yes")
    assert first.fit_memory == device.prepare().memory
    assert [row.where for row in rows].index("catalog") == len([row for row in rows if row.here])
    assert {row.name for row in rows if row.where == "catalog"} == {model.repo for model in catalog()}
    assert len({row.name for row in rows}) == len(rows)


def test_the_shelf_tells_what_was_begun_and_what_is_broken(cache: Path) -> None:
    begun = catalog()[0].repo
    blobs = cache / f"models--{begun.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "ab.incomplete").write_bytes(bytes(1000))
    snapshot = cache / "models--maker--broken" / "snapshots" / "c"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").write_bytes(b"x")
    (cache / "models--maker--broken" / "refs").mkdir()
    (cache / "models--maker--broken" / "refs" / "main").write_text("c")
    rows: dict[str, Any] = {row.name: row for row in shelf()}
    assert (rows[begun].where, rows[begun].come, rows[begun].size) == ("partly", 1000, catalog()[0].size)
    assert rows["maker/broken"].where == "cache"
    assert "model_type" in rows["maker/broken"].problem


def test_a_shorter_context_fits_more(cache: Path) -> None:
    assert shelf(500)[0].fit_context == 500
    assert (shelf(500)[0].needed or 0) < (shelf()[0].needed or 0)
