"""The settings room's page: the sections, one section's settings, and what there is to say of the chosen one."""

from collections.abc import Sequence

from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, Span, cells, fit, merge, plain, width_of, wrap
from mtplx_tui.saved_settings import in_words
from mtplx_tui.settings_page.desk import Entry
from mtplx_tui.settings_page.view import KEYS, SettingsView

WIDE = 110
SECTIONS = 16
"""Cells of the list of sections, its frame included."""
BELOW = 9
"""Rows of the box that explains the chosen setting, its frame included."""
TITLE = 20


def settings_page(view: SettingsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines of `width` cells; none where that is less than the smallest terminal gives."""
    if height < 2 * BELOW:
        return []
    left = SECTIONS if width < WIDE else 2 * SECTIONS
    right = width - left
    names: list[Line] = [
        ((f"> {name}", "accent strong") if name == view.name else (f"  {name}", "muted"),) for name in view.sections
    ]
    sections = framed(names, left, height, glyphs, "section", f"Left/Right{' section' if width >= WIDE else ''}")
    if view.name == KEYS:
        page = _keys(view, right, height, glyphs)
    else:
        page = [
            *framed(_rows(view, right - 4, height - BELOW - 2, glyphs), right, height - BELOW, glyphs, view.name,
                    f"Enter changes {glyphs.dot} r resets"),
            *framed(_about(view, right - 4, BELOW - 2, glyphs), right, BELOW, glyphs, _named(view.chosen)),
        ]  # fmt: skip
    return [(*one, *other) for one, other in zip(sections, page, strict=True)]


def _named(entry: Entry | None) -> str:
    return entry.setting.name if entry is not None else ""


def _rows(view: SettingsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    if view.reading is None:
        return [(("reading the settings", "muted"),)]
    notes = [line for note in view.reading.notes for line in wrap([(one_line(note, glyphs), "warn")], width)]
    entries, chosen = view.entries, view.chosen
    shown = max(height - len(notes), 1)
    at = entries.index(chosen) if chosen is not None else 0
    first = min(max(at - shown + 1, 0), max(len(entries) - shown, 0))
    return [
        *(_row(entry, entry is chosen, width, glyphs) for entry in entries[first : first + shown]),
        *notes[: max(height - len(entries), 0)],
    ]


def _row(entry: Entry, chosen: bool, width: int, glyphs: Glyphs) -> Line:
    source = entry.source if not entry.later else f"{entry.source}, next start: {entry.later}"
    room = width - 2 - TITLE - 1
    value = entry.value if not entry.own else f"{entry.value} ({entry.own})"
    words = fit(((one_line(value, glyphs), "strong" if entry.source != "default" else ""),),
                max(room - cells(source) - 1, 8), glyphs.ellipsis)  # fmt: skip
    gap = max(room - cells(plain(words)) - cells(source), 1)
    mark: Span = ("> ", "accent strong") if chosen else ("  ", "")
    line = merge([mark, (f"{entry.setting.title:<{TITLE}} ", ""), *words, (" " * gap, ""), (source, "muted")])
    return fit(line, width, glyphs.ellipsis)


def _about(view: SettingsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """What the chosen setting does, what holds without it, when another value does, and what it may be."""
    entry = view.chosen
    if entry is None:
        return []
    lines = wrap([(entry.setting.help, "")], width)
    for name, text in (("default", in_words(entry.setting.default)), ("a new one", entry.when),
                       ("may be", entry.setting.allowed)):  # fmt: skip
        first, *rest = wrap([(one_line(text, glyphs), "")], width - 10)
        lines += [merge([(f"{name:<10}", "muted"), *first]), *(merge([(" " * 10, ""), *line]) for line in rest)]
    if len(lines) > height:
        last, mark = lines[height - 1], f" {glyphs.ellipsis}"
        if width_of(last) + cells(mark) <= width:
            last = merge([*last, (mark, "")])
        else:
            last = fit(merge([*last, (" " * width, "")]), width, glyphs.ellipsis)
        lines = [*lines[: height - 1], last]
    return lines


def _keys(view: SettingsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    room = height - 2
    first = min(view.place, max(len(view.keys) - room, 0))
    shown: Sequence[Line] = [fit(line, width - 4, glyphs.ellipsis) for line in view.keys[first : first + room]]
    left = len(view.keys) - first - len(shown)
    return framed(shown, width, height, glyphs, KEYS, f"Up/Down {glyphs.dot} {left} more" if left else "Up/Down")
