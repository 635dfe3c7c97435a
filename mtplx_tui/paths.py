"""Where the program keeps its files on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from platformdirs.api import PlatformDirsABC

APP = "mtplx-tui"


def _dirs() -> "PlatformDirsABC":
    import platformdirs  # here, since every start of the program would pay for it

    return platformdirs.PlatformDirs(APP, appauthor=False)


def sessions_file() -> Path:
    """The SQLite file with all conversations."""
    return _dirs().user_data_path / "sessions.db"


def tunings_folder() -> Path:
    """The folder of what `tune` measured, a JSON file for each model and device."""
    return _dirs().user_data_path / "tunings"


def prefixes_folder() -> Path:
    """The folder of what was read of earlier prompts, so that it need not be read again after a restart."""
    return _dirs().user_cache_path / "prefixes"


def log_file() -> Path:
    """The text file that takes what native code prints while the screen is up, and the details of crashes."""
    return _dirs().user_log_path / "mtplx-tui.log"


def timings_file() -> Path:
    """What the engine timed on this machine, to choose the fastest of several ways to do a thing."""
    return _dirs().user_cache_path / "timings.json"


def servers_folder() -> Path:
    """A file for each server of ours that runs on this machine."""
    return _dirs().user_state_path / "servers"


def exports_folder() -> Path:
    """What the screens write on request: chats, figures, pictures."""
    return _dirs().user_documents_path / APP


def last_copy_file() -> Path:
    """What was copied last, for terminals that take nothing from programs."""
    return _dirs().user_cache_path / "last-copy.txt"


def benchmarks_folder() -> Path:
    """Results of benchmarks that were started in the workbench."""
    return _dirs().user_data_path / "benchmarks"


def settings_file() -> Path:
    """What the user keeps from one start to the next."""
    return _dirs().user_config_path / "settings.toml"


def tour_file() -> Path:
    """Which hints of the first run were seen to."""
    return _dirs().user_state_path / "tour"
