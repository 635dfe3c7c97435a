"""Requests of different scopes share no prefix, in memory or on disk, and those of one scope do."""

from pathlib import Path

import pytest
from tiny_models import EOS

from engine.caches.bank import Bank, open_bank
from engine.config import EngineConfig
from engine.direct import DirectEngine
from engine.prefill import Prefill
from engine.request import Request
from engine.row import Row
from engine.selftest.states import difference

PROMPT = [*range(200), EOS, *range(150, 250), EOS, 7, 8]
CHECKPOINT = len(PROMPT) - 2


def read(engine: DirectEngine, bank: Bank | None, scope: str = "", top: int | None = None) -> Prefill:
    request = Request(tuple(PROMPT), cache_scope=scope, prompt_logprobs=top)
    row = Row(request, 0, "mtp", engine.loaded.chat, 2048, lambda event: None)
    prefill = Prefill(engine.loaded.spec, row, bank, engine.loaded.chat.eos_ids)
    while not prefill.finished:
        prefill.advance(97)
    return prefill


def opened(engine: DirectEngine, folder: Path | None) -> Bank:
    bank = open_bank(EngineConfig(cache_folder=folder), engine.loaded.info)
    assert bank is not None
    return bank


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_read_for_another_scope_is_read_anew(small: DirectEngine, tmp_path: Path, on_disk: bool) -> None:
    bank = opened(small, tmp_path if on_disk else None)
    for scope in ("", "a" * 32, "b" * 32):
        assert bank.known(PROMPT, scope) == 0
        assert bank.ends(PROMPT, scope) == []
        assert read(small, bank, scope).cached == 0
        warm = read(small, bank, scope)
        assert warm.cached == bank.known(PROMPT, scope) == CHECKPOINT
        assert max(difference(warm.rows().state, read(small, None).rows().state)) < 1e-4
    bank.close()


def test_scopes_are_kept_apart_over_a_restart(small: DirectEngine, tmp_path: Path) -> None:
    before = opened(small, tmp_path)
    for scope in ("a" * 32, "b" * 32):
        read(small, before, scope)
    before.close()
    after = opened(small, tmp_path)
    assert [after.known(PROMPT, scope) for scope in ("", "a" * 32, "b" * 32, "c" * 32)] == [
        0,
        CHECKPOINT,
        CHECKPOINT,
        0,
    ]
    assert read(small, after, "a" * 32).cached == CHECKPOINT
    assert read(small, after, "c" * 32).cached == 0
    after.close()


def test_one_budget_holds_for_all_scopes(small: DirectEngine) -> None:
    one = opened(small, None)
    read(small, one, "a")
    tight = Bank(2 * one.nbytes)
    for scope in "abcdefgh":
        read(small, tight, scope)
        assert tight.nbytes <= 2 * one.nbytes
    tight.clear()
    assert tight.nbytes == 0
    assert tight.find(PROMPT, scope="h").node.end == 0


def test_a_prompt_that_is_scored_leaves_its_checkpoints_in_its_own_scope(small: DirectEngine) -> None:
    bank = opened(small, None)
    read(small, bank, "a", top=0)
    assert [bank.known(PROMPT, scope) for scope in ("", "a", "b")] == [0, CHECKPOINT, 0]
