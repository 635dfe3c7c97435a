"""Starting programs in terminals of their own, with an empty home folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pseudoterminal import Pty


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder, which the program's files go into."""
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Pty]]:
    """Starts a program in a pty; gives the running Pty. All are killed at the end of the test."""
    running: list[Pty] = []

    def start(*argv: str, size: tuple[int, int] = (40, 120)) -> Pty:
        running.append(Pty(list(argv), home, size))
        return running[-1]

    yield start
    for pty in running:
        pty.close()
