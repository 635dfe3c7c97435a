"""How results are summed up, written as text, Markdown and CSV, and kept."""

import csv
import io
import json
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.receipts import PromptSet, receipts
from engine.bench.report import Report, Table, as_csv, as_dict, as_markdown, as_text
from engine.bench.save import save
from engine.bench.stats import Spread, percentile
from engine.config import EngineConfig

POSITIVE = st.floats(0.001, 1e6)


@pytest.fixture
def report() -> Report:
    kept = receipts(
        "trial", {"name": "org/some model"}, EngineConfig("/home/me/x"), {"repeats": 3}, [PromptSet.of("p", ["a"])]
    )
    rows = (("first | one", 3, Spread.of([1.0, 2.0, 4.0])), ("second", None, None))
    return Report("A trial", kept, (Table("main", "All of it", ("name", "depth", "tok/s"), rows),), ("Mind this.",))


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_a_spread_is_in_order_and_of_all_values(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.min == min(values)
    assert spread.max == max(values)
    ends = (spread.min, spread.q1, spread.median, spread.q3, spread.max)
    assert all(low <= high * (1 + 1e-12) for low, high in pairwise(ends))
    assert spread.values == len(values)


@given(st.lists(POSITIVE, min_size=1, max_size=30), st.sampled_from([0.01, 0.5, 0.95, 1.0]))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], share: float) -> None:
    found = percentile(values, share)
    covered = sum(value <= found for value in values)
    assert covered >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_ratios_are_taken_within_repeats() -> None:
    fast, slow = [10.0, 20.0, 40.0], [5.0, 10.0, 20.0]  # the machine got faster all the while
    assert Spread.of_ratios(fast, slow) == Spread(2.0, 2.0, 2.0, 2.0, 2.0, 3)
    with pytest.raises(ValueError, match="zip"):
        Spread.of_ratios(fast, slow[:2])


def test_text_lines_up_and_says_what_is_unknown(report: Report) -> None:
    lines = as_text(report)
    assert lines[0] == "A trial"
    assert lines[1].startswith("org/some model on ")
    assert not any("SYNTHETIC" in line for line in lines)
    header, first, second = lines[lines.index("All of it") + 1 :][:3]
    assert first == "first | one      3  2.00 (1.50 to 3.00)"
    assert second == "second         n/a                  n/a"
    assert header.index("depth") + len("depth") == first.index("3") + 1
    assert lines[-1] == "Mind this."


def test_figures_of_a_busy_machine_are_marked(report: Report) -> None:
    cores = report.receipts.machine["cores"]
    for load, marked in ((cores + 1.0, True), (cores - 0.5, False), (None, False)):
        lines = as_text(replace(report, receipts=replace(report.receipts, load=load)))
        assert any(line.startswith("BUSY: ") for line in lines) == marked


def test_markdown_has_the_tables_and_the_receipts(report: Report) -> None:
    text = as_markdown(report)
    assert "| name | depth | tok/s |\n|---|---:|---:|\n" in text
    assert "| first \\| one | 3 | 2.00 (1.50 to 3.00) |" in text
    assert "- repeats: 3" in text
    assert "sha256" in text
    assert "/home/me" not in text


def test_csv_reads_back_with_the_spread_in_columns_of_its_own(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(report.tables[0]))))
    first, second = rows
    assert (first["name"], first["tok/s"], first["tok/s q1"], first["tok/s q3"]) == ("first | one", "2.0", "1.5", "3.0")
    assert first["tok/s values"] == "3"
    assert (second["depth"], second["tok/s"], second["tok/s values"]) == ("", "", "")


def test_saving_keeps_all_three_forms_and_never_writes_over_an_earlier_result(report: Report, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Result:
        value: float
        spreads: tuple[Spread, ...]

    folder = tmp_path / "deep" / "results"
    first = save(folder, Result(1 / 3, (Spread.of([1.0]),)), report)
    assert [file.suffix for file in first] == [".json", ".md", ".csv"]
    kept = first[0].read_text()
    assert json.loads(kept)["value"] == 0.33333
    assert json.loads(kept)["spreads"][0]["median"] == 1.0
    second = save(folder, Result(2.0, ()), report)
    assert not set(first) & set(second)
    assert first[0].read_text() == kept
    assert all("org-some-model" in file.name for file in first)


def test_prompts_are_told_apart_by_their_hash_and_not_by_their_name() -> None:
    assert PromptSet.of("a", ["x", "y"]).sha256 == PromptSet.of("b", ["x", "y"]).sha256
    assert len({PromptSet.of("a", prompts).sha256 for prompts in (["x", "y"], ["y", "x"], ["xy"], ["x"])}) == 4


@pytest.mark.parametrize("value", [True, None, "x", 3, 0.1234567, [1.5, (2, None)], {"a": {1: 2.0}}])
def test_results_become_plain_json(value: object) -> None:
    json.loads(json.dumps(as_dict(value)))
