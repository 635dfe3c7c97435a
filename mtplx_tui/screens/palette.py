"""The palette's commands: the rooms, what the room that is seen can do, and what is Textual's own."""

from collections.abc import Iterable
from functools import partial

from textual.app import App, SystemCommand
from textual.screen import Screen

from mtplx_tui.rooms import TABS
from mtplx_tui.screens.room import Room

MOVES = ("left", "right", "up", "down", "pageup", "pagedown", "home", "end")
"""Keys that go somewhere: no commands, since the palette is closed again after each."""

PALETTE, QUIT = "command_palette", "quit"


def commands(app: App[None], screen: Screen[object], own: Iterable[SystemCommand]) -> list[SystemCommand]:
    """What the palette lists above `screen`. `own` are Textual's commands, of which the useful ones stay."""
    found: list[SystemCommand] = []
    if isinstance(screen, Room):
        found += [
            SystemCommand(
                key.footer.capitalize(), f"{key.help} ({key.shown})", partial(app.run_action, key.action, screen)
            )
            for key in screen.KEYS
            if key.footer and key.action and key.action not in (PALETTE, QUIT) and key.key not in MOVES
        ]
        found += [
            SystemCommand(
                f"Room: {tab.title}", f"go there ({tab.key.upper()})", partial(app.run_action, f"room('{tab.name}')")
            )
            for tab in TABS
            if tab.name != screen.NAME
        ]
    return found + [command for command in own if command.title in ("Theme", "Screenshot", "Quit")]
