"""The chat: transcript, composer and, where there is room, the live panel."""

import asyncio
import time
from collections.abc import Sequence
from typing import ClassVar, Literal

from textual import on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.events import Resize
from textual.widgets import Static

from mtplx_tui.bridge import Pulled
from mtplx_tui.conversation import Phase
from mtplx_tui.drafts import Draft
from mtplx_tui.glyphs import one_line
from mtplx_tui.keys import CHAT_KEYS, bindings
from mtplx_tui.layout.spans import Line
from mtplx_tui.rooms import CHAT
from mtplx_tui.screens.figures import Figures, chat_figures
from mtplx_tui.screens.room import EDGE_ROWS, PANEL_WIDTH, Room
from mtplx_tui.screens.sessions import SessionsScreen
from mtplx_tui.services import Services
from mtplx_tui.store import MessageRow, SessionFacts, Store, StoreError
from mtplx_tui.talk import Talk, Turn, resumed_blocks
from mtplx_tui.tuning import collect
from mtplx_tui.widgets.blocks import Answer, Block, Notice, UserMessage, Welcome
from mtplx_tui.widgets.composer import Composer
from mtplx_tui.widgets.lines import Lines
from mtplx_tui.widgets.transcript import Transcript

QUIT_TWICE_S = 2.0
COLLECT_AFTER_S = 1.0
HISTORY_SESSIONS = 10


