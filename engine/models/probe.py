"""How often a head's first draft is the trunk's own choice: the figure that tells a right contract from a wrong one."""

import hashlib
import json
from pathlib import Path

import mlx.core as mx
import platformdirs

from engine.chat import ChatFormat
from engine.models import norms
from engine.models.locate import ModelFiles
from engine.models.spec import SpecModel

PROBE_TEXT = (
    "The water in the kettle was boiling, so she took two cups from the shelf and made tea. "
    "For each item in the list, add its price to the total, and print the total at the end. "
    "The capital of France is Paris, and the capital of Italy is Rome. One, two, three, four, five, six, seven."
)


def agreement(spec: SpecModel, tokens: mx.array) -> float:
    """Share of positions of `tokens` [1, T] at which the head's top token is the trunk's top token."""
    state = spec.new_state()
    state.read(True)
    hidden = spec.hidden(tokens, state)
    target = mx.argmax(spec.logits(hidden[:, 1:]), axis=-1)
    drafts = spec.logits(spec.head_hidden(tokens[:, 1:], hidden[:, :-1], state))
    return float((mx.argmax(drafts, axis=-1) == target).astype(mx.float32).mean())


def settle_norms(
    spec: SpecModel, chat: ChatFormat, undecided: tuple[dict[str, mx.array], norms.Shifts], files: ModelFiles
) -> None:
    """Decide the head's norm convention by agreement, once per checkpoint, and set its gains accordingly.

    The decision is kept in the user's cache under a fingerprint of the stored norms, with the figure it rests on.
    """
    stored, first = undecided
    note = _note_path(stored)
    kept = _read(note)
    if kept is None:
        tokens = mx.array([chat.encode(PROBE_TEXT)])

        def score(shifts: norms.Shifts) -> float:
            _apply(spec, stored, shifts)
            return agreement(spec, tokens)

        kept, figure = norms.choose(first, score)
        _write(note, kept, figure, files)
    _apply(spec, stored, kept)


def _apply(spec: SpecModel, stored: dict[str, mx.array], shifts: norms.Shifts) -> None:
    assert spec.head is not None
    dtype = spec.head.norm.weight.dtype
    gains = norms.shifted(stored, shifts)
    spec.head.load_weights([(k.removeprefix("mtp."), v.astype(dtype)) for k, v in gains.items()], strict=False)


def _note_path(stored: dict[str, mx.array]) -> Path:
    digest = hashlib.sha256()
    for name in sorted(name for group in norms.GROUPS.values() for name in group):
        if name in stored:
            digest.update(name.encode())
            digest.update(repr(stored[name].astype(mx.float32).tolist()).encode())
    return platformdirs.user_cache_path("mtplx-tui") / "heads" / f"{digest.hexdigest()[:32]}.json"


def _read(note: Path) -> norms.Shifts | None:
    try:
        return norms.Shifts(**json.loads(note.read_text(encoding="utf-8"))["shifts"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not decided yet, or damaged: decide again


def _write(note: Path, shifts: norms.Shifts, figure: float, files: ModelFiles) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        flags = {"layer": shifts.layer, "input": shifts.input, "final": shifts.final}
        note.write_text(json.dumps({"model": files.name, "agreement": figure, "shifts": flags}), encoding="utf-8")
    except OSError:
        pass  # a full or read-only disk costs a second at the next load, nothing else
