"""The speed benchmark's report: its names, its rows, and that every contender said the same. No figure is asserted."""

import json

import pytest

from engine import bench
from engine.config import EngineConfig


@pytest.mark.slow
def test_the_report_has_the_names_that_other_tools_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setattr(bench, "PROMPTS", bench.PROMPTS[:2])
    report = json.loads(json.dumps(bench.bench_speed(EngineConfig())))
    assert report["model"] == "demo-13m"
    assert report["identical_text"] is True
    assert report.keys() >= {"device", "blas", "ratio_best_vs_peer", "ratio_best_vs_ar", "repeats", "max_tokens"}
    assert [(row["engine"], row["mode"], row["depth"]) for row in report["rows"]] == [
        ("mlx-lm", "ar", 0),
        ("mtplx", "ar", 0),
        *(("mtplx", "mtp", depth) for depth in (1, 2, 3, 4, 5, 6, "auto")),
    ]
    for row in report["rows"]:
        rate = row["decode_tok_s"]
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
        assert row["tokens_per_step"] >= 1
