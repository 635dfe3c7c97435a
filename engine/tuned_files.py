"""Tunings kept in a folder, one JSON file for each model, device, profile and width of the cached keys and values."""

import hashlib
import json
import logging
import math
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from engine import device
from engine.config import EngineConfig
from engine.models.locate import BUNDLED, locate
from engine.tuned import Tuning
from engine.whole_file import write_whole

log = logging.getLogger(__name__)
PACKAGES = ("mtplx-tui", "mlx", "mlx-lm")
MOST_BYTES = 1 << 20  # a record has 5 kB
SAMPLE = 64 * 1024  # bytes of a weights file's head and tail: its header, and weights that no two trainings share


def find(folder: Path, config: EngineConfig) -> Tuning | None:
    """The tuning that holds for this config here and now, or None.

    Records that are damaged, of other files under the same name, of another device or of other versions are passed
    over with a line in the log. The model is looked at only where there is a record of its name.

    Raises what `locate` raises.
    """
    wanted = Path(os.path.realpath(os.path.expanduser(config.model or BUNDLED))).name
    records = {
        file: record
        for file in sorted(folder.glob("*.json"))
        if (record := _read(file)) is not None
        and (Path(record.model).name, record.profile, record.kv_bits) == (wanted, config.profile.name, config.kv_bits)
    }
    if not records:
        return None
    here = (fingerprint(locate(config.model).path), device.device_name(), versions())
    for file, record in records.items():
        if (record.fingerprint, record.device, record.versions) == here:
            return record
        what = "other files" if record.fingerprint != here[0] else f"{record.device}, {record.versions}"
        log.warning("%s does not hold here: it was measured with %s", file, what)
    return None


def save(folder: Path, tuning: Tuning) -> Path:
    """Keep a tuning in place of an older one. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = _file(folder, tuning)
    write_whole(file, json.dumps(asdict(tuning), indent=1))
    return file


def remove(folder: Path, tuning: Tuning) -> bool:
    """Forget what was kept for the same model, device, profile and width; False where nothing was. Raises OSError."""
    with suppress(FileNotFoundError):
        _file(folder, tuning).unlink()
        return True
    return False


def versions() -> dict[str, str]:
    """What a step's cost and text depend on, as installed."""
    return device.versions(PACKAGES)


def fingerprint(model: Path) -> str:
    """A hash that tells a model folder from others: its config, and of each weights file the size, head and tail."""
    digest = hashlib.sha256((model / "config.json").read_bytes())
    for file in sorted(model.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"\0{file.name}\0{size}\0".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(SAMPLE))
            weights.seek(max(0, size - SAMPLE))
            digest.update(weights.read(SAMPLE))
    return digest.hexdigest()


def _file(folder: Path, tuning: Tuning) -> Path:
    key = "\0".join([tuning.fingerprint, tuning.device, tuning.profile, str(tuning.kv_bits)])
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _read(file: Path) -> Tuning | None:
    from pydantic import TypeAdapter

    try:
        with file.open("rb") as text:
            record = TypeAdapter(Tuning).validate_json(text.read(MOST_BYTES), strict=True)
        _check(record)
    except (OSError, ValueError) as error:
        log.warning("%s is not a tuning and is passed over: %s", file, " ".join(str(error).split()))
        return None
    return record


def _check(record: Tuning) -> None:
    """Raise ValueError for what tune does not write: a policy would divide by these figures."""
    if [row.depth for row in record.rows] != list(range(len(record.rows))):
        raise ValueError("its depths have gaps")
    if not (record.saved and 1 <= record.best_depth < len(record.rows)):
        raise ValueError(f"its best depth is {record.best_depth}")
    for row in record.rows:
        shares = row.acceptance_by_place
        if not (math.isfinite(row.seconds_per_step) and row.seconds_per_step > 0 and len(shares) == row.depth):
            raise ValueError(f"depth {row.depth} is not a measurement")
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError(f"depth {row.depth} has a share outside of 0 to 1")