class ChatScreen(Room):
    NAME = CHAT
    KEYS = CHAT_KEYS
    CSS_PATH = "chat.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(CHAT_KEYS)]
    AUTO_FOCUS = "#composer"

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.talk = Talk(services.link, services.bridge, services.recorder)
        self._failure: str | None = None
        self._settled = False
        self._ready = False
        self._interrupted_at = -QUIT_TWICE_S

    def compose_body(self) -> ComposeResult:
        glyphs = self.services.glyphs
        yield Lines(glyphs, id="panel")
        yield Transcript(glyphs, id="transcript")
        yield Lines(glyphs, id="status")
        with Horizontal(id="compose"):
            yield Static(">", id="prompt", markup=False)
            yield Composer(glyphs, id="composer")

    def on_mount(self) -> None:
        glyphs = self.services.glyphs
        self.transcript = self.query_one(Transcript)
        self.composer = self.query_one(Composer)
        self.figures = Figures(self, self.services, self.talk)
        compose = self.query_one("#compose")
        compose.border_title = "message"
        compose.border_subtitle = f" {glyphs.dot} ".join(("Enter send", "^J newline", "Esc stop"))
        self.transcript.add(Welcome())
        if self.services.notice:
            self.transcript.add(Notice(self.services.notice, "warn"))
        self._load_history()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        self.query_one("#panel").styles.height = max(event.size.height - EDGE_ROWS, 0)
        self.call_after_refresh(self.figures.draw)

    def subject(self) -> str:
        prompts = self.talk.conversation.prompts()
        return one_line(prompts[0].strip()[:200].split("\n")[0], self.services.glyphs) if prompts else "new chat"

    def note(self) -> Line:
        return self.figures.note()

    def figures_help(self) -> Sequence[tuple[str, str]]:
        return chat_figures(self.services.glyphs)

    # What came

    def hear(self, pulled: Pulled) -> None:
        """Take in what came for this chat, whichever room is seen."""
        turn = self.talk.turn
        if turn is not None:
            self._advance(turn, self.talk.take(pulled) is not None)
        self._tell_failure()
        if not self._ready and self.services.model() is not None:
            self._ready = True
            self.set_timer(COLLECT_AFTER_S, self._collect)

    def beat(self, pulled: Pulled) -> None:
        self.figures.update(bool(pulled.events), pulled.finish is not None)

    def _advance(self, turn: Turn, ended: bool) -> None:
        if turn.phase is Phase.LOADING and self.services.model() is not None:
            self._submit(turn)
        turn.answer.waiting = self._waiting(turn.phase)
        self.transcript.update(turn.answer)
        if ended:
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
            self._give_back(turn)
        self._end_welcome()
        self.transcript.add(
            Notice(failure, "error"),
            Notice("No model is running. ^Q leaves; `mtplx-tui --model NAME` starts with another, `mtplx-tui doctor` "
                   "checks this machine. What you have written stays in the message box until you leave."),
        )  # fmt: skip

    # Sending and stopping

    @on(Composer.Submitted)
    def _send(self, event: Composer.Submitted) -> None:
        state = self.services.link.state
        if self.talk.turn is not None:
            self._say("An answer is still being written. Esc stops it; then Enter sends this.")
        elif state in ("failed", "closed"):
            self._say(f"Not sent, no model is running. {self._failure or ''}", "error")
        else:
            self._begin(event.draft)

    def _begin(self, draft: Draft) -> None:
        glyphs = self.services.glyphs
        self._end_welcome()
        turn = self.talk.begin(draft, UserMessage(draft.expanded(), self.services.wall()), Answer(glyphs, live=True))
        self.composer.put(Draft())
        self.composer.prompts.add(draft)
        self.transcript.add(*turn.blocks)
        self._advance(turn, False)
        self.figures.draw()

    def _end_welcome(self) -> None:
        if any(isinstance(block, Welcome) for block in self.transcript.blocks):
            self.transcript.replace([block for block in self.transcript.blocks if not isinstance(block, Welcome)])

    @work(group="submit")
    async def _submit(self, turn: Turn) -> None:
        failure = await self.talk.submit(turn)
        if failure is not None:
            self._give_back(turn)
            self.transcript.add(Notice(failure, "error"))
            self.figures.draw()

    def _give_back(self, turn: Turn) -> None:
        """Take an unsent message out of the chat and put it back into the composer."""
        draft = self.talk.withdraw(turn)
        self.transcript.take_out(*turn.blocks)
        written = self.composer.draft
        self.composer.put(Draft(draft.text + (f"\n{written.text}" if written.text else ""), draft.pastes))

    def action_stop(self) -> None:
        turn = self.talk.turn
        if turn is not None and not self.talk.stop():
            self._give_back(turn)
        self.figures.draw()

    def action_interrupt(self) -> None:
        """Ctrl+C as people expect it: copy a selection, else stop, else leave at the second press."""
        selected = self.composer.selected_text or self.get_selected_text()
        now = time.monotonic()
        if selected:
            self.app.copy_to_clipboard(selected)
            self._say("Sent to the terminal's clipboard.")
        elif self.talk.turn is not None:
            self.action_stop()
        elif now - self._interrupted_at < QUIT_TWICE_S:
            self.app.exit()
        else:
            self._interrupted_at = now
            self._say("^C again, or ^Q, leaves.")

    def _say(self, text: str, severity: Literal["information", "error"] = "information") -> None:
        self.notify(text, severity=severity, markup=False, timeout=5)

    # Chats

    def action_new_session(self) -> None:
        if self._may_switch():
            self.talk.start_over()
            self.transcript.replace([Welcome()])
            self.figures.draw()

    @work(exclusive=True, group="sessions")
    async def action_sessions(self) -> None:
        if not self._may_switch():
            return
        recorder = self.services.recorder
        try:
            rows = await asyncio.wrap_future(recorder.call(Store.sessions))
            chosen = await self.app.push_screen_wait(SessionsScreen(rows, self.services.glyphs))
            if chosen is not None:
                facts, messages = await asyncio.wrap_future(recorder.call(lambda store: _session(store, chosen.id)))
                self._resume(resumed_blocks(messages, self._resumed_answer))
                self.talk.resume(facts, messages)
                self.figures.draw()
        except StoreError as error:
            self._say(str(error), "error")

    def _may_switch(self) -> bool:
        if self.talk.turn is None:
            return True
        self._say("An answer is still being written. Esc stops it first.")
        return False

    def _resumed_answer(self, reasoning: str, content: str, tool: str) -> Answer:
        return Answer(self.services.glyphs, reasoning, content, tool)

    def _resume(self, blocks: list[UserMessage | Answer]) -> None:
        shown: list[Block] = [*blocks]
        self.transcript.replace(shown or [Welcome()])
        for block in blocks:
            if isinstance(block, UserMessage):
                self.composer.prompts.add(self.composer.draft_of(block.text))

    @work(group="history")
    async def _load_history(self) -> None:
        """Prompts of earlier runs, for the up key."""
        try:
            prompts = await asyncio.wrap_future(self.services.recorder.call(_recent_prompts))
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
            self._say(f"The panel needs {PANEL_WIDTH} columns; this terminal has {self.app.size.width}.")
            return
        self.toggle_class("-no-panel")
        self.call_after_refresh(self.figures.draw)


def _session(store: Store, session_id: int) -> tuple[SessionFacts, list[MessageRow]]:
    return store.facts(session_id), store.messages(session_id)


def _recent_prompts(store: Store) -> list[str]:
    """What the user asked in the last few chats, oldest first."""
    rows = [store.messages(session.id) for session in reversed(store.sessions(HISTORY_SESSIONS))]
    return [message.content for messages in rows for message in messages if message.role == "user"]
