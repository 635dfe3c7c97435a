"""Every setting with its value, where that comes from and when another holds; and changing one wherever it belongs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtplx_tui.remote.api import NotNowError
from mtplx_tui.saved_settings import SETTINGS, Saved, Setting, SettingError, in_words, load, parse, save
from mtplx_tui.server_settings import Held, ServerSettings

WHEN = {"server": "holds at once", "screen": "holds at once", "start": "holds from the next start"}
THERE = "holds at once, there, until that server ends"


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting as it is now.

    Attributes:
        value: as it would be typed. own: what the model does where the value is none; empty where that says nothing.
        source: where the value comes from. when: from when a new one holds.
        later: what holds from the next start, where that is another one; else empty.
    """

    setting: Setting
    value: str
    own: str
    source: str
    when: str
    later: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """All settings that there are here, in the order of their sections. `notes` say what of them could not be read."""

    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """What the screen itself draws with: its values by name, and how one is set."""

    values: Callable[[], Mapping[str, Any]]
    use: Callable[[str, Any], None]


@dataclass(frozen=True, slots=True)
class Desk:
    """All methods may be slow; call them off the screen's thread.

    Attributes:
        file: what is kept. server: what the engine's server takes while it runs; None where it takes nothing of ours.
        here: whether the engine is on this machine, so that what is kept is about it. screen: of the display.
        kept, given: values by name that held from the start, out of the file and from the command line.
    """

    file: Path
    server: ServerSettings | None
    here: bool
    screen: Screen
    kept: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Reading:
        """Look at all of them. What can not be read is left out, and a note says why."""
        notes: list[str] = []
        try:
            loaded = load(self.file)
            saved, notes = loaded.saved, list(loaded.notes)
        except OSError as error:
            saved = Saved()
            notes.append(f"{self.file} can not be read: {error.strerror or error}.")
        held: Mapping[str, Held] = {}
        try:
            held = self.server.read() if self.server is not None else {}
        except NotNowError as error:
            notes.append(f"The server's settings can not be read just now: {error}.")
        shown = self.screen.values()
        entries = [self._entry(setting, saved, held, shown) for setting in SETTINGS]
        return Reading(tuple(entry for entry in entries if entry is not None), tuple(notes))

    def change(self, setting: Setting, text: str | None) -> None:
        """Set one to what was typed, or with None back to its default.

        Raises:
            SettingError: it can not be that; nothing has changed. NotNowError: its server can not be reached.
        """
        value = None if text is None else parse(setting.name, text)
        if setting.applies == "server" and self.server is not None:
            self.server.change({setting.name: value})
        if setting.applies == "screen":
            self.screen.use(setting.name, setting.default if value is None else value)
        if self.here or setting.applies != "server":
            try:
                save(self.file, {setting.name: value})
            except OSError as error:
                now = "" if setting.applies == "start" else "It holds now, but "
                raise SettingError(f"{now}{self.file} can not be written: {error.strerror or error}.") from error

    def _entry(
        self, setting: Setting, saved: Saved, held: Mapping[str, Held], shown: Mapping[str, Any]
    ) -> Entry | None:
        name = setting.name
        match setting.applies:
            case "server":
                if name not in held:
                    return None
                value, effective = held[name].value, held[name].effective
                own = f"the model's own: {in_words(effective)}" if value is None and effective is not None else ""
                when = WHEN["server"] if self.here else THERE
                return Entry(setting, in_words(value), own, self._source(setting, saved, value), when)
            case "screen":
                value = shown[name]
                return Entry(setting, in_words(value), "", self._source(setting, saved, value), WHEN["screen"])
            case "start":
                if not self.here and setting.section != "display":
                    return None
                words = in_words({**self.kept, **self.given}.get(name, setting.default))
                source = "command line" if name in self.given else "file" if name in self.kept else "default"
                later = in_words(getattr(saved, name))
                return Entry(setting, words, "", source, WHEN["start"], "" if later == words else later)

    def _source(self, setting: Setting, saved: Saved, value: Any) -> str:
        """In a word or two: where a value comes from."""
        words, name = in_words(value), setting.name
        if not self.here and setting.applies == "server":
            return "default" if words == in_words(setting.default) else "that server"
        if name in self.given and words == in_words(self.given[name]):
            return "command line"
        if name in saved.model_fields_set and words == in_words(getattr(saved, name)):
            return "file"
        return "default" if words == in_words(setting.default) else "this run"
