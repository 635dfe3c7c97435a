"""What the message box can do besides sending: commands, files, the editor, earlier messages, settings of the chat."""

import asyncio
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from mtplx_tui import attachments, paths, slash
from mtplx_tui.attachments import AttachError
from mtplx_tui.charts.numbers import count
from mtplx_tui.editor import EditorError, edited
from mtplx_tui.options_of_chat import OptionError, changed
from mtplx_tui.rooms import TABS
from mtplx_tui.screens.ask import AskScreen
from mtplx_tui.screens.chat_settings import ChatSettings
from mtplx_tui.screens.pick import PickScreen
from mtplx_tui.session_export import Form, write
from mtplx_tui.store import StoreError
from mtplx_tui.tools.errors import ToolError
from mtplx_tui.tools.files import chosen_folder

if TYPE_CHECKING:
    from mtplx_tui.screens.chat import ChatScreen


class Typing:
    """Each method is one command's action."""

    def __init__(self, chat: "ChatScreen") -> None:
        self._chat = chat

    async def run(self, command: slash.Command | None, argument: str) -> None:
        """Do what a command says."""
        if command is None:
            self._chat.say("There is no such command; /help lists them. A message may begin with // for one slash.")
            return
        if command.action == "room":
            await self._room(command.name)
        else:
            await getattr(self, command.action)(argument)

    async def _room(self, name: str) -> None:
        if any(tab.name == name for tab in TABS):
            self._chat.app.call_later(self._chat.app.run_action, f"room('{name}')")

    async def attach(self, path: str) -> None:
        """Put a file's text into the message as a chip, and say how many tokens that is."""
        if not path:
            self._chat.say("/attach needs the path of a file.")
            return
        try:
            name, text = await asyncio.to_thread(attachments.read, path)
            tokens = await asyncio.to_thread(self._chat.services.link.count, text)
        except AttachError as error:
            self._chat.say(str(error), "error")
            return
        size = f"{count(tokens)} tokens" if tokens is not None else f"{len(text):,} characters"
        self._chat.composer.attach(f"[{name}: {size}]", attachments.as_sent(name, text))
        model = self._chat.services.model()
        if tokens is not None and model is not None and tokens >= model.context:
            self._chat.say(f"{name} alone has {tokens:,} tokens; {model.name} can hold {model.context:,}.", "warning")

    async def copy(self, _: str) -> None:
        self._chat.action_reading("copy_all")

    async def editor(self, _: str) -> None:
        """Write the message in the user's own editor."""
        composer = self._chat.composer
        try:
            with self._chat.app.suspend():
                text = edited(composer.draft.expanded())
        except (SuspendNotSupported, EditorError) as error:
            self._chat.say(str(error) or "This terminal can not be lent to an editor.", "error")
            return
        composer.put(composer.draft_of(text))

    async def export(self, form: str) -> None:
        session = self._chat.talk.conversation.session
        if form not in ("", "md", "json"):
            self._chat.say("/export writes md or json.")
        elif session.id is None:
            self._chat.say("Nothing is saved of this chat yet.")
        else:
            try:
                facts, rows = await self._chat.saved.load(session.id)
                kind: Form = "json" if form == "json" else "md"
                file = await asyncio.to_thread(
                    write, paths.exports_folder(), facts, rows, kind, self._chat.services.wall()
                )
            except (OSError, StoreError) as error:
                self._chat.say(f"Not written: {error}", "error")
                return
            self._chat.say(f"Written to {file}")

    async def fork(self, _: str) -> None:
        session = self._chat.talk.conversation.session
        if session.id is None:
            self._chat.say("Nothing is saved of this chat yet.")
        elif self._chat.may_switch():
            await self._chat.saved.fork(session.id)

    async def help(self, _: str) -> None:
        self._chat.action_help()

    async def history(self, _: str) -> None:
        """Earlier messages, the newest first."""
        texts = [draft.expanded() for draft in reversed(self._chat.composer.prompts.drafts)]
        text = await self._chat.app.push_screen_wait(PickScreen("earlier messages", texts, self._chat.services.glyphs))
        if text is not None:
            self._chat.composer.put(self._chat.composer.draft_of(text))

    async def new(self, _: str) -> None:
        self._chat.action_new_session()

    async def quit(self, _: str) -> None:
        self._chat.app.exit()

    async def rename(self, name: str) -> None:
        session = self._chat.talk.conversation.session
        if session.id is None:
            self._chat.say("Nothing is saved of this chat yet.")
            return
        number = session.id
        await self._chat.saved.call(lambda store: store.rename(number, name))
        await self._chat.saved.reread()
        self._chat.say(
            f"This chat is called {name!r} now." if name else "This chat is called by its first question now."
        )

    async def sessions(self, _: str) -> None:
        self._chat.action_sessions()

    async def set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        session = self._chat.talk.conversation.session
        if not name:
            await ChatSettings(self._chat, self).ask()
            return
        try:
            session.options = changed(session.options, name, value.strip())
        except OptionError as error:
            self._chat.say(str(error), "error")
            return
        await self.keep(f"{name} is {value.strip()} in this chat." if value.strip() else f"{name} is the model's own.")

    async def system(self, text: str) -> None:
        self._chat.talk.conversation.session.system = text
        await self.keep("The system prompt holds from the next message on." if text else "There is no system prompt.")

    async def think(self, word: str) -> None:
        if word not in ("on", "off"):
            self._chat.say("/think is on or off.")
            return
        session = self._chat.talk.conversation.session
        kept = {name: value for name, value in session.options.items() if name != "thinking"}
        session.options = kept if word == "on" else kept | {"thinking": False}
        await self.keep("The model may think first." if word == "on" else "The model answers without thinking.")

    async def tools(self, argument: str) -> None:
        """Turn the tools of this chat on, with a folder that the model may ask to read from, or off."""
        session = self._chat.talk.conversation.session
        kept = {name: value for name, value in session.options.items() if name != "tools"}
        if argument == "off":
            session.options = kept
            await self.keep("The model has no tools in this chat.")
            return
        if not argument:
            question = "folder whose files the model may ask to read; empty: no files"
            given = await self._chat.app.push_screen_wait(AskScreen(question, self._folder()))
            if given is None:
                return
            argument = given.strip()
        try:
            folder = await asyncio.to_thread(chosen_folder, argument) if argument else None
        except ToolError as error:
            self._chat.say(str(error), "error")
            return
        session.options = {**kept, "tools": {"folder": str(folder) if folder else None}}
        where = f" and read files of {folder}" if folder else ""
        await self.keep(f"The model may calculate, see the time{where}; each call asks you. /tools off ends it.")

    def _folder(self) -> str:
        toolbox = self._chat.talk.toolbox
        return str(toolbox.folder) if toolbox and toolbox.folder else ""

    async def keep(self, said: str) -> None:
        """Save what this chat has of its own, and say so. Raises StoreError."""
        session = self._chat.talk.conversation.session
        if session.id is not None:
            number, system, options = session.id, session.system, dict(session.options)
            await self._chat.saved.call(lambda store: store.describe(number, system, options))
        self._chat.say(said)
