"""The models room: what it lists, what its keys do, and downloads from a hub on this machine."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import ask, until
from hub_stand_in import HubStandIn, served
from scripted_handle import ScriptedHandle
from textual.pilot import Pilot

from engine.errors import EngineError
from engine.hub import folder_of
from engine.models.locate import here
from mtplx_tui.app import MtplxApp
from mtplx_tui.glyphs import ASCII, UNICODE, Glyphs
from mtplx_tui.layout.spans import plain, width_of
from mtplx_tui.models_page.downloads import Download
from mtplx_tui.models_page.page import models_page
from mtplx_tui.models_page.shelf import ModelRow
from mtplx_tui.models_page.view import ORDERS, ModelsView
from mtplx_tui.screens import models
from mtplx_tui.screens.models import ModelsScreen
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.switch import Choice
from mtplx_tui.widgets.lines import Lines

pytestmark = pytest.mark.anyio
MakeApp = Callable[..., MtplxApp]
REPO = "maker/model-4bit"
OTHER = "maker/other-4bit"
SIZE = 3_000_000
FACTS: dict[str, Any] = {"fit_context": 32_768, "fit_memory": 18_000_000_000, "tier": "unverified"}
ROWS = (
    ModelRow("demo-13m", "bundled", "/models/demo-13m", 25_800_000, quantization="none", head="mtp, BF16",
             family="qwen3_5", context=4096, kv_bytes_per_token=6144, fits="yes", needed=80_000_000, longest=4096,
             tuned_depth=4, fit_context=4096, fit_memory=18_000_000_000, tier="verified"),
    ModelRow("smollm2-135m", "bundled", problem="it is made of its parts when it is first used"),
    ModelRow("maker/plain-9b", "cache", "/hub/plain", 5_600_000_000, quantization="8-bit affine, groups of 64",
             head="none", fits="tight", needed=18_400_000_000, longest=24_000, **FACTS | {"tier": "no head"}),
    ModelRow(OTHER, "partly", size=8_700_000_000, come=1_000_000_000, quantization="6-bit", head="mtp, 1 layer",
             fits="yes", needed=10_700_000_000, licence="Apache-2.0", **FACTS),
    ModelRow(REPO, "catalog", size=2_600_000_000, quantization="4-bit", head="mtp, 1 layer", fits="yes",
             needed=3_000_000_000, advised=True, **FACTS),
    ModelRow("maker/a-very-large-model-of-another-architecture-8bit", "catalog", size=170_000_000_000,
             quantization="8-bit", head="mtp", family="qwen4_exp", fits="no", needed=146_000_000_000,
             **FACTS | {"tier": "unsupported"}),
)  # fmt: skip


def progress(done: int, total: int, file: str, stage: str = "downloading") -> dict[str, Any]:
    return {"stage": stage, "file": file, "file_done": done // 2, "file_size": total // 2, "done": done,
            "total": total, "rate": 48_000_000.0, "eta": 58.0}  # fmt: skip


COMING = Download(REPO, "running", progress(4_300_000_000, 7_100_000_000, "model-00002-of-00002.safetensors"),
                  {"model-00001-of-00002.safetensors": (9, 9), "model-00002-of-00002.safetensors": (1, 9)})  # fmt: skip
DOWNLOADS = (COMING, Download(OTHER, "queued"), Download("a/b", "paused", progress(1, 2, "f")),
             Download("a/c", "failed", error="The disk is full. " * 20), Download("a/d", "done"))  # fmt: skip


class Switch:
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        self.loaded: list[Choice] = []
        self.unloaded = 0

    def load(self, choice: Choice) -> None:
        if self.loaded:
            raise EngineError("A model is being loaded.")
        self.loaded.append(choice)

    def unload(self) -> None:
        self.unloaded += 1


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same models on every machine."""
    monkeypatch.setattr(models, "shelf", lambda: list(ROWS))
    monkeypatch.setattr(models, "_disk", lambda: "disk: 212.0 GB of 494.0 GB free")


def page(app: MtplxApp) -> str:
    return app.screen.query_one("#page", Lines).text


def told(app: MtplxApp, text: str) -> bool:
    return any(text in note.message for note in app._notifications)


async def enter(pilot: Pilot[None], app: MtplxApp) -> ModelsScreen:
    await pilot.press("f4")
    await until(pilot, lambda: isinstance(app.screen, ModelsScreen) and app.screen._view.every is not None)
    assert isinstance(app.screen, ModelsScreen)
    return app.screen


