"""What all tests share: MLX as the product prepares it, and no trace in the user's own folders."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.dont_write_bytecode:
    # A shell that keeps bytecode out of its folders has every worker, and every program that a test starts, compile
    # all it imports: 3 s of CPU each time. Theirs goes to a folder beside pytest's own.
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    sys.dont_write_bytecode = False
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from engine import device

device.prepare()


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches and data go to a folder of this test run."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield
