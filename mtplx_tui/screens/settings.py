"""Settings: what holds, where it comes from, and changing it, here or at the server that is shown."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType

from mtplx_tui.bridge import Pulled
from mtplx_tui.keys import CARD_KEYS, CHAT_KEYS, READING_KEYS, STEPS_KEYS, WORKBENCH_KEYS, Key, bindings
from mtplx_tui.layout.spans import Line
from mtplx_tui.remote.api import NotNowError
from mtplx_tui.saved_settings import Setting, SettingError
from mtplx_tui.screens.bench import BenchScreen
from mtplx_tui.screens.dashboard import DashboardScreen
from mtplx_tui.screens.edit import EditScreen
from mtplx_tui.screens.help import section
from mtplx_tui.screens.models import ModelsScreen
from mtplx_tui.screens.page_room import PageRoom
from mtplx_tui.screens.pick import PickScreen
from mtplx_tui.screens.tune import TuneScreen
from mtplx_tui.services import Services
from mtplx_tui.settings_page.desk import Desk
from mtplx_tui.settings_page.page import settings_page
from mtplx_tui.settings_page.view import SettingsView


class SettingsScreen(PageRoom):
    NAME = "settings"
    KEYS = (
        *WORKBENCH_KEYS,
        Key("left", "Left/Right", "turn(-1)", "section", "the section before, the section after"),
        Key("right", "", "turn(1)", None, ""),
        Key("up", "Up/Down", "choose(-1)", None, "choose a setting"),
        Key("down", "", "choose(1)", None, ""),
        Key("pageup", "PgUp/PgDn", "choose(-10)", None, "ten further"),
        Key("pagedown", "", "choose(10)", None, ""),
        Key("enter", "Enter", "change", "change", "give the chosen setting another value"),
        Key("r", "r", "reset", "reset", "take the chosen setting back to its default"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(KEYS)]

    def __init__(self, services: Services, desk: Desk) -> None:
        super().__init__(services)
        self._desk = desk
        self._view = SettingsView(keys=_keys_of_rooms())

    def beat(self, pulled: Pulled) -> None:
        self.draw_top()

    def subject(self) -> str:
        remote = self.services.remote
        return f"kept in {self._desk.file}" if remote is None else f"of {remote.url}, and of this screen"

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return SOURCES

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self._read()

    def _read(self) -> None:
        self.run_worker(self._reread(), group="read", exclusive=True)

    async def _reread(self) -> None:
        self._view = replace(self._view, reading=await asyncio.to_thread(self._desk.read))
        self.draw()

    def draw(self) -> None:
        self._page.show(settings_page(self._view, *self._page.size, self.services.glyphs))
        self.draw_top()

    def action_turn(self, by: int) -> None:
        self._view = self._view.turning(by)
        self.draw()

    def action_choose(self, by: int) -> None:
        self._view = self._view.choosing(by)
        self.draw()

    def action_change(self) -> None:
        if self._view.chosen is not None:
            self.run_worker(self._ask(), group="ask", exclusive=True)

    async def _ask(self) -> None:
        entry = self._view.chosen
        assert entry is not None
        setting = entry.setting
        if setting.type == "boolean":
            await self._take(setting, "off" if entry.value == "on" else "on")
        elif setting.type == "choice":
            choices = [str(choice) for choice in setting.choices]
            chosen = await self.app.push_screen_wait(
                PickScreen(f"{setting.title}, now {entry.value}", choices, self.services.glyphs)
            )
            if chosen is not None:
                await self._take(setting, chosen)
        else:
            text = "" if entry.value == "none" else entry.value
            await self.app.push_screen_wait(
                EditScreen(setting.title, text, f"{setting.allowed}; nothing is the default",
                           lambda typed: self._change(setting, typed.strip() or None))
            )  # fmt: skip
            await self._reread()

    def action_reset(self) -> None:
        entry = self._view.chosen
        if entry is not None:
            self.run_worker(self._take(entry.setting, None), group="ask", exclusive=True)

    async def _take(self, setting: Setting, text: str | None) -> None:
        reason = await self._change(setting, text)
        if reason is not None:
            self.notify(reason, severity="error")
        await self._reread()

    async def _change(self, setting: Setting, text: str | None) -> str | None:
        """Why a value can not be; None where it holds now, or is kept for the next start."""
        try:
            await asyncio.to_thread(self._desk.change, setting, text)
        except (SettingError, NotNowError) as error:
            return str(error)
        return None


def _keys_of_rooms() -> tuple[Line, ...]:
    rooms = (("Chat", CHAT_KEYS), ("Chat, while messages are read", READING_KEYS), ("Chat, at a tool call", CARD_KEYS),
             ("Chat, an answer's steps", STEPS_KEYS), ("Dash", DashboardScreen.KEYS),
             ("Models", ModelsScreen.KEYS), ("Tune", TuneScreen.KEYS), ("Bench", BenchScreen.KEYS),
             ("Settings", SettingsScreen.KEYS))  # fmt: skip
    lines: list[Line] = []
    for title, keys in rooms:
        lines += [*section(title, [(key.shown, key.help) for key in keys if key.help], KEY_CELLS), ()]
    return tuple(lines[:-1])


KEY_CELLS = 61
"""Cells of a line of the keys: what the section has where the terminal is as narrow as is allowed."""

SOURCES = (
    ("default", "nobody has set it"),
    ("file", "kept here, or with mtplx-tui settings set"),
    ("command line", "an option of this start; it wins over the file"),
    ("this run", "changed while it ran, and not kept"),
    ("that server", "set at the server that this screen shows; it is kept nowhere"),
)
