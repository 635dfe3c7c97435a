"""Where the program keeps its files on this machine."""

from pathlib import Path

import platformdirs

APP = "mtplx-tui"


def sessions_file() -> Path:
    """The SQLite file with all conversations."""
    return platformdirs.user_data_path(APP, appauthor=False) / "sessions.db"


def log_file() -> Path:
    """The text file that takes what native code prints while the screen is up, and the details of crashes."""
    return platformdirs.user_log_path(APP, appauthor=False) / "mtplx-tui.log"
