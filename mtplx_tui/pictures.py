"""Pictures of the rooms from a real run: the bundled model, seeded questions, a client over HTTP, real measurements."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from textual.pilot import Pilot

from engine.config import EngineConfig
from engine.engine import ThreadEngine
from mtplx_tui import paths
from mtplx_tui.app import MtplxApp
from mtplx_tui.link import LocalLink
from mtplx_tui.rooms import CHAT
from mtplx_tui.runs.job import Job
from mtplx_tui.screens.job_room import JobRoom
from mtplx_tui.screens.page import PageScreen
from mtplx_tui.screens.tune import TuneScreen
from mtplx_tui.server_settings import LocalSettings
from mtplx_tui.store import Store
from mtplx_tui.widgets.lines import Lines
from server.run import ServerThread

QUESTIONS = ("What is 47 + 85?", "Write a Python function that reverses a list.")
LONG = "Tell me a story about a fox and a bear."
SEED = 7
CLIENTS, STEPS_SHOWN = 3, 60
"""Programs that ask beside the chat, and steps after which the dashboard's picture is taken."""
BENCH = ("bench", "step", "--steps", "8")
PATIENCE_S, MEASURE_S = 120.0, 240.0
"""Until an answer must have come, and until a measurement is shown while it still runs."""
POLL_S = 0.05


class PictureError(Exception):
    """Something that was to be shown did not come; the text can be shown to a user as it is."""


@dataclass(slots=True)
class Studio:
    """An engine with its server and a folder of chats: one for pictures of all sizes.

    Attributes:
        jobs: the measurements that were begun, by room. over: set where other programs ask no more.
    """

    link: LocalLink
    settings: LocalSettings
    store: Store
    address: str
    jobs: dict[str, Job] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)

    def app(self) -> MtplxApp:
        return MtplxApp(self.link, self.store, lambda: f"{self.address}/v1", settings=self.settings)


