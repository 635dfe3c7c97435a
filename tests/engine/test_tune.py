"""Tuning: what is measured, what is decided, and what becomes of a kept record, whatever happened to its file."""

import json
import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tune as tuning_module
from engine.chat import ChatFormat
from engine.config import EngineConfig
from engine.device import device_name
from engine.engine import ThreadEngine
from engine.errors import EngineError, NoMTPHeadError
from engine.events import FinishEvent, QueuedEvent, Span, Stats, StepEvent, TokenEvent, Usage
from engine.handle import EventSink
from engine.models.locate import locate
from engine.profiles import PROFILES
from engine.prompts import PROMPTS
from engine.request import Request
from engine.tune import measure, tune, verdict
from engine.tuned import DepthRow, Range, Tuned, Tuning
from engine.tuned_files import find, fingerprint, remove, save, versions


class Clockwork:
    """Stands where an engine does in `measure`, with a clock of its own: each step of depth d takes seconds[d].

    All drafts hold. `texts` are the tokens of an answer by depth, where they are not depth 0's.
    """

    def __init__(self, chat: ChatFormat, seconds: list[float], texts: dict[int, tuple[int, ...]] | None = None) -> None:
        self.chat = chat
        self.asked: list[int] = []
        self._seconds = seconds
        self._texts = texts or {}
        self._now = 0.0

    def submit(self, request: Request, on_event: EventSink) -> None:
        depth, most = request.depth or 0, request.max_tokens or 0
        self.asked.append(depth)
        ids = self._texts.get(depth, tuple(range(100)))[:most]
        name = request.id
        on_event(QueuedEvent(name, self._now, request.source, len(request.prompt), most, 0))
        steps = [ids[at : at + depth + 1] for at in range(0, len(ids), depth + 1)]
        for number, made in enumerate(steps):
            self._now += self._seconds[depth]
            accepted = len(made) - 1
            on_event(
                StepEvent(
                    name, self._now, number + 1, depth, accepted, tuple("x" * len(made)), None,
                    self._seconds[depth], 1, 0,
                )
            )  # fmt: skip
            on_event(TokenEvent(name, self._now, made, (Span("text", "x"),)))
        held = tuple(sum(len(made) > place + 1 for made in steps) for place in range(depth))
        stats = Stats(mode="mtp", steps=len(steps), drafted_by_depth=held, accepted_by_depth=held)
        on_event(FinishEvent(name, self._now, "length", Usage(), stats))


class Failing(Clockwork):
    def submit(self, request: Request, on_event: EventSink) -> None:
        on_event(FinishEvent(request.id, 0.0, "error", Usage(), Stats(), "the device went away"))


def rows_of(engine: Any, tokens: int = 40) -> tuple[DepthRow, ...]:
    return measure(engine, lambda line: None, PROMPTS[:2], (tokens, 3))


def test_figures_are_those_of_the_steps(engine: ThreadEngine) -> None:
    seconds = [0.1, 0.12, 0.14, 0.15, 0.17, 0.18, 0.19, 0.20, 0.21]
    rows = rows_of(Clockwork(engine.chat, seconds))
    assert [row.depth for row in rows] == list(range(9))
    assert [row.seconds_per_step for row in rows] == pytest.approx(seconds)
    assert rows[0].tok_s == Range(10.0, 10.0, 10.0)
    assert rows[3].tok_s.median == pytest.approx(4 / 0.15, abs=0.01)
    assert (rows[0].acceptance, rows[3].acceptance) == (None, 1.0)
    assert rows[3].acceptance_by_place == (1.0, 1.0, 1.0)
    assert (rows[0].tokens_per_step, rows[3].tokens_per_step) == (1.0, 4.0)
    assert all(row.identical_text for row in rows)


