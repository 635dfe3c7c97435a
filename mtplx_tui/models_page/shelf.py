"""Every model that is here, half here, or in the catalog, with what is known of it without loading it."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from mtplx_tui import paths

log = logging.getLogger(__name__)

Where = Literal["bundled", "stored", "cache", "partly", "catalog"]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model; None is unknown.

    Attributes:
        where: bundled with the program; stored: made or put into its model folder; cache: the hub's cache; partly: a
            download that has not ended; catalog: not here.
        path: its folder. size: bytes of weights, or of the download. come: bytes of a download that has not ended.
        quantization: in words; "none" where it has none. head: what carries its drafts, or "none".
        tier: as `inspect` says; in the catalog "unsupported" for an architecture that does not run here.
        fits: yes, tight, no or unknown, for `fit_context` tokens. needed: bytes that this takes of `fit_memory`.
        longest: tokens that a conversation can have here.
        tuned_depth: what `tune` kept for it. advised: it is among the first to try on this machine.
        problem: why nothing more is known of it.
    """

    name: str
    where: Where
    path: str | None = None
    size: int | None = None
    come: int | None = None
    quantization: str | None = None
    head: str | None = None
    tier: str | None = None
    family: str | None = None
    context: int | None = None
    kv_bytes_per_token: int | None = None
    licence: str | None = None
    fits: str = "unknown"
    fit_context: int = 0
    fit_memory: int = 0
    needed: int | None = None
    longest: int | None = None
    tuned_depth: int | None = None
    advised: bool = False
    problem: str | None = None

    @property
    def here(self) -> bool:
        return self.where in ("bundled", "stored", "cache")


def shelf(context: int | None = None) -> list[ModelRow]:
    """What is here first, then what was begun, then the catalog with the advised ones at its top. Reads many files.

    Args:
        context: tokens of prompt and answer to have room for; None is `engine.fits.CONTEXT`.
    """
    from engine.catalog import advised, catalog
    from engine.device import usable_memory
    from engine.fits import CONTEXT, chip, fit_by_peak
    from engine.hub import partly_here
    from engine.models.contract import CONTRACTS

    wanted = context or CONTEXT
    machine = usable_memory()
    first = advised(machine, chip())
    known = {model.repo: model for model in catalog()}
    rows = [*_here(wanted)]
    names = {row.name for row in rows}
    begun = {repo: come for repo, come in partly_here().items() if repo not in names}
    listed = [*begun, *first, *(repo for repo in known if repo not in first)]
    for repo in dict.fromkeys(listed):
        if repo in names:
            continue
        row = ModelRow(repo, "partly" if repo in begun else "catalog", come=begun.get(repo), fit_context=wanted)
        if repo in known:
            model = known[repo]
            fit = fit_by_peak(model.peak, machine, wanted)
            runs = "unverified" if model.family is None or model.family in CONTRACTS else "unsupported"
            row = replace(
                row, size=model.size, quantization=model.quantization, head=model.head, family=model.family,
                tier=None if model.family is None else runs, context=model.context, licence=model.licence,
                fits=fit.verdict, fit_memory=fit.memory, needed=fit.needed, advised=repo in first,
            )  # fmt: skip
        rows.append(row)
    licences = {repo: model.licence for repo, model in known.items()}
    return [replace(row, licence=row.licence or licences.get(row.name)) for row in rows]


def _here(context: int) -> Iterator[ModelRow]:
    from engine.models import smollm2
    from engine.models.locate import BUNDLED, here, model_store

    for name in here():
        where: Where = "cache" if "/" in name else "bundled" if name in (BUNDLED, smollm2.NAME) else "stored"
        if name == smollm2.NAME and not (model_store() / name).is_dir():
            yield ModelRow(name, where, fit_context=context, problem="it is made of its parts when it is first used")
        else:
            yield _inspected(name, where, context)


def _inspected(name: str, where: Where, context: int) -> ModelRow:
    from engine.errors import EngineError
    from engine.fits import fit, memory_for_models
    from engine.models.inspect import inspect_model

    try:
        found = inspect_model(name)
    except (EngineError, OSError) as error:
        return ModelRow(name, where, fit_context=context, problem=str(error))
    room = fit(
        found.weight_bytes,
        found.kv_bytes_per_token,
        found.recurrent_bytes,
        found.context,
        context,
        memory_for_models(),
    )
    return ModelRow(
        name=name,
        where=where,
        path=found.path,
        size=found.weight_bytes,
        quantization=found.quantization or "none",
        head=f"mtp, {found.head.dtype}" if found.head else "none",
        tier=found.tier,
        family=found.family,
        context=found.context,
        kv_bytes_per_token=found.kv_bytes_per_token,
        fits=room.verdict,
        fit_context=room.context,
        fit_memory=room.memory,
        needed=room.needed,
        longest=room.longest,
        tuned_depth=_tuned_depth(name),
    )


def _tuned_depth(name: str) -> int | None:
    from engine.config import EngineConfig
    from engine.errors import EngineError
    from engine.tuned_files import find

    folder = paths.tunings_folder()
    try:
        kept = find(folder, EngineConfig(model=name))
    except EngineError as error:
        log.warning("no tuning was looked for: %s", error)
        return None
    return kept.best_depth if kept else None
