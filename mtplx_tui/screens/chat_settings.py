"""The settings of one chat as a list: its system prompt, thinking, tools and sampling, each with what holds now."""

from typing import TYPE_CHECKING

from mtplx_tui.drafts import Draft
from mtplx_tui.options_of_chat import OPTIONS, Option, OptionError, changed
from mtplx_tui.screens.edit import EditScreen
from mtplx_tui.screens.pick import PickScreen

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen
    from mtplx_tui.screens.typing import Typing

NAME_CELLS, VALUE_CELLS = 20, 24
BY_COMMAND = ("system prompt", "thinking", "tools")


class ChatSettings:
    """Asks for one setting after another until Esc; what is changed holds from the next message on."""

    def __init__(self, chat: "ChatScreen", typing: "Typing") -> None:
        self._chat = chat
        self._typing = typing

    async def ask(self) -> None:
        while True:
            rows = self._rows()
            picked = PickScreen("settings of this chat; Enter changes one", list(rows), self._chat.services.glyphs)
            chosen = await self._chat.app.push_screen_wait(picked)
            if chosen is None:
                return
            option = rows[chosen]
            if isinstance(option, Option):
                await self._edit(option)
            elif not await self._do(option):
                return

    def _rows(self) -> dict[str, Option | str]:
        """What stands in the list, and what each is about."""
        session, toolbox = self._chat.talk.conversation.session, self._chat.talk.toolbox
        thinking = "off" if session.options.get("thinking") is False else "on"
        tools = "off" if toolbox is None else f"on, files of {toolbox.folder}" if toolbox.folder else "on, no files"
        values = dict(zip(BY_COMMAND, (" ".join(session.system.split()) or "none", thinking, tools), strict=True))
        rows: dict[str, Option | str] = {f"{name:<{NAME_CELLS}}{value}": name for name, value in values.items()}
        return rows | {
            f"{option.name:<{NAME_CELLS}}{self._value(option):<{VALUE_CELLS}}{option.help}": option
            for option in OPTIONS
        }

    def _value(self, option: Option) -> str:
        own = self._chat.talk.conversation.session.options
        if option.name in own:
            return f"{own[option.name]}"
        model = self._chat.services.model()
        value = getattr(model.sampling, option.name, None) if model is not None else None
        return "the model's own" if value is None else f"{value:g}, the model's own"

    async def _edit(self, option: Option) -> None:
        value = self._chat.talk.conversation.session.options.get(option.name)
        text = "" if value is None else f"{value}"
        allowed = f"{option.help}; nothing is the model's own"

        async def take(typed: str) -> str | None:
            session = self._chat.talk.conversation.session
            try:
                session.options = changed(session.options, option.name, typed.strip())
            except OptionError as error:
                return str(error)
            await self._typing.keep("Holds from the next message on.")
            return None

        await self._chat.app.push_screen_wait(EditScreen(option.name, text, allowed, take))

    async def _do(self, name: str) -> bool:
        """Change what has a command of its own; whether the list comes again."""
        session = self._chat.talk.conversation.session
        match name:
            case "thinking":
                await self._typing.think("on" if session.options.get("thinking") is False else "off")
            case "tools":
                await self._typing.tools("" if "tools" not in session.options else "off")
            case _:  # it may have many lines, so it is written where messages are
                self._chat.composer.put(Draft(f"/system {session.system}"))
                return False
        return True