async def choose(pilot: Pilot[None], room: ModelsScreen, name: str) -> None:
    while (row := room._view.row) is None or row.name != name:
        await pilot.press("down")


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [(80, 21), (120, 37), (109, 30), (200, 60)])
def test_every_line_fits_whatever_is_shown(size: tuple[int, int], glyphs: Glyphs) -> None:
    odd = ModelRow("x/\x1b[31m" + "名前" * 30, "cache", problem="\x1b]52;c;x\x07 broken " * 30)
    views = [
        ModelsView(),
        ModelsView(()),
        ModelsView(ROWS, find="nothing has this"),
        *(ModelsView((odd, *ROWS), order=order, downloads=DOWNLOADS, loaded="demo-13m") for order in ORDERS),
        *(ModelsView((odd, *ROWS), downloads=DOWNLOADS).moved(by) for by in range(7)),
    ]
    for view in views:
        drawn = models_page(view, *size, glyphs)
        assert len(drawn) == size[1]
        assert {width_of(line) for line in drawn} == {size[0]}
        assert not any("\x1b" in plain(line) for line in drawn)


def test_the_chosen_model_stays_chosen_and_in_sight() -> None:
    many = tuple(ModelRow(f"m/{n:03}", "catalog", size=1000 - n) for n in range(200))
    view = ModelsView(many).moved(120)
    for _ in ORDERS:
        text = [plain(line) for line in models_page(view, 80, 21, UNICODE)]
        (chosen,) = [line for line in text if "> " in line]
        assert "m/120" in chosen
        view = view.reordered()


async def test_keys_filter_sort_and_inspect(make_app: MakeApp, fixed: None) -> None:
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        room = await enter(pilot, app)
        await until(pilot, lambda: "LOADED" in page(app))
        await pilot.press("o", "o")
        await until(pilot, lambda: "6 of 6, size" in page(app))
        await pilot.press("slash", *"maker", "space", *"mtp", "enter")
        await until(pilot, lambda: app.screen is room and "3 of 6" in page(app))
        await choose(pilot, room, OTHER)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, PageScreen) and "Apache-2.0" in page(app))
        await pilot.press("escape", "slash", *["backspace"] * 9, "enter")
        await until(pilot, lambda: app.screen is room and "6 of 6" in page(app))
        await pilot.press(*["up"] * 6)
        await pilot.press("i")
        await until(pilot, lambda: isinstance(app.screen, PageScreen) and "MTP head" in page(app))


async def test_another_model_is_loaded_and_unloaded(make_app: MakeApp, handle: ScriptedHandle, fixed: None) -> None:
    app, switch = make_app(), Switch()
    app.services = replace(app.services, switch=switch)
    async with app.run_test(size=(80, 24)) as pilot:
        await ask(pilot, handle, "hello")
        room = await enter(pilot, app)
        await pilot.press("enter")
        await until(pilot, lambda: told(app, "loaded already"))
        await choose(pilot, room, "maker/plain-9b")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not room)
        await pilot.press("n")
        await until(pilot, lambda: app.screen is room)
        assert switch.loaded == []
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not room, "answers run, so it asks")
        await pilot.press("y")
        await until(pilot, lambda: switch.loaded == [Choice("maker/plain-9b", "ar")])
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is not room)
        await pilot.press("y")
        await until(pilot, lambda: told(app, "being loaded"))
        await choose(pilot, room, REPO)
        await pilot.press("enter")
        await until(pilot, lambda: told(app, "d downloads it"))
        await pilot.press("u")
        await until(pilot, lambda: app.screen is not room)
        await pilot.press("y")
        await until(pilot, lambda: switch.unloaded == 1)


async def test_what_must_stay_is_not_deleted(make_app: MakeApp, fixed: None) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        room = await enter(pilot, app)
        await pilot.press("x")
        await until(pilot, lambda: told(app, "u unloads it"))
        await choose(pilot, room, "smollm2-135m")
        await pilot.press("x")
        await until(pilot, lambda: told(app, "comes with the program"))
        await choose(pilot, room, REPO)
        await pilot.press("x")
        await until(pilot, lambda: told(app, "Nothing of"))
        await choose(pilot, room, ROWS[-1].name)
        await pilot.press("d")
        await until(pilot, lambda: told(app, "does not run qwen4_exp"))
        assert room.downloads.items == []


