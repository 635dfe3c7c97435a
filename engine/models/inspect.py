"""What a checkpoint is and whether this engine runs it, from headers and JSON files, without loading a weight."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError
from engine.models.check import read_json
from engine.models.contract import Contract
from engine.models.headers import Tensor, read_headers
from engine.models.locate import locate
from engine.models.memory import context_bytes
from engine.models.registry import VERIFIED_HEADS, Tier, contract_for, head_prefix, looked_for, missing_from_head

_MAX_HASHED = 64_000_000  # bytes of a head file that are worth reading to recognise it
_NOT_PARAMETERS = (".scales", ".biases", "_scale_inv")


@dataclass(frozen=True, slots=True)
class Head:
    """The MTP head in a checkpoint: prefix of its tensors' names, their number, bytes, types and files."""

    prefix: str
    tensors: int
    nbytes: int
    dtype: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts of a checkpoint; None is unknown.

    Attributes:
        architecture: `model_type` of its config. family: the contract it runs under, None where none fits.
        looked_for: names that a head's tensors could have.
        parameters: weights of trunk and head, packed ones counted as what they stand for.
        weight_bytes: size of all tensors in its files. dtype: the type that most of those bytes have.
        context: tokens that the model was made for.
        kv_bytes_per_token: what a token takes in the caches of trunk and head, at 16 bits a value (float32 on the CPU
            takes twice that). recurrent_bytes: what one row's recurrent state takes, whatever its length.
        thinking, tools: the vocabulary has think and tool-call tokens.
        files: (name, bytes) of every file.
        messages: what to know and what to do next, most important first.
    """

    name: str
    path: str
    architecture: str
    family: str | None
    tier: Tier
    head: Head | None
    looked_for: tuple[str, ...]
    parameters: int
    weight_bytes: int
    dtype: str
    quantization: str | None
    context: int | None
    layers: int | None
    vocab_size: int | None
    kv_bytes_per_token: int | None
    recurrent_bytes: int | None
    chat_template: bool
    thinking: bool
    tools: bool
    files: tuple[tuple[str, int], ...]
    messages: tuple[str, ...]


def inspect_model(name: str | None) -> Inspection:
    """Inspect a model by any name that `locate` takes. Raises ModelNotFoundError or ModelBrokenError as that does."""
    found = locate(name)
    folder = found.path
    config = read_json(folder / "config.json")
    text = config.get("text_config") or config
    tensors = read_headers(folder)
    contract = _contract(config)
    head = _head(tensors, contract)
    tier = _tier(folder, contract, head)
    kv_bytes, recurrent_bytes = context_bytes(text, contract, with_head=head is not None)
    tokens = _added_tokens(folder)
    by_dtype = Counter[str]()
    for tensor in tensors.values():
        by_dtype[tensor.dtype] += tensor.nbytes
    return Inspection(
        name=found.name,
        path=str(folder),
        architecture=config["model_type"],
        family=contract.family if contract else None,
        tier=tier,
        head=head,
        looked_for=tuple(looked_for(contract)) if contract else (),
        parameters=sum(_parameters(name, tensors, config) for name in tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        dtype=by_dtype.most_common(1)[0][0] if by_dtype else "none",
        quantization=_quantization(config),
        context=text.get("max_position_embeddings"),
        layers=text.get("num_hidden_layers"),
        vocab_size=text.get("vocab_size"),
        kv_bytes_per_token=kv_bytes,
        recurrent_bytes=recurrent_bytes,
        chat_template=_has_template(folder),
        thinking={"<think>", "</think>"} <= tokens,
        tools={"<tool_call>", "</tool_call>"} <= tokens,
        files=tuple((str(f.relative_to(folder)), f.stat().st_size) for f in sorted(folder.rglob("*")) if f.is_file()),
        messages=tuple(_messages(found.name, folder, config, tensors, contract, head, tier)),
    )


def _contract(config: Mapping[str, Any]) -> Contract | None:
    try:
        return contract_for(config)
    except UnsupportedModelError:
        return None


def _head(tensors: Mapping[str, Tensor], contract: Contract | None) -> Head | None:
    prefix = head_prefix(tensors, contract) if contract else None
    if prefix is None:
        return None
    found = [tensor for name, tensor in tensors.items() if name.startswith(prefix)]
    return Head(
        prefix=prefix,
        tensors=len(found),
        nbytes=sum(tensor.nbytes for tensor in found),
        dtype=", ".join(sorted({tensor.dtype for tensor in found})),
        files=tuple(sorted({tensor.file for tensor in found})),
    )


def _tier(folder: Path, contract: Contract | None, head: Head | None) -> Tier:
    if contract is None:
        return "unsupported"
    if head is None:
        return "no head"
    if len(head.files) == 1 and (folder / head.files[0]).stat().st_size <= _MAX_HASHED:
        digest = hashlib.sha256((folder / head.files[0]).read_bytes()).hexdigest()
        if digest in VERIFIED_HEADS:
            return "verified"
    return "unverified"


def _parameters(name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> int:
    if name.endswith(_NOT_PARAMETERS):
        return 0
    path = name.removesuffix(".weight")
    scales = tensors.get(f"{path}.scales")
    if scales is None:
        return tensors[name].size
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    own = quantization.get(path)
    group = (own if isinstance(own, dict) else quantization).get("group_size", 64)
    return int(scales.size * group)


def _quantization(config: Mapping[str, Any]) -> str | None:
    """In words: the format of most layers, and how many have another."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    if "bits" not in quantization:
        return str(quantization.get("quant_method", "unknown"))
    mode, group = quantization.get("mode", "affine"), quantization.get("group_size", "unknown size")
    main = f"{quantization['bits']}-bit {mode}, groups of {group}"
    others = Counter(entry.get("bits") for entry in quantization.values() if isinstance(entry, dict))
    plain = sum(entry is False for entry in quantization.values())
    named = [f"{bits}-bit in {count} of the layers" for bits, count in others.items()]
    return "; ".join([main, *named, *([f"none in {plain} of the layers"] if plain else [])])


def _added_tokens(folder: Path) -> set[str]:
    tokens = read_json(folder / "tokenizer.json").get("added_tokens") or []
    return {token["content"] for token in tokens if isinstance(token, dict) and isinstance(token.get("content"), str)}


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and bool(read_json(settings).get("chat_template"))


def _messages(
    name: str,
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    contract: Contract | None,
    head: Head | None,
    tier: Tier,
) -> list[str]:
    told: list[str] = []
    if contract is None:
        try:
            contract_for(config)
        except UnsupportedModelError as error:
            told.append(str(error))
    elif head is None:
        promised = (config.get("text_config") or config).get(contract.depth_key)
        lost = f" Its config promises {promised} head layer(s), so a conversion has dropped them." if promised else ""
        told.append(f"It has no MTP head.{lost} It runs without drafts: --mode ar.")
    else:
        missing = missing_from_head(tensors, head.prefix, contract)
        if missing:
            told.append(f"Its head is incomplete and will not load: there is no {', '.join(missing)}.")
        elif tier == "unverified":
            told.append(f"Its head has not been tried by this project: run `mtplx-tui verify --model {name}`.")
    if not _has_template(folder):
        told.append("It has no chat template, so it continues plain prompts and can not chat.")
    scripts = sorted(file.name for file in folder.glob("*.py"))
    if scripts:
        told.append(f"It comes with Python files ({', '.join(scripts[:3])}), which are never run.")
    return told
