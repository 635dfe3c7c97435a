"""Looks a model folder over before anything loads it: all files there, readable and safe. No mlx."""

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelBrokenError, ModelNotFoundError
from engine.models.headers import read_header, sidecar_files, weight_files

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_folder(folder: Path) -> None:
    """Raise where the folder can not be loaded, naming the file, what is wrong with it and what to do.

    Python files in a folder are never run, and pickles never read; a checkpoint that needs either is refused.

    Raises:
        ModelNotFoundError: there is no model in this folder.
        ModelBrokenError: files are missing, damaged, or would run code.
    """
    if not (folder / "config.json").exists() and not weight_files(folder):
        raise ModelNotFoundError(
            f"{folder} holds no model: no config.json and no model*.safetensors are in it. Give the folder with them."
        )
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise _broken(folder / "config.json", "does not say its model_type", "Copy or download this file again.")
    if not isinstance(config.get("text_config", {}), dict):
        raise _broken(
            folder / "config.json", "has a text_config that is no object", "Copy or download this file again."
        )
    if config.get("model_file") is not None:
        raise _broken(
            folder / "config.json",
            f"wants its own code to be run (model_file: {config['model_file']!r}), which is refused",
            "Use a checkpoint of an architecture that mlx-lm has.",
        )
    _check_weights(folder)
    if (folder / "tokenizer.json").exists() or not (folder / "vocab.txt").exists():  # which is all that a BERT needs
        tokenizer = read_json(folder / "tokenizer.json")
        if not isinstance(tokenizer.get("model"), dict):
            raise _broken(folder / "tokenizer.json", "has no vocabulary", "Copy or download this file again.")
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            read_json(folder / name)


def read_json(file: Path) -> dict[str, Any]:
    """A file that holds a JSON object. Raises ModelBrokenError, naming it, where it does not."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise _broken(file, "is missing", "Copy or download it next to the other files.") from error
    except OSError as error:
        raise _broken(file, f"can not be read: {error.strerror}", "Check the file and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise _broken(file, f"is not valid JSON ({error})", "Copy or download this file again.") from error
    if not isinstance(value, dict):
        raise _broken(file, "does not hold a JSON object", "Copy or download this file again.")
    return value


def _check_weights(folder: Path) -> None:
    files = weight_files(folder)
    if not files:
        pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
        if pickles:
            raise ModelBrokenError(
                f"{folder} has its weights only as pickle ({pickles[0]}), which can run code and is never read. "
                "Get the safetensors version, or convert it on a machine that you can afford to lose."
            )
        raise ModelBrokenError(f"{folder} has no model*.safetensors. Copy or download the weights into it.")
    for file in [*files, *sidecar_files(folder), *sorted(folder.glob("token_frequency.safetensors"))]:
        read_header(file)
    for index in sorted(folder.glob("*.safetensors.index.json")):
        _check_index(index)


def _check_index(index: Path) -> None:
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise _broken(index, "has no weight_map of tensor names to files", "Copy or download this file again.")
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            raise _broken(index, f"names {shard!r}, which is not in the folder", "Copy or download that file too.")
        held = read_header(index.parent / shard)
        missing = next((name for name, place in shards.items() if place == shard and name not in held), None)
        if missing is not None:
            raise _broken(
                index.parent / shard, f"does not hold {missing!r}, which {index.name} promises", "Download both again."
            )


def _broken(file: Path, what: str, fix: str) -> ModelBrokenError:
    return ModelBrokenError(f"{file} {what}. {fix}")
