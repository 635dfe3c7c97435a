"""Damaged, incomplete and unsafe model folders are refused before anything loads them, with the file and the fix."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ModelBrokenError
from engine.models.check import check_folder
from engine.models.headers import read_header, read_headers
from engine.models.locate import ASSETS

DEMO = ASSETS / "demo-13m"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder to break: the demo's, with small weights."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / name, tmp_path)
    shutil.copy(DEMO / "model-mtp.safetensors", tmp_path / "model.safetensors")
    check_folder(tmp_path)
    return tmp_path


def rewrite_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def broken(folder: Path) -> str:
    with pytest.raises(ModelBrokenError) as refusal:
        check_folder(folder)
    return str(refusal.value)


# --- weights


@pytest.mark.parametrize("size", [0, 7, 8, 100, 5000, 2_000_000])
def test_truncated_weights_are_named(folder: Path, size: int) -> None:
    os.truncate(folder / "model.safetensors", size)
    assert "model.safetensors is truncated" in broken(folder)


def test_a_header_of_absurd_length_is_not_read(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}")
    assert "is truncated" in broken(folder)


def test_a_git_lfs_pointer_is_told_from_weights(folder: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (folder / "model.safetensors").write_text(pointer)
    assert "git lfs pull" in broken(folder)


@pytest.mark.parametrize(
    "header", [b"[]", b"{", b"\xff\xff", b"null", b"[" * 100_000, b'{"a": 1}', b'{"a": {"dtype": 3}}']
)
def test_a_damaged_header_is_named(folder: Path, header: bytes) -> None:
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "model.safetensors" in broken(folder)


@pytest.mark.parametrize(
    "entry",
    [
        {"shape": [1, 1]},
        {"shape": [-1, -320]},
        {"shape": [1.5]},
        {"shape": "320"},
        {"shape": [2**40, 2**40]},
        {"dtype": "F32"},
        {"dtype": "Q9"},
        {"dtype": None},
        {"data_offsets": [0, 2**60]},
        {"data_offsets": [-640, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [True, False]},
    ],
)
def test_a_tensor_that_does_not_fit_its_bytes_is_named(folder: Path, entry: dict[str, Any]) -> None:
    rewrite_header(folder / "model.safetensors", lambda header: header["mtp.norm.weight"].update(entry))
    assert "mtp.norm.weight" in broken(folder)


def test_tensors_that_share_bytes_are_refused(folder: Path) -> None:
    def overlap(header: dict[str, Any]) -> None:
        fc = header["mtp.fc.weight"]
        header.update({f"copy.{i}": dict(fc) for i in range(10)})

    rewrite_header(folder / "model.safetensors", overlap)
    assert "overlap" in broken(folder)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 1500), st.integers(0, 255))
def test_any_flipped_byte_in_a_header_is_refused_or_harmless(tmp_path: Path, at: int, value: int) -> None:
    """Whatever is accepted points inside the file: MLX reads where the header says."""
    file = tmp_path / "model.safetensors"
    data = bytearray((DEMO / "model-mtp.safetensors").read_bytes())
    data[at] = value
    file.write_bytes(data)
    try:
        tensors = read_header(file)
    except ModelBrokenError:
        return
    assert sum(t.nbytes for t in tensors.values()) < len(data)


def test_an_index_that_names_a_missing_shard_is_refused(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "names 'model-00002-of-00002.safetensors', which is not in the folder" in broken(folder)


def test_an_index_that_points_out_of_the_folder_is_refused(folder: Path) -> None:
    secret = folder.parent / "elsewhere.safetensors"
    shutil.copy(DEMO / "model-mtp.safetensors", secret)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    assert "not in the folder" in broken(folder)


def test_a_tensor_that_the_index_promises_and_the_shard_lacks_is_named(folder: Path) -> None:
    index = {"weight_map": {"mtp.norm.weight": "model.safetensors", "lost.weight": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "does not hold 'lost.weight'" in broken(folder)


@pytest.mark.parametrize("index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "{"])
def test_an_index_that_is_no_index_is_named(folder: Path, index: str) -> None:
    (folder / "model.safetensors.index.json").write_text(index)
    assert "model.safetensors.index.json" in broken(folder)


def test_a_damaged_head_file_is_named(folder: Path) -> None:
    (folder / "mtp.safetensors").write_bytes(b"\0" * 4)
    assert "mtp.safetensors is truncated" in broken(folder)


def test_a_heads_own_file_is_read_as_under_mtp(folder: Path) -> None:
    (folder / "mtp").mkdir()
    shutil.move(folder / "model.safetensors", folder / "mtp" / "weights.safetensors")
    rewrite_header(folder / "mtp/weights.safetensors", lambda h: h.update({"norm.weight": h.pop("mtp.norm.weight")}))
    assert set(read_headers(folder)) == set(read_header(DEMO / "model-mtp.safetensors"))


# --- settings and tokenizer


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"nul", b"[" * 100_000])
def test_a_file_that_is_no_json_object_is_named(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert name in broken(folder)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_tokenizer_is_named(folder: Path, share: float) -> None:
    file = folder / "tokenizer.json"
    os.truncate(file, int(file.stat().st_size * share))
    assert "tokenizer.json is not valid JSON" in broken(folder)


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in broken(folder)


def test_a_tokenizer_without_a_vocabulary_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "has no vocabulary" in broken(folder)


@pytest.mark.parametrize("config", [{}, {"model_type": 3}, {"model_type": "qwen3_5", "text_config": []}])
def test_a_config_without_sense_is_named(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    assert "config.json" in broken(folder)


# --- code


def test_a_checkpoint_that_wants_its_own_code_run_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_file": "evil.py"}))
    assert "evil.py" in broken(folder)


def test_pickles_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle (pytorch_model.bin)" in broken(folder)


def test_a_tokenizer_that_wants_its_own_code_run_does_not_get_it(folder: Path) -> None:
    """transformers would ask at the terminal, or run it where someone said yes before."""
    (folder / "evil.py").write_text("raise SystemExit('evil code ran')\nclass Evil: pass\n")
    settings_file = folder / "tokenizer_config.json"
    wanted = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    settings_file.write_text(json.dumps(json.loads(settings_file.read_text()) | wanted))
    code = (
        "import sys, pathlib; from engine.chat import load_chat_format;"
        "print(load_chat_format(pathlib.Path(sys.argv[1])).encode('Hi'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert "evil code" not in done.stdout + done.stderr
    assert done.returncode == 0, done.stderr
