"""Retrieval checkpoints small enough to build in a test: random weights, always the same, in the layouts of the hub."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

TEXT = "the weather is lovely today it so sunny outside he drove to stadium a fox and an owl met at night"
PIECES = [
    *TEXT.split(),
    *("##s", "##ly", ".", "[", "]", "sep"),
    *"bcdefghijklmnopqrstuvwxyz",
    *(f"##{letter}" for letter in "abcdefghijk"),
]
HIDDEN, INNER, LAYERS, HEADS = 32, 64, 3, 4
ENCODER = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
BERT = ENCODER | {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": len(PIECES) + 5,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
ROBERTA = ENCODER | {
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "vocab_size": len(PIECES) + 5,
    "max_position_embeddings": 42,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": 272,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
QWEN3_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save_bert(folder: Path, *, labels: int | None = None, positions: int = 40, **config: Any) -> Path:
    """A BERT with mean pooling and unit vectors; with `labels`, one that classifies pairs."""
    settings = BERT | {"max_position_embeddings": positions} | config
    weights = dict(_encoder(settings))
    if labels is None:
        save_pooling(folder, "pooling_mode_mean_tokens", normalise=True)
    else:
        weights = {f"bert.{name}": value for name, value in weights.items()}
        weights |= {"classifier.weight": (labels, HIDDEN), "classifier.bias": (labels,)}
        settings |= {"architectures": ["BertForSequenceClassification"]}
    _save(folder, settings, weights)
    vocabulary = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *PIECES])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)  # as published checkpoints have it, and nobody may heed it
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    return folder


def save_roberta(folder: Path, *, labels: int | None = None, **config: Any) -> Path:
    """An XLM-R that pools the first token; with `labels`, one that classifies pairs."""
    settings = ROBERTA | config
    weights = dict(_encoder(settings))
    if labels is None:
        save_pooling(folder, "pooling_mode_cls_token", normalise=False)
    else:
        weights = {f"roberta.{name}": value for name, value in weights.items() if "pooler" not in name}
        weights |= {"classifier.dense.weight": (HIDDEN, HIDDEN), "classifier.dense.bias": (HIDDEN,)}
        weights |= {"classifier.out_proj.weight": (labels, HIDDEN), "classifier.out_proj.bias": (labels,)}
        settings |= {"architectures": ["XLMRobertaForSequenceClassification"]}
    _save(folder, settings, weights)
    vocabulary = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *PIECES])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_qwen3(folder: Path, *, prefix: str = "model.", embedding: bool = False, **config: Any) -> Path:
    """A Qwen3; as an embedding model its tokenizer ends each text, its last token is pooled, and names have no prefix.

    Args:
        prefix: of the tensors' names in the file.
    """
    settings = QWEN3 | config
    model = qwen3.Model(qwen3.ModelArgs.from_dict(settings))
    shapes = {name: array.shape for name, array in tree_flatten(model.parameters())}
    if embedding:
        shapes.pop("lm_head.weight", None)
        save_pooling(folder, "pooling_mode_lasttoken", normalise=True)
    weights = {name.replace("model.", prefix, 1): shape for name, shape in shapes.items()}
    _save(folder, settings, weights)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    tokens = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in QWEN3_SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ("<think>", "</think>")])
    if embedding:
        end = tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", end)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_pooling(folder: Path, flag: str, *, normalise: bool) -> None:
    """The files by which sentence-transformers knows what follows the encoder."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    modules = [{"idx": i, "path": p, "type": f"sentence_transformers.models.{k}"} for i, (p, k) in enumerate(kinds)]
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    flags = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens", "pooling_mode_lasttoken")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({each: each == flag for each in flags}))


def _encoder(config: dict[str, Any]) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Names and shapes of an encoder's tensors as the hub has them."""
    yield "embeddings.word_embeddings.weight", (config["vocab_size"], HIDDEN)
    yield "embeddings.position_embeddings.weight", (config["max_position_embeddings"], HIDDEN)
    yield "embeddings.token_type_embeddings.weight", (config["type_vocab_size"], HIDDEN)
    norms = ["embeddings.LayerNorm"]
    products = [("pooler.dense", HIDDEN, HIDDEN)]
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}"
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
        products += [(f"{layer}.attention.self.{part}", HIDDEN, HIDDEN) for part in ("query", "key", "value")]
        products += [
            (f"{layer}.attention.output.dense", HIDDEN, HIDDEN),
            (f"{layer}.intermediate.dense", INNER, HIDDEN),
        ]
        products += [(f"{layer}.output.dense", HIDDEN, INNER)]
    for name in norms:
        yield f"{name}.weight", (HIDDEN,)
        yield f"{name}.bias", (HIDDEN,)
    for name, rows, columns in products:
        yield f"{name}.weight", (rows, columns)
        yield f"{name}.bias", (rows,)


def _save(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Write config and weights. RandomState's values are promised to stay as they are for ever."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(7)
    weights: dict[str, mx.array] = {}
    for name, shape in sorted(shapes.items()):
        values = random.standard_normal(shape)
        if "norm" in name.lower():
            values = 0.2 * values + (name.endswith("weight"))
        elif len(shape) == 2 and "embed" not in name:
            values *= 2.0 / math.sqrt(shape[1])
        weights[name] = mx.array(values.astype(np.float32))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
