"""Shell completion of names: what is offered, and that nothing heavy is loaded for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.catalog import catalog
from mtplx_tui.saved_settings import SETTINGS

HERE, BEGUN = "maker/model-4bit", "maker/other-4bit"
HEAVY = {"mlx", "textual", "transformers", "fastapi", "httpx"}
CODE = """
import os, sys
from mtplx_tui.cli import run
for line in sys.argv[1:]:
    os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TYPER_COMPLETE_ARGS": line}
    try:
        run([])
    except SystemExit:
        print(f"-- {line}")
print(sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is offered behind each line; under `modules`, what was imported for all of them together."""
    hub = tmp_path_factory.mktemp("hub")
    whole = [(HERE, f"snapshots/abc/{name}") for name in ("model.safetensors", "config.json")]
    for repo, file in (*whole, (BEGUN, "blobs/ab.incomplete")):
        path: Path = hub / f"models--{repo.replace('/', '--')}" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    refs = hub / f"models--{HERE.replace('/', '--')}" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    lines = [
        "pull ",
        "pull maker/o",
        "remove ",
        "remove maker/m",
        "settings get de",
        "inspect maker/",
        "serve --model de",
    ]
    env = os.environ | {"HF_HUB_CACHE": str(hub), "_MTPLX_TUI_COMPLETE": "complete_bash"}
    argv = [sys.executable, "-c", CODE, *(f"mtplx-tui {line}" for line in lines)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith("-- "):
            found[line.removeprefix("-- mtplx-tui ")] = names
            names = []
        else:
            names.append(line)
    return {**found, "modules": names}


def test_pull_offers_the_catalog_and_what_was_begun(offered: dict[str, list[str]]) -> None:
    assert set(offered["pull "]) == {BEGUN, *(model.repo for model in catalog())}
    assert offered["pull maker/o"] == [BEGUN]


def test_remove_offers_what_lies_in_the_cache(offered: dict[str, list[str]]) -> None:
    assert set(offered["remove "]) == {HERE, BEGUN}
    assert offered["remove maker/m"] == [HERE]


def test_names_of_models_and_settings_are_offered(offered: dict[str, list[str]]) -> None:
    assert offered["inspect maker/"] == [HERE]
    assert offered["serve --model de"] == ["demo-13m"]
    assert set(offered["settings get de"]) == {each.name for each in SETTINGS if each.name.startswith("de")} != set()


def test_nothing_heavy_is_loaded_for_it(offered: dict[str, list[str]]) -> None:
    (modules,) = offered["modules"]
    assert [name for name in HEAVY if f"'{name}'" in modules] == []
