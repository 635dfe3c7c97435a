"""The screens over links: chat, what is said of a drop, and the rooms that need the engine's own machine."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import composer, lines, shown, transcript, until
from remote_servers import Proxy, VllmLike
from scripted_engine import ScriptedEngine

import engine
from engine.chat import load_chat_format
from mtplx_tui.app import MtplxApp
from mtplx_tui.remote.openai import OpenAILink
from mtplx_tui.remote.ours import RemoteLink
from mtplx_tui.services import Remote
from mtplx_tui.store import Store
from mtplx_tui.themes import DARK
from mtplx_tui.widgets.lines import Lines
from server.run import ServerThread

pytestmark = pytest.mark.anyio


@pytest.fixture
def scripted() -> Iterator[ScriptedEngine]:
    scripted = ScriptedEngine(load_chat_format(Path(engine.__file__).parent / "assets" / "demo-13m"))
    yield scripted
    scripted.close()


@pytest.fixture
def proxy(scripted: ScriptedEngine) -> Iterator[Proxy]:
    server = ServerThread(scripted, port=0)
    server.start()
    assert server.address is not None
    proxy = Proxy(int(server.address.rpartition(":")[2]))
    yield proxy
    proxy.close()
    assert server.stop(0.5)


@pytest.fixture
def over(store: Store) -> Callable[..., MtplxApp]:
    def make(link: RemoteLink | OpenAILink) -> MtplxApp:
        remote = Remote(link.url, lambda: getattr(link, "figures", None))
        app = MtplxApp(link, store, lambda: link.line, remote=remote, notice="A notice.")
        app.theme = DARK.name
        return app

    return make


async def test_a_chat_goes_on_after_a_drop(
    proxy: Proxy, scripted: ScriptedEngine, over: Callable[..., MtplxApp]
) -> None:
    link = RemoteLink(proxy.url)
    app = over(link)
    async with app.run_test(size=(120, 40)) as pilot:
        await shown(pilot, "A notice.")
        await until(pilot, lambda: "READY" in lines(app, "top"))
        composer(app).insert("hello")
        await pilot.press("enter")
        await shown(pilot, "Hello there.")
        proxy.refusing = True
        proxy.cut()
        await until(pilot, lambda: "reconnecting" in lines(app, "top"))
        composer(app).insert("once more")
        await pilot.press("enter")
        await shown(pilot, "this is sent when it is ready")
        proxy.refusing = False
        await until(pilot, lambda: transcript(app).text.count("Hello there.") == 2, "the second answer")
    link.close()


@pytest.mark.parametrize(("key", "room"), [("f5", "tune"), ("f6", "bench")])
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_measuring_needs_the_engines_own_machine(
    proxy: Proxy, over: Callable[..., MtplxApp], key: str, room: str, size: tuple[int, int]
) -> None:
    link = RemoteLink(proxy.url)
    app = over(link)
    async with app.run_test(size=size) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: f"Run mtplx-tui {room} there." in " ".join(page(app).split()))
        await pilot.press("s")
        assert app.screen.job is None  # type: ignore[attr-defined]
    link.close()


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_dashboard_shows_what_anothers_metrics_tell(
    over: Callable[..., MtplxApp], size: tuple[int, int]
) -> None:
    other = VllmLike()
    link = OpenAILink(other.url)
    app = over(link)
    async with app.run_test(size=size) as pilot:
        await pilot.press("f3")
        await until(pilot, lambda: "2.30 tokens a step, 65% held" in page(app))
        assert "2 running · 1 waiting" in page(app)
        assert "n/a (on another machine)" in page(app)
        assert [float(share) for share in re.findall(r"d[12] █+\S* +(0\.\d+)", page(app))] == [0.8, 0.5]
        assert other.url in page(app)
    link.close()
    other.close()


def page(app: MtplxApp) -> str:
    found = app.screen.query("#page")
    return found.first(Lines).text if found else ""
