"""From a model folder to a SpecModel, through mlx-lm's own loader and model classes."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen3_5, qwen3_next
from mlx_lm.utils import _get_classes, dequantize_model, load_model

from engine.caches.packing import Packing
from engine.chat import ChatFormat, load_chat_format
from engine.config import EngineConfig
from engine.device import device_name, is_cpu, is_cuda
from engine.errors import BadRequestError, EngineError, ModelBrokenError, NoMTPHeadError, UnsupportedModelError
from engine.handle import ModelInfo
from engine.kernels.norm import fuse_norms
from engine.kernels.timings import Timings
from engine.kernels.verify import Calibration
from engine.models import checkpoint, norms
from engine.models.compiled import compile_steps
from engine.models.contract import Contract
from engine.models.head import MTPHead
from engine.models.headers import SIDECARS
from engine.models.locate import ModelFiles, locate
from engine.models.probe import settle_norms
from engine.models.qwen import use_our_recurrence
from engine.models.registry import contract_for, looked_for
from engine.models.spec import SpecModel
from engine.request import MAX_DEPTH, Sampling

DRAFT_VOCABULARY = 8192
FREQUENCY_FILE = "token_frequency.safetensors"
UNKNOWN_CONTEXT = 2048  # tokens, for a config that names none


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine thread owns once a model is loaded."""

    spec: SpecModel
    chat: ChatFormat
    info: ModelInfo


def load(config: EngineConfig, on_stage: Callable[[str], None] = lambda stage: None) -> LoadedModel:
    """Load the model that `config` names; to be called on the thread that will run it.

    Raises:
        ModelNotFoundError, ModelBrokenError, UnsupportedModelError: as they say.
        NoMTPHeadError: mode is mtp and the checkpoint has no head.
    """
    files = locate(config.model)
    on_stage(f"reading {files.name}")
    settings = json.loads((files.path / "config.json").read_text(encoding="utf-8"))
    contract = contract_for(settings)
    builder = _Builder(files, contract, with_head=config.mode == "mtp")
    model = builder.load()
    on_stage("preparing weights")
    if is_cpu():
        to_float32(model)
        fuse_norms(model)
    text = getattr(model, "language_model", model)
    head = model.mtp if config.mode == "mtp" else None
    recurrent = _use_our_forms(text.model.layers)
    if head is not None:
        _use_our_forms(head.layers)
    drafts_few = head is not None and config.profile.small_draft_head
    draft_ids = _draft_ids(files.path, int(text.args.vocab_size)) if drafts_few else None
    packing = None if config.kv_bits is None else Packing.of(config.kv_bits, _head_width(text), product=not is_cpu())
    on_stage("timing products")  # seconds where a GPU's kernels have to be built, once for a machine
    spec = SpecModel(text, recurrent, head, draft_ids, packing, _calibration(config))
    for drafts in range(1, MAX_DEPTH + 1 if head is not None else 1):
        spec.width(1, 1 + drafts)
    chat = load_chat_format(files.path)
    if builder.undecided is not None:
        on_stage("checking the head against the trunk")
        settle_norms(spec, chat, builder.undecided, files)
    if is_cuda():
        compile_steps([*text.model.layers, *(head.layers if head is not None else [])])
    return LoadedModel(spec, chat, _info(config, files, settings, builder, model, spec.vocab_size, packing))


