"""Models: what is here, what there is, whether it fits, and getting, running and deleting it."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.binding import BindingType
from textual.timer import Timer

from engine.errors import EngineError
from mtplx_tui.bridge import Pulled
from mtplx_tui.charts.numbers import size
from mtplx_tui.glyphs import one_line
from mtplx_tui.keys import WORKBENCH_KEYS, Key, bindings
from mtplx_tui.layout.spans import Line, wrap
from mtplx_tui.models_page.check import NO_CHECKSUM, Check, StoppedError
from mtplx_tui.models_page.downloads import Downloads
from mtplx_tui.models_page.page import detail, models_page
from mtplx_tui.models_page.shelf import ModelRow, shelf
from mtplx_tui.models_page.view import ModelsView
from mtplx_tui.runs.job import Job
from mtplx_tui.screens.ask import AskScreen, SureScreen
from mtplx_tui.screens.page import TEXT_WIDTH, PageScreen
from mtplx_tui.screens.page_room import PageRoom
from mtplx_tui.services import Services
from mtplx_tui.switch import Choice

DRAW_S = 0.5
"""Between two drawings while something comes."""
END_S = 5.0
"""How long a stopped download may take to end."""


class ModelsScreen(PageRoom):
    NAME = "models"
    KEYS = (
        *WORKBENCH_KEYS,
        Key("up", "Up/Down", "choose(-1)", None, "choose a model"),
        Key("down", "", "choose(1)", None, ""),
        Key("pageup", "PgUp/PgDn", "choose(-10)", None, "ten further"),
        Key("pagedown", "", "choose(10)", None, ""),
        Key("enter", "Enter", "load", "load", "run the chosen model in place of the present one, for chat and server"),
        Key("d", "d", "download", "get", "download it from the hub, or go on with a download that was stopped"),
        Key("p", "p", "pause", None, "pause its download, or go on with it"),
        Key("x", "x", "delete", "delete", "delete it from the hub's cache, or stop its download and delete what came"),
        Key("slash", "/", "find", "find", "show only those with these words in name, head or quantisation"),
        Key("o", "o", "order", None, "sort: as listed, by name, by size, by fit"),
        Key("i", "i", "inspect", None, "all that is known of it, without loading it"),
        Key("v", "v", "verify", None, "read its files again and compare their checksums with those that the hub gave"),
        Key("u", "u", "unload", None, "give up the present model and its memory"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._view = ModelsView()
        self.downloads = Downloads(lambda repo: Job(["pull", repo]))
        self._disk = ""
        self._check: Check | None = None
        self._timer: Timer | None = None

    def on_screen_resume(self) -> None:
        self.read()
        super().on_screen_resume()

    def on_mount(self) -> None:
        self._timer = self.set_interval(DRAW_S, self._look, pause=True)  # in other rooms too: a queue must go on

    def on_unmount(self) -> None:
        self.downloads.stop()
        if self._check is not None:
            self._check.stop()

    def read(self) -> None:
        """Look at all models again; what is shown changes when that is done."""
        self.run_worker(self._read(), group="read", exclusive=True)

    async def _read(self) -> None:
        rows = await asyncio.to_thread(shelf)
        self._disk = await asyncio.to_thread(_disk)
        self._view = replace(self._view, every=tuple(rows))
        self.draw()

    def beat(self, pulled: Pulled) -> None:
        self.draw_top()  # with how far a check is
        if self._standing() != self._view:
            self.draw()

    def _look(self) -> None:
        for item in self.downloads.look():
            if item.state == "done":
                self._say(f"{item.repo} is here.")
            else:
                self._say(f"{item.repo} was not downloaded: {item.error}", "error")
            self.read()
        if self._timer is not None and not self.downloads.busy:
            self._timer.pause()
        if self.is_current:
            self.draw()

    def _standing(self) -> ModelsView:
        model = self.services.model()
        loaded = model.name if model else None
        return replace(self._view, loaded=loaded, downloads=tuple(self.downloads.items))

    def draw(self) -> None:
        self._view = self._standing()
        self._page.show(models_page(self._view, *self._page.size, self.services.glyphs))
        self.draw_top()

    def subject(self) -> str:
        checking = "" if self._check is None else self._check.words(self.services.glyphs)
        found = f"filter: {one_line(self._view.find, self.services.glyphs)}" if self._view.find else ""
        return "; ".join(filter(None, (checking, self._disk, found)))

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return FIGURES

    def action_choose(self, by: int) -> None:
        self._view = self._view.moved(by)
        self.draw()

    def action_order(self) -> None:
        self._view = self._view.reordered()
        self.draw()

    def action_find(self) -> None:
        def found(text: str | None) -> None:
            if text is not None:
                self._view = replace(self._view, find=text)
                self.draw()

        self.app.push_screen(AskScreen("show models with", self._view.find), found)

    def action_download(self) -> None:
        row = self._view.row
        if row is None:
            return
        if row.here:
            self._say(f"{row.name} is here already.")
        elif row.tier == "unsupported":
            self._say(f"This engine does not run {row.family}, so {row.name} is of no use here.", "warning")
        elif row.fits == "no":
            self._sure(f"{row.name} does not fit this machine's memory. Download it all the same?",
                       lambda: self._get(row.name))  # fmt: skip
        else:
            self._get(row.name)

    def _get(self, repo: str) -> None:
        self.downloads.add(repo)
        if self._timer is not None:
            self._timer.resume()
        self.draw()

    def action_pause(self) -> None:
        row = self._view.row
        item = self.downloads.of(row.name) if row else None
        if item is None or item.state == "done":
            self._say("The chosen model is not being downloaded. d begins that.")
        elif item.state in ("running", "queued"):
            self.downloads.pause(item.repo)
        else:
            self._get(item.repo)
        self.draw()

    def action_delete(self) -> None:
        row = self._view.row
        if row is None:
            return
        comes = self.downloads.of(row.name)
        if row.name == self._view.loaded:
            self._say(f"{row.name} is loaded. u unloads it.", "warning")
        elif row.where in ("bundled", "stored"):
            why = "comes with the program" if row.where == "bundled" else f"is a folder of your own, {row.path}"
            self._say(f"{row.name} {why}, so it is not deleted from here.", "warning")
        elif row.where == "catalog" and (comes is None or comes.state == "done"):
            self._say(f"Nothing of {row.name} is here.")
        else:
            what = row.size if row.here else row.come
            room = f", {size(what)}," if what else ""
            self._sure(f"Delete {row.name}{room} from the hub's cache?", lambda: self._delete(row.name))

    def _delete(self, repo: str) -> None:
        from engine.hub import HubError, folder_of, remove

        job = self.downloads.drop(repo)

        async def work() -> None:
            try:
                if job is not None:
                    await asyncio.to_thread(job.wait, END_S)
                if folder_of(repo).is_dir():
                    freed = await asyncio.to_thread(remove, repo)
                    self._say(f"Deleted {repo}, {size(freed)}.")
            except (HubError, OSError) as error:
                self._say(f"Not deleted: {error}", "error")
            self.read()

        self._work(work)

    def action_verify(self) -> None:
        row = self._view.row
        if row is None:
            return
        if self._check is not None:
            self._say(f"{self._check.repo} is being checked; wait for its end.")
        elif row.where != "cache":
            self._say(f"{row.name} {NO_CHECKSUM[row.where]}, so there is no checksum of the hub to compare with.")
        else:
            self._check = Check(row.name)
            self.run_worker(self._checked(self._check), group="verify")

    async def _checked(self, check: Check) -> None:
        try:
            said = await asyncio.to_thread(check.run)
        except StoppedError:
            return
        except (EngineError, OSError) as error:
            self._say(f"{check.repo} could not be checked: {error}", "error")
        else:
            self._say(said.words, "information" if said.right else "error")
        finally:
            self._check = None
        self.draw_top()

    def action_load(self) -> None:
        row, switch = self._view.row, self.services.switch
        if row is None:
            return
        if switch is None:
            self._say("The engine is not this program's, so another model can not be loaded from here.", "warning")
        elif not row.here:
            self._say(f"{row.name} is not here. d downloads it.")
        elif row.tier == "unsupported":
            self._say(f"This engine does not run {row.family or 'its architecture'}: i says more.", "warning")
        elif row.name == self._view.loaded:
            self._say(f"{row.name} is loaded already.")
        else:
            choice = Choice(row.name, "ar" if row.tier == "no head" else "mtp")
            self._ending_answers(f"load {row.name}", lambda: switch.load(choice))

    def action_unload(self) -> None:
        switch = self.services.switch
        if switch is None or self._view.loaded is None:
            self._say("No model of this program's own is loaded.")
        else:
            self._ending_answers(f"unload {self._view.loaded}", switch.unload)

    def _ending_answers(self, what: str, do: Callable[[], None]) -> None:
        """Do it, after a question where answers run that it would end."""

        async def work() -> None:
            try:
                await asyncio.to_thread(do)
            except EngineError as error:
                self._say(str(error), "warning")

        if self.services.bridge.state.busy:
            self._sure(f"Answers are being made, and to {what} ends them. Do it now?", partial(self._work, work))
        else:
            self._work(work)

    def action_inspect(self) -> None:
        row = self._view.row
        if row is None:
            return
        if not row.here:
            self._show(row, detail(row, TEXT_WIDTH, self.services.glyphs))
            return

        async def work() -> None:
            try:
                lines = await asyncio.to_thread(_report, row.name)
            except EngineError as error:
                lines = [str(error)]
            cleaned = [one_line(line, self.services.glyphs) for line in lines]
            self._show(row, [part for line in cleaned for part in wrap([(line, "")], TEXT_WIDTH)])

        self._work(work)

    def _show(self, row: ModelRow, lines: Sequence[Line]) -> None:
        glyphs = self.services.glyphs
        self.app.push_screen(PageScreen(glyphs, one_line(row.name, glyphs), lines))

    def _sure(self, question: str, do: Callable[[], None]) -> None:
        self.app.push_screen(SureScreen(one_line(question, self.services.glyphs)), lambda yes: do() if yes else None)

    def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        self.run_worker(work(), group="work")

    def _say(self, text: str, severity: str = "information") -> None:
        self.notify(one_line(text, self.services.glyphs), severity=severity)  # type: ignore[arg-type]


def _disk() -> str:
    from engine.hub import hub_cache

    for folder in (hub_cache(), *hub_cache().parents):
        if folder.is_dir():
            disk = shutil.disk_usage(folder)
            return f"disk: {size(disk.free)} of {size(disk.total)} free"
    return ""


def _report(name: str) -> list[str]:
    from engine.models.inspect import inspect_model
    from mtplx_tui.commands.inspect import describe

    return describe(inspect_model(name))


FIGURES = (
    ("*", "among the first to try on this machine"),
    ("fits", "yes: weights, and caches for 32k tokens of prompt and answer, fit what models may take here; tight: it "
             "loads with a shorter context, or leaves little for other programs; no: it does not load"),
    ("head", "mtp: it carries a head that drafts; none: it runs without drafts"),
    ("tier", "verified: this project ran verify on this very head; unverified: the layout is known; unsupported: an "
             "architecture that does not run here"),
    ("state", "begun: a download that was stopped, d goes on; hub: not here"),
    ("tuned", "the depth that tune kept on this machine"),
)  # fmt: skip
