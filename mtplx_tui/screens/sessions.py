"""The list of saved chats: find one, go on with it or with a copy, name it, write it to a file, delete it."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar, TypeVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from mtplx_tui import paths
from mtplx_tui.charts.waterfall import fit
from mtplx_tui.glyphs import one_line
from mtplx_tui.screens.ask import AskScreen, SureScreen, box_of
from mtplx_tui.services import Services
from mtplx_tui.session_export import Form, write
from mtplx_tui.store import SessionRow, Store, StoreError

T = TypeVar("T")

TITLE, MODEL = 32, 17
"""Cells of a row's title and of its model's name."""


class SessionsScreen(ModalScreen[int | None]):
    """Dismissed with the number of the chosen chat, or with None."""

    CSS_PATH = "modal.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+o", "dismiss(None)", "close", show=False),
        Binding("slash", "search", "search", show=False),
        Binding("r", "rename", "rename", show=False),
        Binding("b", "fork", "go on in a copy", show=False),
        Binding("m", "export('md')", "write as Markdown", show=False),
        Binding("s", "export('json')", "write as JSON", show=False),
        Binding("d", "delete", "delete", show=False),
    ]

    def __init__(self, rows: list[SessionRow], services: Services) -> None:
        super().__init__()
        self._rows = rows
        self._services = services
        self._sought = ""

    def compose(self) -> ComposeResult:
        with box_of(
            "saved chats", "Enter opens  / find  r rename  b fork  m Markdown  s JSON  d delete  Esc", self.app
        ):
            yield OptionList(id="list", markup=False)

    def on_mount(self) -> None:
        self._fill()
        self.query_one(OptionList).focus()

    def _fill(self) -> None:
        options = self.query_one(OptionList)
        place = options.highlighted or 0
        options.clear_options()
        for row in self._rows:
            options.add_option(Option(Content(self._label(row)), id=str(row.id)))
        if not self._rows:
            nothing = f"No chat has {self._sought!r} in it." if self._sought else "No chat is saved yet. The first "
            nothing += "" if self._sought else "message of one saves it."
            options.add_option(Option(Content(one_line(nothing, self._services.glyphs)), disabled=True))
        else:
            options.highlighted = min(place, len(self._rows) - 1)

    def _label(self, row: SessionRow) -> str:
        glyphs = self._services.glyphs
        when = f"{datetime.fromtimestamp(row.updated):%Y-%m-%d %H:%M}"
        title = fit(one_line(row.title, glyphs) or "(no message yet)", TITLE, glyphs)
        model = fit(one_line(row.model.rpartition("/")[2], glyphs), MODEL, glyphs)
        return f"{when}  {title}  {row.messages:>3}  {model}"

    @property
    def _chosen(self) -> SessionRow | None:
        place = self.query_one(OptionList).highlighted
        return None if place is None or place >= len(self._rows) else self._rows[place]

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._rows[event.option_index].id)

    @work(exclusive=True)
    async def action_search(self) -> None:
        text = await self.app.push_screen_wait(AskScreen("chats with this text; empty: all", self._sought))
        if text is not None:
            self._sought = text
            await self._again()

    @work(exclusive=True)
    async def action_rename(self) -> None:
        row = self._chosen
        if row is None:
            return
        name = await self.app.push_screen_wait(AskScreen("name of the chat; empty: its first question", row.title))
        if name is not None:
            await self._do(lambda store: store.rename(row.id, name))
            await self._again()

    @work(exclusive=True)
    async def action_fork(self) -> None:
        row = self._chosen
        if row is not None and (made := await self._do(lambda store: store.fork(row.id))) is not None:
            self.notify(f"This is chat {made} now, a copy; chat {row.id} stays as it was.")
            self.dismiss(made)

    @work(exclusive=True)
    async def action_delete(self) -> None:
        row = self._chosen
        if row is None:
            return
        glyphs = self._services.glyphs
        title = fit(one_line(row.title, glyphs), TITLE, glyphs).rstrip()
        if await self.app.push_screen_wait(SureScreen(f"Delete chat {row.id}, {title!r}, with all its messages?")):
            await self._do(lambda store: store.delete(row.id))
            await self._again()

    @work(exclusive=True)
    async def action_export(self, form: Form) -> None:
        row = self._chosen
        if row is None:
            return
        read = await self._do(lambda store: (store.facts(row.id), store.messages(row.id)))
        if read is None:
            return
        try:
            file = write(paths.exports_folder(), *read, form, self._services.wall())
        except OSError as error:
            self.notify(f"Not written: {error}", severity="error")
            return
        self.notify(f"Written to {file}")

    async def _again(self) -> None:
        text = self._sought
        self._rows = await self._do(lambda store: store.search(text) if text else store.sessions()) or []
        self._fill()

    async def _do(self, call: Callable[[Store], T]) -> T | None:
        try:
            return await asyncio.wrap_future(self._services.recorder.call(call))
        except StoreError as error:
            self.notify(str(error), severity="error")
            return None
