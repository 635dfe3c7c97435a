"""What a retrieval checkpoint says of itself: its family, its window, how it pools, what it can do. No mlx."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import ModelBrokenError, UnsupportedModelError
from engine.models.check import read_json
from engine.models.headers import Tensor, read_headers
from engine.models.locate import ModelFiles, locate

Family = Literal["bert", "roberta", "qwen3"]
Role = Literal["embedding", "rerank"]
Pooling = Literal["cls", "mean", "max", "lasttoken"]

FAMILIES: dict[str, Family] = {
    "bert": "bert",
    "roberta": "roberta",
    "xlm-roberta": "roberta",
    "camembert": "roberta",
    "qwen3": "qwen3",
}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
QWEN3_PAIR = 8192
"""Tokens that a query and its document may have in Qwen3-Reranker, by its own code; it has positions for more."""

_POOLING: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers


@dataclass(frozen=True, slots=True)
class Card:
    """Facts of a checkpoint in one of its roles, from its small files alone.

    Attributes:
        window: tokens that an input may have, special ones included.
        vocab_size: ids that the embedding table has rows for.
        dimensions: of a vector.
        pooling: how the vectors of an input's tokens become one. normalise: whether that one gets length 1.
        sigmoid: whether scores are squeezed into 0..1, or given as the model's classifier has them.
        lower: whether texts are put in lower case before they are tokenised, by the checkpoint's own setting.
        config: the whole of config.json.
    """

    name: str
    path: Path
    role: Role
    family: Family
    window: int
    vocab_size: int
    dimensions: int
    pooling: Pooling
    normalise: bool
    sigmoid: bool
    lower: bool
    config: Mapping[str, Any]


def read_card(name: str, role: Role) -> Card:
    """The card of a model that is here, for what it shall do.

    Args:
        name: as `engine.models.locate` takes it.
    Raises:
        ModelNotFoundError, ModelBrokenError: as `locate`.
        UnsupportedModelError: it is of another kind, or can not do this.
    """
    files = locate(name)
    config = read_json(files.path / "config.json")
    kind = config["model_type"]
    if kind not in FAMILIES:
        raise UnsupportedModelError(
            f"{files.name} is a {kind} model. Embeddings and scores come from {', '.join(sorted(FAMILIES))} here."
        )
    try:
        return _card(files, role, FAMILIES[kind], config)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelBrokenError(
            f"{files.path / 'config.json'} lacks what a {kind} model needs ({type(error).__name__}: {error}). "
            "Copy or download this file again."
        ) from error


def _card(files: ModelFiles, role: Role, family: Family, config: dict[str, Any]) -> Card:
    transformer = next((read_json(file) for file in sorted(files.path.glob("sentence_*bert*_config.json"))), {})
    if family != "qwen3":
        _check_encoder(files, config)
    if role == "rerank":
        _check_reranker(files, family, config)
    pooling, normalise = _pooling(files, family) if role == "embedding" else ("cls", False)
    return Card(
        name=files.name,
        path=files.path,
        role=role,
        family=family,
        window=_window(files.path, role, family, config, transformer),
        vocab_size=int(config["vocab_size"]),
        dimensions=int(config["hidden_size"]),
        pooling=pooling,
        normalise=normalise,
        sigmoid=role == "rerank" and _sigmoid(files, config),
        lower=transformer.get("do_lower_case") is True,
        config=config,
    )


def _check_encoder(files: ModelFiles, config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModelError(f"{files.name} has hidden_act {activation!r}; {', '.join(ACTIVATIONS)} are known.")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute" or config.get("is_decoder"):
        raise UnsupportedModelError(
            f"{files.name} is not a plain encoder (position_embedding_type {positions!r}, is_decoder "
            f"{config.get('is_decoder', False)})."
        )


def _check_reranker(files: ModelFiles, family: Family, config: Mapping[str, Any]) -> None:
    """What scores: one label of a classifier, or for Qwen3 the logits of yes and no."""
    tensors = read_headers(files.path)
    architecture = next(iter(config.get("architectures") or ()), "none")
    if family == "qwen3":
        if architecture.endswith("ForSequenceClassification"):
            raise UnsupportedModelError(
                f"{files.name} is a {architecture}. Qwen3 reranks here by answering yes or no, as Qwen3-Reranker does."
            )
        if not config.get("tie_word_embeddings") and "lm_head.weight" not in tensors:
            raise UnsupportedModelError(
                f"{files.name} has no lm_head, so it can not say yes or no to a document. It can make embeddings."
            )
        return
    labels = _labels(config, tensors)
    if labels != 1:
        what = "no classifier" if labels is None else f"a classifier of {labels} labels"
        raise UnsupportedModelError(
            f"{files.name} ({architecture}) has {what}; a reranker is a cross-encoder with one label."
        )


def _labels(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
    """Rows of the classifier's last product; None without one."""
    roberta = FAMILIES[config["model_type"]] == "roberta"
    last = tensors.get("classifier.out_proj.weight" if roberta else "classifier.weight")
    return None if last is None else last.shape[0]


