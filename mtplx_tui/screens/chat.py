"""The chat: transcript, composer and, where there is room, the live panel."""

import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Static, TextArea

from mtplx_tui.bridge import Pulled
from mtplx_tui.conversation import Phase
from mtplx_tui.drafts import Draft
from mtplx_tui.glyphs import one_line
from mtplx_tui.keys import CARD_KEYS, CHAT_KEYS, READING_KEYS, bindings, footer
from mtplx_tui.layout.spans import Line
from mtplx_tui.rooms import CHAT
from mtplx_tui.screens.calls import Calls
from mtplx_tui.screens.figures import Figures, chat_figures
from mtplx_tui.screens.help import section
from mtplx_tui.screens.reading import Reading
from mtplx_tui.screens.room import EDGE_ROWS, PANEL_WIDTH, Room
from mtplx_tui.screens.saved_chats import SavedChats
from mtplx_tui.screens.sending import Sending
from mtplx_tui.screens.sessions import SessionsScreen
from mtplx_tui.screens.typing import Typing
from mtplx_tui.services import Services
from mtplx_tui.slash import Command, matching, parse
from mtplx_tui.store import Store, StoreError
from mtplx_tui.talk import Talk, Turn
from mtplx_tui.tuning import collect
from mtplx_tui.widgets.blocks import Notice, UserMessage, Welcome
from mtplx_tui.widgets.composer import Composer
from mtplx_tui.widgets.lines import Lines
from mtplx_tui.widgets.tour_line import TourLine
from mtplx_tui.widgets.transcript import Transcript

QUIT_TWICE_S = 2.0
MOST_NAMES = 6
COLLECT_AFTER_S = 1.0