def test_deeper_is_not_tried_once_two_depths_in_a_row_were_slower(engine: ThreadEngine) -> None:
    slower = Clockwork(engine.chat, [0.1, 0.12, 0.30, 0.60, 9.0, 9.0, 9.0, 9.0, 9.0])
    assert [row.depth for row in rows_of(slower)] == [0, 1, 2, 3]
    one_dip = Clockwork(engine.chat, [0.1, 0.12, 0.30, 0.15, 0.2, 0.3, 0.5, 9.0, 9.0])
    assert len(rows_of(one_dip)) > 4
    assert slower.asked[-8:] == [0, 0, 1, 1, 2, 2, 3, 3], "a round has every depth in it"


def test_a_depth_with_another_text_is_left_out_and_named(engine: ThreadEngine) -> None:
    seconds = [0.1, 0.12, 0.14, 0.15, 0.25, 0.4, 0.9, 2.0, 3.0]
    other = tuple(range(20)) + (7,) * 80
    rows = rows_of(Clockwork(engine.chat, seconds, {3: other}))
    assert [row.depth for row in rows if not row.identical_text] == [3]
    best, why = verdict(rows)
    assert best == 2
    assert "left out, since its text differs from plain decoding's: depth 3" in why
    best, why = verdict([replace(row, identical_text=row.depth == 0) for row in rows])
    assert best == 0
    assert "no depth gives plain decoding's text; nothing saved" in why


def test_an_answer_that_fails_or_is_too_short_ends_the_measurement_in_words(engine: ThreadEngine) -> None:
    with pytest.raises(EngineError, match="the device went away"):
        rows_of(Failing(engine.chat, []))
    with pytest.raises(EngineError, match="at depth 2"):
        rows_of(Clockwork(engine.chat, [0.1] * 9), tokens=3)


def row(depth: int, low: float, middle: float, high: float, acceptance: float = 0.8) -> DepthRow:
    return DepthRow(depth, Range(middle, low, high), 0.01, 1.0, acceptance, (acceptance,) * depth, True)


PLAIN, NOISY_PLAIN, SLOW_PLAIN = row(0, 80, 81, 82), row(0, 60, 81, 90), row(0, 8.0, 8.1, 8.2)
VERDICTS: list[tuple[list[DepthRow], int, str]] = [
    (
        [PLAIN, row(1, 119, 120, 121), row(2, 145, 147, 150)],
        2,
        "depth 2 makes 147 tok/s, 1.81 times plain decoding's 81",
    ),
    (
        [PLAIN, row(1, 70, 71, 72), row(2, 79, 80, 81)],
        0,
        "plain decoding is as fast here: 81 tok/s against 80 at depth 2; nothing saved",
    ),
    (
        [PLAIN, row(1, 60, 61, 62), row(2, 50, 51, 52)],
        0,
        "plain decoding is faster here: 81 tok/s against 61 at depth 1; nothing saved",
    ),
    (
        [NOISY_PLAIN, row(1, 99, 100, 101)],
        0,
        "as fast here: 81 tok/s against 100 at depth 1, and repeats are up to 30 apart; nothing saved",
    ),
    ([SLOW_PLAIN, row(1, 9.9, 10.0, 10.1)], 1, "10.0 tok/s, 1.23 times plain decoding's 8.1"),
    ([PLAIN, row(1, 119, 120, 121, acceptance=0.02)], 0, "only 2.0% of its drafts held"),
    ([PLAIN, row(1, 119, 120, 121, acceptance=0.0)], 0, "only 0.0% of its drafts held"),
]


@pytest.mark.parametrize(("rows", "best", "why"), VERDICTS, ids=[why for _, _, why in VERDICTS])
def test_a_depth_is_kept_only_where_it_wins_by_more_than_the_repeats_differ(
    rows: list[DepthRow], best: int, why: str
) -> None:
    found, words = verdict(rows)
    assert found == best
    assert why in words