def _sigmoid(files: ModelFiles, config: Mapping[str, Any]) -> bool:
    """As sentence-transformers has it: a sigmoid, unless the checkpoint names another activation."""
    own = config.get("sentence_transformers") or {}
    named = own.get("activation_fn") or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    function = str(named).rpartition(".")[2]
    if function not in ("Sigmoid", "Identity"):
        raise UnsupportedModelError(f"{files.name} wants its scores through {named}; Sigmoid and Identity are known.")
    return function == "Sigmoid"


def _pooling(files: ModelFiles, family: Family) -> tuple[Pooling, bool]:
    """Pooling and normalisation by modules.json; without one as the family is used by itself."""
    if not (files.path / "modules.json").exists():
        return ("lasttoken", True) if family == "qwen3" else ("mean", False)
    modules = _modules(files.path / "modules.json")
    unknown = next((kind for kind in modules if kind not in _MODULES), None)
    if unknown is not None:
        raise UnsupportedModelError(
            f"{files.name} has a module {unknown} in modules.json; {', '.join(_MODULES)} are known."
        )
    if "Pooling" not in modules:
        raise UnsupportedModelError(f"{files.name} has no Pooling in modules.json, so it makes no vector of a text.")
    settings = read_json(files.path / Path(modules["Pooling"]).name / "config.json")
    named = settings.get("pooling_mode")  # newer releases name it, older ones have a flag for each
    chosen = [mode for flag, mode in _POOLING.items() if settings.get(flag) or named == mode]
    if len(chosen) != 1:
        raise UnsupportedModelError(f"{files.name} pools in a way that is not known here: {settings}.")
    return chosen[0], "Normalize" in modules


def _modules(file: Path) -> dict[str, str]:
    """The folders of sentence-transformers' modules by their kinds, in order."""
    try:
        listed = json.loads(file.read_text(encoding="utf-8"))
        return {str(each["type"]).rpartition(".")[2]: str(each["path"]) for each in listed}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelBrokenError(f"{file} can not be read ({error}). Copy or download this file again.") from error


def _window(path: Path, role: Role, family: Family, config: Mapping[str, Any], transformer: Mapping[str, Any]) -> int:
    """The least of what its files allow."""
    positions = int(config["max_position_embeddings"])
    if family == "roberta":  # its positions are counted from behind the padding's id
        positions -= int(config.get("pad_token_id", 1)) + 1
    limits = [positions]
    named = _optional(path / "tokenizer_config.json").get("model_max_length")
    for limit in (transformer.get("max_seq_length"), named):
        if isinstance(limit, int | float) and 0 < limit < positions:
            limits.append(int(limit))
    if family == "qwen3" and role == "rerank":
        limits.append(QWEN3_PAIR)
    return min(limits)


def _optional(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
