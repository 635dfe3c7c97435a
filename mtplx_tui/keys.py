"""Keys: one table a room, for its bindings, its footer and its help page."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding

from mtplx_tui.layout.spans import Line, merge, width_of


@dataclass(frozen=True, slots=True)
class Key:
    """A key that does something now.

    Attributes:
        key: Textual's name of it. shown: how it is written. action: None where a widget handles it itself.
        footer: its word in the footer, or None to leave it out. help: what it does, for the help page.
        spare: how well a narrow footer can do without it; 0 stays the longest.
    """

    key: str
    shown: str
    action: str | None
    footer: str | None
    help: str
    spare: int = 1


CHAT_KEYS = (
    Key("enter", "Enter", None, None, "send the message"),
    Key("ctrl+j", "^J", None, None, "new line in the message (Shift+Enter too, where the terminal tells them apart)"),
    Key(
        "escape", "Esc", "stop", None, "stop the answer; what came is kept. While nothing runs: read, copy, edit, redo"
    ),
    Key("f1", "F1", "help", "help", "this page", spare=0),
    Key("f2", "F2-F7", None, None, "the rooms of the workbench, as the tabs say"),
    Key("ctrl+n", "^N", "new_session", "new", "new chat; the old one stays saved"),
    Key("ctrl+o", "^O", "sessions", "chats", "saved chats, to go on with one"),
    Key("ctrl+r", "^R", "typing('history')", "history", "search earlier messages of yours"),
    Key("ctrl+g", "^G", "typing('editor')", None, "write the message in $EDITOR"),
    Key("slash", "/", None, None, "at the beginning of a message: commands; Tab completes them"),
    Key(
        "ctrl+t", "^T", "thinking", "thinking", "unfold or fold the thinking of all answers (a click on its line: one)"
    ),
    Key("ctrl+l", "^L", "panel", "panel", "side panel on or off (it needs 110 columns)", spare=2),
    Key("ctrl+p", "^P", "command_palette", "palette", "all commands, and the colour themes", spare=3),
    Key("ctrl+q", "^Q", "quit", "quit", "leave; chats are saved", spare=0),
    Key("ctrl+c", "^C", "interrupt", None, "copy what is selected, else stop the answer; twice: leave"),
    Key("up", "Up/Down", None, None, "in an empty message: earlier messages of yours"),
    Key("pageup", "PgUp/PgDn", None, None, "scroll; at the end it follows the answer again"),
    Key("ctrl+end", "^End", "follow", None, "go to the end and follow the answer"),
)


WORKBENCH_KEYS = (
    Key("f1", "F1", "help", "help", "this page", spare=0),
    Key("f2", "F2-F7", None, "rooms", "the other rooms: chat, dashboard and so on, as the tabs say", spare=2),
    Key("ctrl+p", "^P", "command_palette", "palette", "all commands, and the colour themes", spare=3),
    Key("ctrl+q", "^Q", "quit", "quit", "leave; chats are saved", spare=0),
)
"""Keys that every room but the chat begins with; the chat has its own words for them."""


READING_KEYS = (
    Key("up", "Up/Down", "choose(-1)", None, "the message before, the message after (k and j too)"),
    Key("k", "", "choose(-1)", None, ""),
    Key("down", "", "choose(1)", None, ""),
    Key("j", "", "choose(1)", None, ""),
    Key("y", "y", "screen.reading('copy_message')", "copy", "copy the message"),
    Key("c", "c", "screen.reading('copy_code')", "code", "copy its code block; again: the next one"),
    Key("Y", "Y", "screen.reading('copy_all')", None, "copy the whole chat as Markdown"),
    Key("e", "e", "screen.reading('edit')", "edit", "edit a message of yours and send it again"),
    Key("r", "r", "screen.reading('regenerate')", "redo", "have the answer made anew, as another version"),
    Key("left_square_bracket", "[ and ]", "screen.reading('older')", "version", "the version before, and after"),
    Key("right_square_bracket", "", "screen.reading('newer')", None, ""),
    Key("b", "b", "screen.reading('fork')", "fork", "go on from here in a copy of the chat"),
    Key("t", "t", "fold", "fold", "fold or unfold the thinking"),
    Key("s", "s", "screen.reading('steps')", "steps", "how the answer was made: each token's origin and alternatives"),
    Key("slash", "/", "screen.reading('find')", "find", "find text in this chat"),
    Key("n", "n", "screen.reading('find_next')", None, "find it again"),
    Key("pageup", "", "scroll(-1)", None, ""),
    Key("pagedown", "", "scroll(1)", None, ""),
    Key("i", "i, Esc", "screen.compose", "write", "back to the message that is being written; so does typing", spare=0),
)
"""Keys of the chat while its messages are read: Esc in an idle chat begins that."""

CARD_KEYS = (
    Key("a", "a", "decide('once')", "allow", "run the tool call that is chosen", spare=0),
    Key("A", "A", "decide('always')", "always", "run it, and this tool's later calls in this chat", spare=0),
    Key("D", "D", "decide('deny')", "deny", "do not run it; the model is told so", spare=0),
)
"""Keys of a tool call that waits for the user's word, while it is the chosen one."""

STEPS_KEYS = (
    Key("left", "Left/Right", "token(-1)", "token", "the token before, the token after"),
    Key("h", "", "token(-1)", None, ""),
    Key("right", "", "token(1)", None, ""),
    Key("l", "", "token(1)", None, ""),
    Key("up", "Up/Down", "step(-1)", "step", "the step before, the step after"),
    Key("k", "", "step(-1)", None, ""),
    Key("down", "", "step(1)", None, ""),
    Key("j", "", "step(1)", None, ""),
    Key("pageup", "PgUp/PgDn", "page(-1)", None, "a page of steps back, a page on"),
    Key("pagedown", "", "page(1)", None, ""),
    Key("home", "Home/End", "end(-1)", "ends", "the first token, the last; there it follows an answer that grows"),
    Key("end", "", "end(1)", None, ""),
    Key("p", "p", "probabilities", "probabilities", "ask for probabilities with the next answers, or not"),
    Key("escape", "Esc", "dismiss", "close", "back to the chat", spare=0),
    Key("q", "", "dismiss", None, ""),
    Key("s", "", "dismiss", None, ""),
)
"""Keys of the view of an answer's steps."""


def bindings(keys: Sequence[Key], *, priority: bool = True) -> list[Binding]:
    """Those that are actions. With `priority` they are taken before the widget that has the focus sees them."""
    return [
        Binding(key.key, key.action, key.help, show=False, priority=priority)
        for key in keys
        if key.action not in (None, "command_palette", "quit")
    ]


def footer(keys: Sequence[Key], width: int) -> Line:
    """The keys that the footer shows, in one line of at most `width` cells; those it can spare leave it first, whole.

    Among equals the later ones leave first.
    """
    shown = [key for key in keys if key.footer]
    while shown and width_of(_words(shown)) > width:
        shown.remove(max(reversed(shown), key=lambda key: key.spare))
    return _words(shown)


def _words(keys: Sequence[Key]) -> Line:
    spans = [span for key in keys for span in ((" ", ""), (key.shown, "accent strong"), (f" {key.footer} ", "muted"))]
    return merge(spans)
