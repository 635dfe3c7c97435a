"""Keys: one table a room, for its bindings, its footer and its help page."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.binding import Binding

from mtplx_tui.layout.spans import Line, Span, fit, merge


@dataclass(frozen=True, slots=True)
class Key:
    """A key that does something now.

    Attributes:
        key: Textual's name of it. shown: how it is written. action: None where a widget handles it itself.
        footer: its word in the footer, or None to leave it out. help: what it does, for the help page.
    """

    key: str
    shown: str
    action: str | None
    footer: str | None
    help: str


CHAT_KEYS = (
    Key("enter", "Enter", None, None, "send the message"),
    Key("ctrl+j", "^J", None, None, "new line in the message (Shift+Enter too, where the terminal tells them apart)"),
    Key("escape", "Esc", "stop", None, "stop the answer; what came is kept"),
    Key("f1", "F1", "help", "help", "this page"),
    Key("f2", "F2-F7", None, None, "the rooms of the workbench, as the tabs say"),
    Key("ctrl+n", "^N", "new_session", "new", "new chat; the old one stays saved"),
    Key("ctrl+o", "^O", "sessions", "chats", "saved chats, to go on with one"),
    Key(
        "ctrl+t", "^T", "thinking", "thinking", "unfold or fold the thinking of all answers (a click on its line: one)"
    ),
    Key("ctrl+l", "^L", "panel", "panel", "side panel on or off (it needs 110 columns)"),
    Key("ctrl+p", "^P", "command_palette", "palette", "all commands, and the colour themes"),
    Key("ctrl+q", "^Q", "quit", "quit", "leave; chats are saved"),
    Key("ctrl+c", "^C", "interrupt", None, "copy what is selected, else stop the answer; twice: leave"),
    Key("up", "Up/Down", None, None, "in an empty message: earlier messages of yours"),
    Key("pageup", "PgUp/PgDn", None, None, "scroll; at the end it follows the answer again"),
    Key("ctrl+end", "^End", "follow", None, "go to the end and follow the answer"),
)


WORKBENCH_KEYS = (
    Key("f1", "F1", "help", "help", "this page"),
    Key("f2", "F2-F7", None, "rooms", "the other rooms: chat, dashboard and so on, as the tabs say"),
    Key("ctrl+p", "^P", "command_palette", "palette", "all commands, and the colour themes"),
    Key("ctrl+q", "^Q", "quit", "quit", "leave; chats are saved"),
)
"""Keys that every room but the chat begins with; the chat has its own words for them."""


def bindings(keys: Sequence[Key]) -> list[Binding]:
    """Those that are actions of the room."""
    return [
        Binding(key.key, key.action, key.help, show=False, priority=True)
        for key in keys
        if key.action not in (None, "command_palette", "quit")
    ]


def footer(keys: Sequence[Key], width: int) -> Line:
    """The keys that the footer shows, in one line."""
    spans: list[Span] = []
    for key in keys:
        if key.footer:
            spans += [(" ", ""), (key.shown, "accent strong"), (f" {key.footer} ", "muted")]
    return fit(merge(spans), width, "")