class ChatScreen(Room):
    NAME = CHAT
    KEYS = CHAT_KEYS
    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(CHAT_KEYS)]
    AUTO_FOCUS = "#composer"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.talk = Talk(services.link, services.bridge, services.recorder, services.wall)
        self._failure: str | None = None
        self._settled = False
        self._ready = False
        self._interrupted_at = -QUIT_TWICE_S
        self.unfold: bool | None = None
        """Whether new answers show their thinking; None follows the stream."""

    def compose_body(self) -> ComposeResult:
        glyphs = self.services.glyphs
        yield Lines(glyphs, id="panel")
        yield Transcript(glyphs, id="transcript")
        yield Lines(glyphs, id="status")
        yield TourLine(glyphs, self.services.tour)
        with Horizontal(id="compose"):
            yield Static(">", id="prompt", markup=False)
            yield Composer(glyphs, id="composer")

    def on_mount(self) -> None:
        self.transcript = self.query_one(Transcript)
        self.transcript.unfold_by(self.unfold)
        self.composer = self.query_one(Composer)
        self.figures = Figures(self, self.services, self.talk)
        self.saved = SavedChats(self)
        self.calls = Calls(self)
        self.sending = Sending(self)
        self._reading = Reading(self)
        self._typing = Typing(self)
        compose = self.query_one("#compose")
        compose.border_title = "message"
        self._suggest()
        self.transcript.add(Welcome())
        if self.services.notice:
            self.transcript.add(Notice(self.services.notice, "warn"))
        self._load_history()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.query_one("#panel").styles.height = max(event.size.height - EDGE_ROWS, 0)
        self.call_after_refresh(self._keys_of_focus)
        self.call_after_refresh(self.figures.draw)

    def subject(self) -> str:
        conversation = self.talk.conversation
        titles = [conversation.session.title, *conversation.prompts()[:1]]
        title = next((title.strip()[:200].split("\n")[0] for title in titles if title), "new chat")
        return one_line(title, self.services.glyphs)

    def note(self) -> Line:
        return self.figures.note()

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return chat_figures(self.services.glyphs)

    def help_page(self) -> list[Line]:
        reading = [(key.shown, key.help) for key in READING_KEYS if key.help]
        cards = [(key.shown, key.help) for key in CARD_KEYS]
        read, asked = section("While messages are read", reading), section("At a tool call that waits", cards)
        return [*super().help_page(), (), *read, (), *asked]

    # What came

    def hear(self, pulled: Pulled) -> None:
        """Take in what came for this chat, whichever room is seen."""
        turn = self.talk.turn
        if turn is not None:
            self.advance(turn, self.talk.take(pulled) is not None)
        self._tell_failure()
        if not self._ready and self.services.model() is not None:
            self._ready = True
            self.set_timer(COLLECT_AFTER_S, self._collect)

    def beat(self, pulled: Pulled) -> None:
        self.figures.update(bool(pulled.events), pulled.finish is not None)

    def advance(self, turn: Turn, ended: bool) -> None:
        """Draw how far a turn is, and take the next step of it."""
        if turn.phase is Phase.LOADING and self.services.model() is not None:
            self.sending.hand_in(turn)
        turn.answer.waiting = self._waiting(turn.phase)
        self.transcript.update(turn.answer)
        self.calls.show(turn)
        if ended:
            self.calls.take(turn)
            self.set_timer(COLLECT_AFTER_S, self._collect)

    def _waiting(self, phase: Phase) -> str:
        match phase:
            case Phase.LOADING:
                stage = self.services.bridge.state.stage or "the model is loading"
                return f"{stage}; this is sent when it is ready (Esc takes it back)"
            case Phase.RENDERING:
                return "reading the message"
            case Phase.QUEUED:
                return "waiting for a place"
            case Phase.PREFILL:
                return "reading the prompt"
            case Phase.STOPPING:
                return "stopping"
            case _:
                return ""

    def _collect(self) -> None:
        """Collect garbage, now that nobody waits for anything."""
        if self.talk.turn is not None or self.services.bridge.state.busy:
            return
        first = self._ready and not self._settled
        collect(freeze=first)  # what loading the model made is there to stay
        self._settled = self._settled or first

    def _tell_failure(self) -> None:
        """The engine's end, or its failure to load, once and in words; what was waiting for it comes back."""
        failure = self.figures.failure()
        if failure is None or failure == self._failure:
            return
        self._failure = failure
        turn = self.talk.turn
        if turn is not None and turn.phase in (Phase.LOADING, Phase.RENDERING):
            self.sending.give_back(turn)
        self.sending.end_welcome()
        self.transcript.add(
            Notice(failure, "error"),
            Notice("No model is running. ^Q leaves; `mtplx-tui --model NAME` starts with another, `mtplx-tui doctor` "
                   "checks this machine. What you have written stays in the message box until you leave."),
        )  # fmt: skip

    # Sending and stopping

    @on(Composer.Submitted)
    def _send(self, event: Composer.Submitted) -> None:
        if (command := parse(event.draft.text)) is not None:
            self.composer.put(Draft())
            self._run(*command)
        elif self.talk.turn is not None:
            self.say("An answer is still being written. Esc stops it; then Enter sends this.")
        elif self.calls.busy:
            self.say("A tool is still at work; Enter sends this once it is done.")
        elif self.may_ask():
            self.sending.begin(event.draft)

    @on(TextArea.Changed)
    def _suggest(self) -> None:
        """While a command is typed, the box says which there are."""
        dot = f" {self.services.glyphs.dot} "
        found = matching(self.composer.text)
        more = dot + self.services.glyphs.ellipsis if len(found) > MOST_NAMES else ""
        names = dot.join(f"/{command.name}" for command in found[:MOST_NAMES]) + more
        if len(found) == 1:
            names = f"/{found[0].name} {found[0].argument}  {found[0].help}"
        hint = dot.join(("Enter send", "^J newline", "Esc stop", "/ commands"))
        if self.calls.waiting:
            hint = dot.join(("a tool call waits", "Esc goes to it", "Enter denies it and sends"))
        self.query_one("#compose").border_subtitle = (f"Tab {names}" if found else hint).replace("[", "\\[")

    @work(group="typing", exclusive=True)
    async def _run(self, command: Command | None, argument: str) -> None:
        try:
            await self._typing.run(command, argument)
        except StoreError as error:
            self.say(str(error), "error")

    @work(group="typing", exclusive=True)
    async def action_typing(self, what: str) -> None:
        await getattr(self._typing, what)("")

    # Reading

    @work(group="reading", exclusive=True)
    async def action_reading(self, what: str) -> None:
        reading = self._reading
        match what:
            case "older" | "newer":
                await reading.version(-1 if what == "older" else 1)
            case "copy_all" | "fork" | "find":
                await getattr(reading, what)()
            case _:
                getattr(reading, what)()

    def action_compose(self) -> None:
        self.composer.focus()

    @on(Transcript.Left)
    def _type_on(self, event: Transcript.Left) -> None:
        self.composer.focus()
        self.composer.insert(event.text)

    @on(Transcript.Decided)
    def _decide(self, event: Transcript.Decided) -> None:
        self.run_worker(self.calls.decide(event.card, event.word), group="tools")

    def calls_changed(self) -> None:
        """Tool calls wait for the user's word, or do so no more."""
        self._suggest()
        self._keys_of_focus()

    @on(events.DescendantFocus)
    @on(Transcript.Chosen)
    def _keys_of_focus(self) -> None:
        cards = CARD_KEYS if self.transcript.decides is not None else ()
        keys = (*cards, *READING_KEYS) if self.transcript.has_focus else self.KEYS
        self.query_one("#foot", Lines).show([footer(keys, self.size.width)])

    def action_stop(self) -> None:
        """Esc: what is most urgent to end. In an idle chat it goes to the messages, and from there back."""
        turn = self.talk.turn
        if turn is not None:
            if not self.talk.stop():
                self.sending.give_back(turn)
        elif self.sending.editing is not None:
            self.sending.end_edit()
        elif self.transcript.has_focus:
            self.composer.focus()
        elif self.calls.waiting:
            self.transcript.focus()
        elif self.services.tour is not None and self.services.tour.skip():
            return
        elif any(isinstance(block, UserMessage) for block in self.transcript.blocks):
            self.transcript.focus()
        self.figures.draw()

    def action_interrupt(self) -> None:
        """Ctrl+C as people expect it: copy a selection, else stop, else leave at the second press."""
        selected = self.composer.selected_text or self.get_selected_text()
        now = time.monotonic()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.say("Sent to the terminal's clipboard.")
        elif self.talk.turn is not None:
            self.action_stop()
        elif now - self._interrupted_at < QUIT_TWICE_S:
            self.app.exit()
        else:
            self._interrupted_at = now
            self.say("^C again, or ^Q, leaves.")

    def say(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        self.notify(text, severity=severity, timeout=5)

    # Chats

    def action_new_session(self) -> None:
        if self.may_switch():
            self.talk.start_over()
            self.calls.new_chat()
            self.transcript.replace([Welcome()])
            self.composer.focus()
            self.figures.draw()

    @work(exclusive=True, group="sessions")
    async def action_sessions(self) -> None:
        if not self.may_switch():
            return
        try:
            rows = await self.saved.call(Store.sessions)
            chosen = await self.app.push_screen_wait(SessionsScreen(rows, self.services))
            if chosen is not None:
                await self.saved.open(chosen)
            elif not await self.saved.reread():
                self.action_new_session()  # it was deleted there, and what is shown would go on as if it were kept
        except StoreError as error:
            self.say(str(error), "error")

    def may_switch(self) -> bool:
        """Whether nothing of this chat is under way; says so where something is."""
        if self.talk.turn is not None:
            self.say("An answer is still being written. Esc stops it first.")
        elif self.calls.busy:
            self.say("A tool is still at work; this can be done once it is done.")
        else:
            return True
        return False

    def may_ask(self) -> bool:
        """Whether there is, or will be, a model to ask; says so where there is none."""
        if self.services.link.state not in ("failed", "closed"):
            return True
        self.say(f"Not sent, no model is running. {self._failure or ''}", "error")
        return False

    @work(group="history")
    async def _load_history(self) -> None:
        """Prompts of earlier runs, for the up key."""
        try:
            prompts = await self.saved.prompts()
        except StoreError:
            return  # the recorder says so as soon as there is something to save
        self.composer.prompts.seed([self.composer.draft_of(prompt) for prompt in prompts])

    # View

    @on(Composer.Paged)
    def _page(self, event: Composer.Paged) -> None:
        self.transcript.scroll_rows(event.direction * self.transcript.page_rows)
        self.figures.draw()

    def action_follow(self) -> None:
        self.transcript.follow()
        self.figures.draw()

    def action_thinking(self) -> None:
        self.transcript.set_unfolded(not self.transcript.any_unfolded)

    def action_panel(self) -> None:
        if self.app.size.width < PANEL_WIDTH:
            self.say(f"The panel needs {PANEL_WIDTH} columns; this terminal has {self.app.size.width}.")
            return
        self.toggle_class("-no-panel")
        self.call_after_refresh(self.figures.draw)
