"""Where the program keeps its files on this machine."""

from pathlib import Path

import platformdirs

APP = "mtplx-tui"


def sessions_file() -> Path:
    """The SQLite file with all conversations."""
    return platformdirs.user_data_path(APP, appauthor=False) / "sessions.db"


def tunings_folder() -> Path:
    """The folder of what `tune` measured, a JSON file for each model and device."""
    return platformdirs.user_data_path(APP, appauthor=False) / "tunings"


def prefixes_folder() -> Path:
    """The folder of what was read of earlier prompts, so that it need not be read again after a restart."""
    return platformdirs.user_cache_path(APP, appauthor=False) / "prefixes"


def log_file() -> Path:
    """The text file that takes what native code prints while the screen is up, and the details of crashes."""
    return platformdirs.user_log_path(APP, appauthor=False) / "mtplx-tui.log"


def timings_file() -> Path:
    """What the engine timed on this machine, to choose the fastest of several ways to do a thing."""
    return platformdirs.user_cache_path(APP, appauthor=False) / "timings.json"


def servers_folder() -> Path:
    """A file for each server of ours that runs on this machine."""
    return platformdirs.user_state_path(APP, appauthor=False) / "servers"


def exports_folder() -> Path:
    """What the screens write on request: chats, figures, pictures."""
    return platformdirs.user_documents_path() / APP


def last_copy_file() -> Path:
    """What was copied last, for terminals that take nothing from programs."""
    return platformdirs.user_cache_path(APP, appauthor=False) / "last-copy.txt"


def benchmarks_folder() -> Path:
    """Results of benchmarks that were started in the workbench."""
    return platformdirs.user_data_path(APP, appauthor=False) / "benchmarks"
