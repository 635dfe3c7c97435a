"""What the settings room shows: which section, which setting, and what was read of them."""

from dataclasses import dataclass, replace

from mtplx_tui.layout.spans import Line
from mtplx_tui.settings_page.desk import Entry, Reading

KEYS = "keys"
"""The section that lists the keys of each room, and has no settings."""


@dataclass(frozen=True, slots=True)
class SettingsView:
    """`reading` is None until the settings were read once. `keys` are the lines of the section of that name."""

    reading: Reading | None = None
    section: int = 0
    place: int = 0
    keys: tuple[Line, ...] = ()

    @property
    def sections(self) -> tuple[str, ...]:
        """Those in which there is something, and the keys."""
        entries = self.reading.entries if self.reading is not None else ()
        return (*dict.fromkeys(entry.setting.section for entry in entries), KEYS)

    @property
    def name(self) -> str:
        """The section that is shown."""
        return self.sections[min(self.section, len(self.sections) - 1)]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Those of the section."""
        every = self.reading.entries if self.reading is not None else ()
        return tuple(entry for entry in every if entry.setting.section == self.name)

    @property
    def chosen(self) -> Entry | None:
        return self.entries[min(self.place, len(self.entries) - 1)] if self.entries else None

    def choosing(self, by: int) -> "SettingsView":
        """Another setting of the section, or in the keys another line at the top."""
        rows = len(self.keys) if self.name == KEYS else len(self.entries)
        return replace(self, place=min(max(self.place + by, 0), max(rows - 1, 0)))

    def turning(self, by: int) -> "SettingsView":
        """Another section."""
        return replace(self, section=(self.section + by) % len(self.sections), place=0)
