"""From a checkpoint's config and tensor names to its contract, its head and how far it can be trusted. No mlx."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from engine.errors import UnsupportedModelError
from engine.models.contract import CONTRACTS, Contract

Tier = Literal["verified", "unverified", "unsupported", "no head"]
"""verified: this project has run `verify` on this very head. unverified: the layout is known, this checkpoint is not.
unsupported: an architecture that the engine does not run. no head: it runs, without drafts."""

VERIFIED_HEADS = {
    "e94f55525195fbd89b751373771449131303e7033abf6475d77e67cfc0df3816": "demo-13m",
    "9905a6395065aac6060e8886526819e0aa6cf350309371cd1ce1c68f6bc54578": "smollm2-135m",
}
"""SHA-256 of head files that `verify` has passed on, with the model's name."""


def contract_for(config: Mapping[str, Any]) -> Contract:
    """The head contract of a checkpoint, by its config.json.

    Raises UnsupportedModelError, with the architecture's name and those that run, where there is none.
    """
    family = config.get("model_type")
    contract = CONTRACTS.get(family) if isinstance(family, str) else None
    if contract is None:
        raise UnsupportedModelError(
            f"The architecture {family!r} is not one that this engine runs. It runs {', '.join(sorted(CONTRACTS))}."
        )
    return contract


def head_prefix(names: Iterable[str], contract: Contract) -> str | None:
    """Where in a checkpoint the head lies, by the names of its tensors; None where it has none."""
    names = list(names)
    return next((p for p in contract.prefixes if any(name.startswith(p) for name in names)), None)


def missing_from_head(names: Iterable[str], prefix: str, contract: Contract) -> list[str]:
    """Tensors that any head of this contract has and this one lacks."""
    present = set(names)
    parts = ("fc", contract.embed_norm, contract.hidden_norm, "norm", "layers.0.self_attn.q_proj")
    return [name for part in parts if (name := f"{prefix}{part}.weight") not in present]


def looked_for(contract: Contract) -> list[str]:
    """What a head's tensors would have been called, for messages about its absence."""
    return [f"{prefix}*" for prefix in contract.prefixes]