def test_the_real_engine_is_measured_as_it_is(engine: ThreadEngine) -> None:
    rows = measure(engine, lambda line: None, PROMPTS[:1], (16, 1))
    assert [row.depth for row in rows] == list(range(len(rows)))
    assert len(rows) >= 3
    assert all(row.identical_text and row.seconds_per_step > 0 and row.tok_s.median > 0 for row in rows)
    assert all((row.acceptance or 0) > 0.3 and row.tokens_per_step > 1 for row in rows[1:])


@pytest.mark.slow
def test_tuning_the_bundled_model_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_module, "ROUND_S", 0.1)
    lines: list[str] = []
    found = tune(EngineConfig(), lines.append)
    assert (found.model, found.profile, found.kv_bits) == ("demo-13m", "turbo", None)
    assert (found.device, found.versions) == (device_name(), versions())
    assert found.saved == (found.best_depth > 0)
    assert all(row.identical_text for row in found.rows)
    assert lines[0] == "loading the model"
    assert sum(line.startswith("depth ") for line in lines) == len(found.rows)


def test_a_model_without_a_head_can_not_be_tuned(headless: Path) -> None:
    with pytest.raises(NoMTPHeadError):
        tune(EngineConfig(model=str(headless)))


@pytest.fixture
def headless(tmp_path: Path) -> Path:
    """The bundled model's folder without its head."""
    import mlx.core as mx

    source = locate(None).path
    folder = tmp_path / "headless"
    folder.mkdir()
    for file in source.iterdir():
        if file.name.endswith(".safetensors"):
            tensors = mx.load(str(file))
            assert isinstance(tensors, dict)
            kept = {name: array for name, array in tensors.items() if "mtp" not in name}
            if kept:
                mx.save_safetensors(str(folder / file.name), kept, {"format": "mlx"})
        elif file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture
def kept() -> Tuning:
    """A record of the bundled model, as tune would make it here."""
    rows = (row(0, 80, 81, 82, 0.0), row(1, 119, 120, 121), replace(row(2, 145, 147, 150), identical_text=False))
    files = locate(None)
    return Tuning(
        files.name, fingerprint(files.path), device_name(), versions(), "turbo", None, 1_700_000_000, rows, 1, True, "x"
    )


def test_what_is_saved_is_found_again_for_the_same_settings_only(tmp_path: Path, kept: Tuning) -> None:
    folder = tmp_path / "new" / "tunings"
    assert find(folder, EngineConfig()) is None
    file = save(folder, kept)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert find(folder, EngineConfig()) == kept
    assert find(folder, EngineConfig(model="demo-13m")) == kept
    assert find(folder, EngineConfig(model=str(locate(None).path))) == kept
    assert find(folder, EngineConfig(profile=PROFILES["exact"])) is None
    assert find(folder, EngineConfig(kv_bits=8)) is None
    assert find(folder, EngineConfig(model="another")) is None
    other = replace(kept, kv_bits=8, why="in 8 bits")
    save(folder, other)
    assert find(folder, EngineConfig(kv_bits=8)) == other
    save(folder, replace(kept, best_depth=2))
    again = find(folder, EngineConfig())
    assert again is not None
    assert again.best_depth == 2
    assert len(list(folder.iterdir())) == 2, "one file each, and nothing left over"
    assert remove(folder, kept)
    assert not remove(folder, kept)
    assert find(folder, EngineConfig()) is None


def test_the_engine_starts_from_a_plain_part_of_it(kept: Tuning) -> None:
    tuned = kept.tuned()
    assert tuned == Tuned(1, (0.01, 0.01, 0.01), (0.8, 0.8), excluded=(2,))
    config = EngineConfig(tuned=tuned)
    assert pickle.loads(pickle.dumps(config)) == config


FOREIGN: dict[str, Callable[[Tuning], Tuning]] = {
    "other files": lambda kept: replace(kept, fingerprint="0" * 64),
    "another device": lambda kept: replace(kept, device="metal (M9)"),
    "other versions": lambda kept: replace(kept, versions={**kept.versions, "mlx": "0.1"}),
}