class _Builder:
    """Loads one checkpoint with, or without, its head.

    Attributes:
        head_tensors: what was found of the head, by our names.
        undecided: the head's norm weights as stored, with the first guess, where only a probe can tell their
            convention; None where the layout tells it.
    """

    def __init__(self, files: ModelFiles, contract: Contract, with_head: bool) -> None:
        self._files = files
        self._contract = contract
        self._with_head = with_head
        self._declared_layers = 1
        self.head_tensors: dict[str, mx.array] = {}
        self.undecided: tuple[dict[str, mx.array], norms.Shifts] | None = None

    def load(self) -> nn.Module:
        try:
            model, _ = load_model(self._files.path, lazy=True, get_model_classes=self._classes)
            mx.eval(model.parameters())
        except EngineError:
            raise
        except Exception as error:  # mlx-lm's classes raise whatever odd values in a config make them raise
            raise ModelBrokenError(
                f"{self._files.name} in {self._files.path} could not be loaded ({_one_line(error)}). "
                "Its weights and its config.json do not fit together; fetch the model again."
            ) from error
        return model

    def _classes(self, config: dict[str, Any]) -> tuple[type, type]:
        base, args_class = _get_classes(config)
        self._declared_layers = int(config.get("text_config", config).get(self._contract.depth_key) or 1)
        builder = self

        class WithHead(base):  # type: ignore[misc, valid-type]
            def __init__(self, args: Any) -> None:
                super().__init__(args)
                if builder._with_head:
                    self.mtp = _new_head(_text_args(self), builder._contract)

            def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
                trunk, head = checkpoint.split(weights, builder._contract)
                original = checkpoint.is_original_layout(trunk)
                cleaned: dict[str, mx.array] = super().sanitize(trunk)
                return cleaned | (builder._prepare_head(head, original) if builder._with_head else {})

        return WithHead, args_class

    def _prepare_head(self, head: dict[str, mx.array], original: bool) -> dict[str, mx.array]:
        if not head:
            _, head = checkpoint.split(checkpoint.sidecar(self._files.path), self._contract)
        if not head:
            raise NoMTPHeadError(
                f"{self._files.name} has no MTP head: no tensor named "
                f"{' or '.join(looked_for(self._contract))} in its safetensors, and no "
                f"{' or '.join(SIDECARS)}. Run it without drafts (--mode ar), or use a checkpoint that "
                "kept its head (conversions often drop it; a forge command that trains one is planned)."
            )
        self._check_depth(head)
        self.head_tensors = head
        if not self._contract.zero_centred:
            return head
        guess = norms.guess(head)
        if not (original and guess.layer):  # as published, trunk and head alike
            self.undecided = (head, guess)
        return head | norms.shifted(head, guess)

    def _check_depth(self, head: dict[str, mx.array]) -> None:
        held = {name.split(".")[2] for name in head if name.startswith("mtp.layers.")}
        layers = max(len(held), self._declared_layers)
        if layers > 1:
            raise UnsupportedModelError(
                f"The MTP head of {self._files.name} has {layers} layers ({self._contract.depth_key}); this engine "
                "runs heads of one layer. Run the model without drafts: --mode ar."
            )


def _new_head(args: Any, contract: Contract) -> MTPHead:
    if contract.family == "llama":
        layer = llama.TransformerBlock(args)
    else:
        kind = qwen3_next.Qwen3NextDecoderLayer if contract.family == "qwen3_next" else qwen3_5.DecoderLayer
        layer = kind(args, args.full_attention_interval - 1)
    return MTPHead(args.hidden_size, args.rms_norm_eps, layer, contract.concat)


def _text_args(model: Any) -> Any:
    return getattr(model, "language_model", model).args


def _use_our_forms(layers: list[Any]) -> list[bool]:
    """Give layers of trunk or head our own forward where we have one; which of them are recurrent."""
    if hasattr(layers[0], "is_linear"):
        return use_our_recurrence(layers)
    if any(getattr(layer, "use_sliding", False) for layer in layers):
        raise UnsupportedModelError("This llama checkpoint has sliding-window layers, which this engine does not run.")
    return [False] * len(layers)


def _head_width(text: Any) -> int:
    named: int | None = text.args.head_dim
    return named or int(text.args.hidden_size) // int(text.args.num_attention_heads)


def to_float32(model: nn.Module) -> None:
    """Dense float32 weights: on the CPU, MLX's quantised and bf16 kernels read the weights once per row."""
    model.set_dtype(mx.float32)  # scales first, so that dequantising rounds nothing
    dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())


