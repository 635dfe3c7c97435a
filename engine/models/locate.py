"""From the name that a user gives to a checked folder on this machine."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelNotFoundError
from engine.models import smollm2
from engine.models.check import check_folder

BUNDLED = "demo-13m"
ASSETS = Path(__file__).parent.parent / "assets"
_SHOWN = 12  # names that an error lists


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's name, as it is shown and served, and its folder."""

    name: str
    path: Path


def model_store() -> Path:
    """The folder where this program keeps the models that it made or downloaded."""
    import platformdirs

    return platformdirs.user_data_path("mtplx-tui") / "models"


def locate(name: str | None) -> ModelFiles:
    """The checked folder of a model; `smollm2-135m` is built on its first use, nothing else is ever downloaded.

    Args:
        name: a bundled name, a name in the model store, a folder, or a hub repository (`org/name`) that is already in
            the hub's cache. None is the bundled model.
    Raises:
        ModelNotFoundError: nothing of that name is here; the message lists what is.
        ModelBrokenError: its files are incomplete or damaged.
    """
    found = _find(BUNDLED if name is None else name)
    check_folder(found.path)
    return found


def here() -> list[str]:
    """Names that `locate` knows without a download: bundled, in the model store, in the hub's cache."""
    stored = sorted(p.name for p in model_store().glob("*") if p.is_dir() and not p.name.startswith("."))
    cached = [p.name.removeprefix("models--").replace("--", "/", 1) for p in _hub_cache().glob("models--*--*")]
    hub = sorted(repo for repo in cached if (found := _hub_snapshot(repo)) and any(found.glob("model*.safetensors")))
    return list(dict.fromkeys([BUNDLED, smollm2.NAME, *stored, *hub]))


def _find(name: str) -> ModelFiles:
    if name == BUNDLED:
        return ModelFiles(name, ASSETS / BUNDLED)
    if name == smollm2.NAME:
        return ModelFiles(name, smollm2.ensure(model_store(), ASSETS / "smollm2-135m-mtp"))
    if re.fullmatch(r"\w[\w.-]*", name) and os.path.isdir(model_store() / name):
        return ModelFiles(name, model_store() / name)
    place = os.path.expanduser(name)
    if name and os.path.isdir(place):
        folder = Path(place).resolve()
        return ModelFiles(folder.name, folder)
    if os.path.isfile(place):
        raise ModelNotFoundError(f"{_shown(name)} is a file. Give the folder that holds it and its config.json.")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        snapshot = _hub_snapshot(name)
        if snapshot is not None:
            return ModelFiles(name, snapshot)
        way_on = f"If it is a hub repository, get it with `mtplx-tui pull {name}`; if a folder, check its path."
    else:
        way_on = "Or give the path of a model's folder."
    raise ModelNotFoundError(f"No model {_shown(name)} is here. There are: {_listed(here())}. {way_on}")


def _hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _hub_snapshot(repo: str) -> Path | None:
    """The cached snapshot of a repository, found without asking the network."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo, "config.json")
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 200 else name[:200] + "...")


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