async def test_v_compares_what_is_here_with_the_checksums_that_the_hub_gave(
    make_app: MakeApp, fixed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    name = "maker/plain-9b"
    weights = random.Random(1).randbytes(SIZE)
    blob = folder_of(name) / "blobs" / hashlib.sha256(weights).hexdigest()
    linked = folder_of(name) / "snapshots" / "abc" / "model.safetensors"
    for path in (blob, linked):
        path.parent.mkdir(parents=True)
    blob.write_bytes(weights)
    linked.symlink_to(blob)
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        room = await enter(pilot, app)
        await pilot.press("v")
        await until(pilot, lambda: told(app, "demo-13m comes with the program, so there is no checksum"))
        await choose(pilot, room, name)
        await pilot.press("v")
        await until(pilot, lambda: told(app, f"{name}: 3.0 MB read, every checksum right."))
        blob.write_bytes(weights[:-1] + b"x")
        await pilot.press("v")
        await until(pilot, lambda: told(app, f"{name} is damaged. model.safetensors: its SHA-256 is not the one"))
        assert blob.exists(), "a check changes nothing"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A hub with two models, and an empty cache for this process and those that it starts."""
    cache = str(tmp_path / "hub")
    with served() as hub:
        for seed, repo in enumerate((REPO, OTHER)):
            weights = random.Random(seed).randbytes(SIZE)
            hub.repos[repo] = {"config.json": b'{"model_type": "llama"}', "model.safetensors": weights}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", cache)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", cache)
        rows = [row for row in ROWS if row.name in (REPO, OTHER)]
        monkeypatch.setattr(
            models, "shelf", lambda: [ModelRow(r.name, "cache" if r.name in here() else "catalog", "/x") for r in rows]
        )
        yield hub


async def test_a_download_is_paused_taken_up_again_and_another_waits_for_it(make_app: MakeApp, hub: HubStandIn) -> None:
    hub.hold_after = 2_000_000
    app = make_app()
    async with app.run_test(size=(120, 40)) as pilot:
        room = await enter(pilot, app)
        await pilot.press("d", "down", "d")
        first, second = room.downloads.items
        assert (first.repo, first.state, second.state) == (OTHER, "running", "queued")
        await until(pilot, lambda: first.share and hub.holding.is_set(), "its progress is heard")
        await until(pilot, lambda: "model.safetensors" in page(app) and "queued" in page(app))
        await pilot.press("down", "p", "up", "p")
        assert (first.state, second.state) == ("paused", "paused")
        await until(pilot, lambda: "paused" in page(app))
        hub.hold_after = None
        hub.go.set()
        await pilot.press("p", "down", "p", "f2")
        assert (first.state, second.state) == ("running", "queued")
        await until(pilot, lambda: told(app, f"{REPO} is here"), "the queue goes on in another room")
        assert {REPO, OTHER} <= set(here())
        assert any(start > 0 for name, start in hub.asked if name == "model.safetensors")
        await pilot.press("f4")
        await until(pilot, lambda: app.screen is room and page(app).count("on disk") == 2)
        await pilot.press("x")
        await until(pilot, lambda: app.screen is not room)
        await pilot.press("y")
        await until(pilot, lambda: told(app, "Deleted") and page(app).count("on disk") == 1)
        assert len({REPO, OTHER} & set(here())) == 1


async def test_a_download_that_fails_says_why_and_one_that_is_deleted_leaves_nothing(
    make_app: MakeApp, hub: HubStandIn
) -> None:
    hub.falsified = {"model.safetensors"}
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        room = await enter(pilot, app)
        await pilot.press("d")
        await until(pilot, lambda: told(app, "SHA-256"))
        await until(pilot, lambda: "failed" in page(app))
        hub.falsified, hub.hold_after = set(), 1_000_000
        await pilot.press("d")
        (item,) = room.downloads.items
        await until(pilot, lambda: hub.holding.is_set())
        assert item.state == "running"
        await pilot.press("x")
        await until(pilot, lambda: app.screen is not room)
        await pilot.press("y")
        await until(pilot, lambda: told(app, f"Deleted {OTHER}"))
        assert not folder_of(OTHER).exists()
        assert room.downloads.items == []