def _calibration(config: EngineConfig) -> Calibration | None:
    """What is fast here; None where the profile wants MLX's own products."""
    if config.profile.products == "stock":
        return None
    return Calibration(_timings(f"{device_name()}, mlx {version('mlx')}", config.timings_file))


@cache
def _timings(machine: str, file: Path | None) -> Timings:
    """One for all models of a process, so that what they have in common is timed once."""
    return Timings(machine, file)


def _draft_ids(path: Path, vocab_size: int) -> mx.array | None:
    """The most frequent tokens, ascending, from the model's frequency file; None where it has none."""
    file = path / FREQUENCY_FILE
    if not file.is_file():
        return None
    tensors = mx.load(str(file))
    assert isinstance(tensors, dict)
    ids = tensors.get("ids_by_frequency", mx.zeros((0,)))[:DRAFT_VOCABULARY]
    if ids.ndim != 1 or not ids.size or not mx.issubdtype(ids.dtype, mx.integer) or not _within(ids, vocab_size):
        raise ModelBrokenError(f"{file} does not list token ids of this model. Remove it, or fetch it again.")
    return mx.sort(ids)


def _within(ids: mx.array, vocab_size: int) -> bool:
    return int(ids.min()) >= 0 and int(ids.max()) < vocab_size


def _info(
    config: EngineConfig,
    files: ModelFiles,
    settings: dict[str, Any],
    builder: _Builder,
    model: nn.Module,
    vocab_size: int,
    packing: Packing | None,
) -> ModelInfo:
    quantization = settings.get("quantization") or settings.get("quantization_config")
    parameters = [array for _, array in tree_flatten(model.parameters())]
    largest = max(parameters, key=lambda array: array.nbytes)
    head = None
    if config.mode == "mtp":
        size = sum(tensor.nbytes for tensor in builder.head_tensors.values())
        head = f"mtp, 1 layer, {len(builder.head_tensors)} tensors, {size / 1e6:.1f} MB"
    return ModelInfo(
        name=files.name,
        path=str(files.path),
        family=settings["model_type"],
        context=_context(files, settings),
        vocab_size=vocab_size,
        mode=config.mode,
        depth=config.depth,
        head=head,
        quantization=f"{quantization['bits']}-bit" if quantization and "bits" in quantization else None,
        dtype=str(largest.dtype).removeprefix("mlx.core."),
        device=device_name(),
        weight_bytes=sum(array.nbytes for array in parameters),
        sampling=_recommended_sampling(files.path, vocab_size),
        kv=_kv(model, packing),
    )


def _kv(model: Any, packing: Packing | None) -> str:
    embedding = getattr(model, "language_model", model).model.embed_tokens
    dtype = (embedding.scales if "scales" in embedding else embedding.weight).dtype  # of what the layers hand on
    if packing is None:
        return str(dtype).removeprefix("mlx.core.")
    return f"{packing.bits}-bit, {packing.share(dtype):.2f} of the size"


def _context(files: ModelFiles, settings: dict[str, Any]) -> int:
    named = (settings.get("text_config") or settings).get("max_position_embeddings") or UNKNOWN_CONTEXT
    if not isinstance(named, int) or named < 1:
        raise ModelBrokenError(
            f"{files.path / 'config.json'} gives max_position_embeddings as {named!r}; it must be a number of tokens."
        )
    return named


def _recommended_sampling(path: Path, vocab_size: int) -> Sampling:
    """From generation_config.json, where the model has one; else the model's own distribution."""
    file = path / "generation_config.json"
    given = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    named = {
        field: given[field] for field in ("temperature", "top_k", "top_p", "min_p") if given.get(field) is not None
    }
    try:
        sampling = Sampling(**named)
        sampling.check(vocab_size)
    except (TypeError, BadRequestError) as error:
        raise ModelBrokenError(
            f"{file} recommends what can not be done: {error} Correct the file, or remove it."
        ) from error
    return sampling


def _one_line(error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= 300 else text[:297] + "..."
