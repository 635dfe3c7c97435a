"""Colours: blue for accepted, orange for refused, and never a meaning by colour alone."""

from textual.theme import Theme

DARK = Theme(
    name="mtplx-dark",
    primary="#6cb6ff",
    secondary="#8ddb8c",
    accent="#6cb6ff",
    warning="#f0a35e",
    error="#ff7b72",
    success="#8ddb8c",
    foreground="#d5dbe3",
    background="#0e1218",
    surface="#141a22",
    panel="#1b232d",
    dark=True,
    variables={
        "border": "#3d4b5c",
        "border-blurred": "#2b3643",
        "input-selection-background": "#2b5a8c",
        "scrollbar": "#2b3643",
        "scrollbar-hover": "#3d4b5c",
        "scrollbar-active": "#6cb6ff",
        "scrollbar-background": "#0e1218",
        "scrollbar-background-hover": "#0e1218",
        "scrollbar-background-active": "#0e1218",
    },
)

LIGHT = Theme(
    name="mtplx-light",
    primary="#0a5fb4",
    secondary="#1f7a33",
    accent="#0a5fb4",
    warning="#a8530a",
    error="#b3261e",
    success="#1f7a33",
    foreground="#1d242c",
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#e6e6e0",
    dark=False,
    variables={
        "border": "#9aa5b1",
        "border-blurred": "#c3cad2",
        "scrollbar": "#c3cad2",
        "scrollbar-hover": "#9aa5b1",
        "scrollbar-active": "#0a5fb4",
        "scrollbar-background": "#fbfbf9",
        "scrollbar-background-hover": "#fbfbf9",
        "scrollbar-background-active": "#fbfbf9",
    },
)

THEMES = (DARK, LIGHT)


def default_theme(color_system: str | None) -> str:
    """Our own where the terminal has 256 colours or more; its own palette where it has 16."""
    return "ansi-dark" if color_system in ("standard", "windows") else DARK.name
