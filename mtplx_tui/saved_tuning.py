"""What `tune` kept, for the engines that start after it."""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from mtplx_tui import paths

if TYPE_CHECKING:
    from engine.config import EngineConfig

log = logging.getLogger(__name__)


def with_saved_tuning(config: "EngineConfig") -> "EngineConfig":
    """The config with what was measured for its model on this machine, where that is here and the depth is automatic.

    A record that can not be used is a line in the log. Where there are none, which is usual, this costs nothing.
    """
    folder = paths.tunings_folder()
    if config.mode == "ar" or config.depth is not None or not any(folder.glob("*.json")):
        return config
    from engine.errors import EngineError
    from engine.tuned_files import find

    try:
        found = find(folder, config)
    except EngineError as error:  # the engine meets the same, and says it where it is seen
        log.warning("no tuning was looked for: %s", error)
        return config
    return config if found is None else replace(config, tuned=found.tuned())