@pytest.mark.parametrize("foreign", FOREIGN)
def test_a_record_of_something_else_is_passed_over_with_a_line_in_the_log(
    tmp_path: Path, kept: Tuning, foreign: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = save(tmp_path, FOREIGN[foreign](kept))
    assert find(tmp_path, EngineConfig()) is None
    assert str(file) in caplog.text
    assert "does not hold here" in caplog.text


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda record: [record],
    "no rows": lambda record: record | {"rows": []},
    "a gap": lambda record: record | {"rows": [record["rows"][0], record["rows"][2]]},
    "a best depth that was not measured": lambda record: record | {"best_depth": 3},
    "no best depth": lambda record: record | {"best_depth": 0},
    "not saved": lambda record: record | {"saved": False},
    "text for a number": lambda record: record | {"best_depth": "1"},
    "a profile that is a number": lambda record: record | {"profile": 4},
    "no fingerprint": lambda record: {name: value for name, value in record.items() if name != "fingerprint"},
    "zero seconds": lambda record: record | {"rows": [{**each, "seconds_per_step": 0.0} for each in record["rows"]]},
    "no seconds": lambda record: record | {"rows": [{**e, "seconds_per_step": float("nan")} for e in record["rows"]]},
    "endless": lambda record: record | {"rows": [{**e, "seconds_per_step": float("inf")} for e in record["rows"]]},
    "too few shares": lambda record: record | {"rows": [{**e, "acceptance_by_place": []} for e in record["rows"]]},
    "a share of 7": lambda record: (
        record | {"rows": [{**e, "acceptance_by_place": [7] * e["depth"]} for e in record["rows"]]}
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_passed_over_with_a_line_in_the_log(
    tmp_path: Path, kept: Tuning, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = save(tmp_path, kept)
    file.write_text(json.dumps(DAMAGE[damage](asdict(kept))))
    assert find(tmp_path, EngineConfig()) is None
    assert f"{file} is not a tuning" in caplog.text
    save(tmp_path, kept)
    assert find(tmp_path, EngineConfig()) == kept, "tuning again mends it"


def test_a_cut_file_a_folder_and_a_dead_link_are_passed_over_too(tmp_path: Path, kept: Tuning) -> None:
    whole = save(tmp_path, kept)
    (tmp_path / "0.json").write_bytes(whole.read_bytes()[:200])
    (tmp_path / "1.json").mkdir()
    os.symlink(tmp_path / "nowhere", tmp_path / "2.json")
    (tmp_path / "3.json").write_bytes(b"\xff\xfe\x00" * 1_000_000)
    assert find(tmp_path, EngineConfig()) == kept


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_no_content_of_a_file_is_a_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes | str) -> None:
    folder = tmp_path_factory.mktemp("tunings")
    (folder / "x.json").write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    assert find(folder, EngineConfig()) is None


def test_a_save_that_fails_leaves_nothing_half_done(tmp_path: Path, kept: Tuning) -> None:
    file = save(tmp_path, kept)
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match=file.name):
        save(tmp_path, kept)
    assert list(tmp_path.iterdir()) == [file]


def test_a_model_folder_is_told_from_others_by_its_config_and_its_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(200_000))
    seen = {fingerprint(tmp_path)}
    for at in (0, 199_999):
        changed = bytearray(200_000)
        changed[at] = 1
        weights.write_bytes(changed)
        seen.add(fingerprint(tmp_path))
    weights.write_bytes(bytes(200_001))
    seen.add(fingerprint(tmp_path))
    (tmp_path / "mtp.safetensors").write_bytes(b"head")
    seen.add(fingerprint(tmp_path))
    (tmp_path / "config.json").write_text('{"a": 1}')
    seen.add(fingerprint(tmp_path))
    (tmp_path / "README.md").write_text("words")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 6
