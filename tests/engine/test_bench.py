"""The benchmarks' results: their names, their rows, and that every contender said the same. No figure is asserted."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.bench.context import ContextResult, bench_context, context_report
from engine.bench.report import as_dict, as_markdown, as_text
from engine.bench.runs import OURS, PEER
from engine.bench.shapes import DEMO_VOCABULARY, Shape
from engine.bench.speed import bench_speed, speed_report
from engine.bench.step import bench_step, step_report
from engine.config import EngineConfig
from engine.errors import BadRequestError
from engine.prompts import KINDS

TINY = Shape(4, 64, 64, 2, 1, 32, 2, 2, 32, vocabulary=DEMO_VOCABULARY, context=320, tied=True)
FEW = {kind: prompts[:1] for kind, prompts in KINDS.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    """A random model of four layers."""
    from engine.bench.random_models import write

    folder = tmp_path_factory.mktemp("random") / "tiny"
    write(folder, TINY)
    return EngineConfig(str(folder))


def test_speed_has_the_names_that_other_tools_read_and_a_part_for_each_kind() -> None:
    result = bench_speed(EngineConfig(), kinds=FEW, depths=(0, 3, None), repeats=1, tokens=20)
    report = json.loads(json.dumps(as_dict(result)))
    assert report["model"] == "demo-13m"
    assert (report["identical_text"], report["different"]) == (True, [])
    assert report.keys() >= {"device", "blas", "measured_at", "ratio_best_vs_peer", "ratio_best_vs_ar"}
    assert (report["repeats"], report["max_tokens"], report["prompts"]) == (1, 20, 3)
    contenders = [("mlx-lm", "ar", 0), ("mtplx", "ar", 0), ("mtplx", "mtp", 3), ("mtplx", "mtp", "auto")]
    assert set(report["kinds"]) == {"prose", "code", "copy"}
    for rows in (report["rows"], *(kind["rows"] for kind in report["kinds"].values())):
        assert [(row["engine"], row["mode"], row["depth"]) for row in rows] == contenders
        for row in rows:
            rate = row["decode_tok_s"]
            assert 0 < rate["min"] <= rate["q1"] <= rate["median"] <= rate["q3"] <= rate["max"]
            assert row["tokens_per_step"] >= 1
    for kind in report["kinds"].values():
        assert kind["best"] in (3, "auto")
        assert kind["best_fixed"] in (0, 3)
        assert kind["tokens"] > 16
        assert min(kind[name]["median"] for name in ("auto_vs_best_fixed", "auto_vs_ar", "best_vs_peer")) > 0
    check_receipts(report["receipts"], "speed")
    assert [prompts["name"] for prompts in report["receipts"]["prompts"]] == list(KINDS)
    text = "\n".join(as_text(speed_report(result)))
    assert "Identical text: yes" in text
    assert "auto / best D" in text


def check_receipts(receipts: dict[str, Any], benchmark: str) -> None:
    """Everything that a figure has to come with, and nothing about where the user keeps files."""
    assert receipts["benchmark"] == benchmark
    assert receipts["machine"]["versions"].keys() >= {"mlx", "mlx-lm", "mtplx-tui"}
    assert receipts["machine"].keys() >= {"kind", "name", "blas", "cores", "memory_bytes", "system", "python"}
    assert receipts["engine"]["profile"]["name"] == "turbo"
    assert all(len(prompts["sha256"]) == 64 and prompts["count"] for prompts in receipts["prompts"])
    assert receipts["date"].endswith("+00:00")
    assert isinstance(receipts["seed"], int)
    assert receipts["settings"]
    assert "path" not in receipts["model"]
    assert "model" not in receipts["engine"]


@pytest.mark.slow
def test_every_answer_to_a_prompt_is_of_its_kind() -> None:
    """Where one were not, its part of the benchmark would measure something else."""
    from engine.bench.runs import GREEDY, rendered
    from engine.direct import DirectEngine
    from engine.request import Request

    engine = DirectEngine(EngineConfig())
    for kind, prompts in KINDS.items():
        for prompt in prompts:
            answer = engine.run([Request(rendered(engine.loaded.chat, prompt), GREEDY, max_tokens=256)])[0]
            assert answer.finish_reason == "stop"
            if kind == "prose":
                assert answer.text.count(". ") >= 5
                assert "```" not in answer.text
            if kind == "code":
                assert answer.text.strip().startswith("```python\ndef ")
            if kind == "copy":
                given = " ".join(text for _, text in prompt).lower()
                words = answer.text.replace("|", " ").replace("---", " ").split()
                assert sum(word.lower() in given for word in words) > 0.8 * len(words)


def test_with_synthetic_acceptance_no_text_is_compared_and_the_report_says_so(tiny: EngineConfig) -> None:
    config = replace(tiny, acceptance=0.9)
    result = bench_speed(config, kinds={"code": KINDS["code"][:1]}, depths=(0, 2, None), repeats=1, tokens=32)
    assert result.identical_text is None
    assert result.different == ()
    assert result.receipts.engine["acceptance"] == 0.9
    for text in ("\n".join(as_text(speed_report(result))), as_markdown(speed_report(result))):
        assert "SYNTHETIC" in text
        assert "Texts were not compared" in text
        assert "Identical text" not in text


def test_step_gives_every_stage_at_every_depth(tiny: EngineConfig) -> None:
    result = bench_step(tiny, depths=(0, 2), steps=6)
    assert [cost.depth for cost in result.depths] == [0, 2]
    report = json.loads(json.dumps(as_dict(result)))
    for cost in report["depths"]:
        parts = ("wall", "build", "dispatch", "wait", "deliver", "draft", "verify", "accept", "advance", "read", "busy")
        for part in parts:
            assert cost[f"{part}_ms"]["min"] >= 0
        assert cost["wall_ms"]["median"] > 0
        assert cost["verify_ms"]["median"] > 0
        assert 0 <= cost["idle_share"]["min"] <= cost["idle_share"]["max"] <= 1
        assert cost["tokens_per_step"] >= 1
    assert report["depths"][1]["draft_ms"]["median"] > 10 * report["depths"][0]["draft_ms"]["median"]
    check_receipts(report["receipts"], "step")
    assert "idle share" in "\n".join(as_text(step_report(result)))


def test_with_every_draft_accepted_a_step_gives_all_it_can(tiny: EngineConfig) -> None:
    result = bench_step(replace(tiny, acceptance=1.0), depths=(2,), steps=9)
    assert result.depths[0].tokens_per_step == pytest.approx(3.0)
    assert "SYNTHETIC" in "\n".join(as_text(step_report(result)))


def test_context_reads_each_length_and_shortens_what_does_not_fit(tiny: EngineConfig) -> None:
    result = bench_context(tiny, lengths=(100, 200, 5000, 6000), decoded=8, repeats=1)
    assert [(cost.tokens, cost.engine) for cost in result.costs] == [
        (tokens, engine) for tokens in (100, 200, 312) for engine in (OURS, PEER)
    ]
    for cost in result.costs:
        assert cost.missing is None
        assert cost.prefill_tok_s is not None
        assert cost.ttft_s is not None
        assert cost.prefill_tok_s.median == pytest.approx(cost.tokens / cost.ttft_s.median)
        assert cost.decode_tok_s is not None
        assert cost.memory_bytes is not None
        assert cost.memory_bytes > 0
    assert all(ratio is not None and ratio.median > 0 for ratio in result.prefill_vs_peer.values())
    check_receipts(as_dict(result.receipts), "context")


def test_a_second_turn_reuses_the_first_from_memory_and_from_disk_and_says_the_same(tiny: EngineConfig) -> None:
    result = bench_context(replace(tiny, acceptance=0.9), lengths=(100, 300), decoded=8, repeats=1)
    turn = result.second_turn
    assert 250 < turn.first < 300, "as far as the context of 320 goes"
    assert turn.first < turn.prompt <= 320 - 8
    assert 0.9 * turn.first < turn.cached_disk <= turn.cached_memory < turn.prompt
    assert turn.same_text
    assert turn.disk_vs_cold.median == pytest.approx(turn.disk_s.median / turn.cold_s.median)
    text = "\n".join(as_text(context_report(result)))
    assert "on disk, after a restart" in text
    assert "the same text in all three" in text


def test_a_peer_that_would_take_too_long_is_left_out_with_the_reason(
    tiny: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.bench.context.PEER_S", 0.0)
    result: ContextResult = bench_context(tiny, lengths=(100,), decoded=8, repeats=1)
    ours, peer = result.costs
    assert ours.ttft_s is not None
    assert peer.ttft_s is peer.prefill_tok_s is peer.memory_bytes is None
    assert peer.missing is not None
    assert "at most 0 s" in peer.missing
    assert result.prefill_vs_peer == {100: None}
    text = "\n".join(as_text(context_report(result)))
    assert "mlx-lm at 100 tokens: n/a, a run would take about" in text


def test_a_length_too_short_to_measure_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="at least 64"):
        bench_context(EngineConfig(str(tmp_path / "nowhere")), lengths=(512, 8))