def take(
    rooms: Sequence[str], sizes: Sequence[tuple[int, int]], folder: Path, say: Callable[[str], None]
) -> list[Path]:
    """Draw each room at each size into `folder`, as SVG; gives the files, which may have been there before.

    Raises PictureError, OSError, or what keeps the engine or the server from starting.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _studio() as studio:
        return [file for size in sizes for file in asyncio.run(_at_size(studio, rooms, size, folder, say))]


@contextmanager
def _studio() -> Iterator[Studio]:
    with ExitStack() as stack:
        engine = ThreadEngine(EngineConfig())
        stack.callback(engine.close)
        engine.wait_ready()
        settings = LocalSettings({}, engine)
        link = LocalLink(engine, settings)
        server = ServerThread(engine, settings=settings.live, journal=link.journal)
        server.start()
        stack.callback(server.stop, 1.0)
        paths.sessions_file().parent.mkdir(parents=True, exist_ok=True)
        store = Store(paths.sessions_file())
        stack.callback(store.close)
        assert server.address is not None
        studio = Studio(link, settings, store, server.address)
        yield studio
        for job in studio.jobs.values():
            job.stop()


async def _at_size(
    studio: Studio, rooms: Sequence[str], size: tuple[int, int], folder: Path, say: Callable[[str], None]
) -> list[Path]:
    files: list[Path] = []
    app = studio.app()
    async with app.run_test(size=size) as pilot:
        await _until(lambda: studio.link.state == "ready" and app.chat.is_current, "the chat")
        for room in rooms:
            say(f"{room} at {size[0]}x{size[1]}")
            await SCENES[room](studio, app, pilot)
            await pilot.pause()
            file = folder / f"{room}-{size[0]}x{size[1]}.svg"
            file.write_text(app.export_screenshot(title="mtplx-tui"), encoding="utf-8")
            files.append(file)
            studio.over.set()
            if isinstance(app.screen, PageScreen):
                await pilot.press("escape")
            await _until(lambda: _ended(studio, app), "the end of the answers")
    return files


def _ended(studio: Studio, app: MtplxApp) -> bool:
    """End what runs; a program may just have asked once more."""
    state = app.services.bridge.state
    for row in state.snapshot(time.monotonic(), 1, 1).active:
        studio.link.cancel(row.id)
    return not state.busy


async def _chat(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f2")
    session = studio.store.new_session("demo-13m")
    studio.store.describe(session, "", {"seed": SEED})
    await app.chat.saved.open(session)
    for question in QUESTIONS:
        await _ask(app, pilot, question)
        await _until(lambda: app.chat.talk.turn is None and not app.services.bridge.state.busy, "the answer")


async def _ask(app: MtplxApp, pilot: Pilot[None], question: str) -> None:
    before = len(app.chat.talk.conversation.said)
    app.chat.composer.insert(question)
    await pilot.press("enter")
    await _until(lambda: len(app.chat.talk.conversation.said) > before, "the question")


async def _dashboard(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f2")
    studio.over.clear()
    for number in range(CLIENTS):
        threading.Thread(target=_client, args=(studio, number), daemon=True).start()
    await _ask(app, pilot, LONG)
    await pilot.press("f3")
    state = app.services.bridge.state
    await _until(lambda: len(state.steps) >= STEPS_SHOWN and state.active >= CLIENTS, "the steps of answers")
    await _drawn(app, "api")


def _client(studio: Studio, number: int) -> None:
    """Another program that asks again and again."""
    asked = 0
    while not studio.over.is_set():
        asked += 1
        body = {"model": "demo-13m", "seed": 100 * number + asked, "messages": [{"role": "user", "content": LONG}]}
        with suppress(httpx.HTTPError):  # its answer is cancelled with the picture
            httpx.post(f"{studio.address}/v1/chat/completions", json=body, timeout=PATIENCE_S)


async def _models(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f4")
    await _drawn(app, "smollm2-135m")


async def _tune(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f5")
    await _until(lambda: isinstance(app.screen, TuneScreen), "the room")
    room = app.screen
    assert isinstance(room, TuneScreen)
    await _measured(studio, room, room.arguments(again=True))


async def _bench(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f6")
    await _until(lambda: isinstance(app.screen, JobRoom), "the room")
    room = app.screen
    assert isinstance(room, JobRoom)
    await _measured(studio, room, [*BENCH, "--save", str(paths.benchmarks_folder())])


async def _measured(studio: Studio, room: JobRoom, arguments: list[str]) -> None:
    """Show the measurement of this room, which is begun the first time, with its result or as far as it is."""
    job = studio.jobs.get(room.NAME)
    room.begin(lambda: studio.jobs.setdefault(room.NAME, job or Job(arguments)))
    begun = time.monotonic()
    job = studio.jobs[room.NAME]
    while job.state == "running" and time.monotonic() - begun < MEASURE_S:
        await asyncio.sleep(POLL_S)
    if job.state == "failed":
        raise PictureError(f"{' '.join(job.arguments)} failed: {job.error}")
    await _until(lambda: room.shows(job.state), "the result")


async def _settings(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f7")
    await _drawn(app, "temperature")


async def _help(studio: Studio, app: MtplxApp, pilot: Pilot[None]) -> None:
    await pilot.press("f2")
    await pilot.press("f1")
    await _until(lambda: isinstance(app.screen, PageScreen), "the help")


async def _drawn(app: MtplxApp, text: str) -> None:
    def there() -> bool:
        pages = app.screen.query("#page").results(Lines)
        return any(text in page.text for page in pages)

    await _until(there, f"{text!r} on the screen")


async def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise PictureError(f"{what} did not come within {PATIENCE_S:g} s.")
        await asyncio.sleep(POLL_S)


SCENES = {CHAT: _chat, "dashboard": _dashboard, "models": _models, "tune": _tune, "bench": _bench,
          "settings": _settings, "help": _help}  # fmt: skip
