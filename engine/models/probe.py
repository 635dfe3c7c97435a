"""How well a head's first draft foresees the trunk: the figure that tells a right contract from a wrong one."""

import hashlib
import json
from pathlib import Path

import mlx.core as mx
import platformdirs

from engine.chat import ChatFormat
from engine.errors import BadRequestError
from engine.models import norms
from engine.models.locate import ModelFiles
from engine.models.spec import SpecModel

PROMPT = "Tell me a short story about a fox."
OWN_TOKENS = 64  # of the model's own answer; on text of others a right and a wrong choice can look alike


def agreement(spec: SpecModel, tokens: mx.array) -> float:
    """Share of positions of `tokens` [1, T] at which the head's top token is the trunk's top token."""
    state = spec.new_state()
    state.read(True)
    hidden = spec.hidden(tokens, state)
    target = mx.argmax(spec.logits(hidden[:, 1:]), axis=-1)
    drafts = spec.logits(spec.head_hidden(tokens[:, 1:], hidden[:, :-1], state))
    return float((mx.argmax(drafts, axis=-1) == target).astype(mx.float32).mean())


def overlap(spec: SpecModel, tokens: mx.array) -> float:
    """Mean over positions of sum(min(p, q)): the share of the head's drafts that rejection accepts at temperature 1."""
    state = spec.new_state()
    state.read(True)
    hidden = spec.hidden(tokens, state)
    p = mx.softmax(spec.logits(hidden[:, 1:]), axis=-1)
    q = mx.softmax(spec.logits(spec.head_hidden(tokens[:, 1:], hidden[:, :-1], state)), axis=-1)
    return float(mx.minimum(p, q).sum(axis=-1).mean())


def own_text(spec: SpecModel, chat: ChatFormat) -> mx.array:
    """PROMPT and the start of an answer that the trunk draws at temperature 1, always the same: [1, T]."""
    try:
        prompt = chat.render([{"role": "user", "content": PROMPT}])
    except BadRequestError:  # a base model without a chat template
        prompt = chat.encode(PROMPT)
    state = spec.new_state()
    state.read(True)
    read = mx.array([prompt], dtype=mx.int32)
    text = [read]
    for place in range(OWN_TOKENS):
        hidden = spec.hidden(read, state)
        state.clock.advance_all(read.shape[1])
        read = mx.random.categorical(spec.logits(hidden[:, -1:]), key=mx.random.key(place)).astype(mx.int32)
        mx.eval(read, state.arrays())
        text.append(read)
    return mx.concatenate(text, axis=1)


def settle_norms(
    spec: SpecModel, chat: ChatFormat, undecided: tuple[dict[str, mx.array], norms.Shifts], files: ModelFiles
) -> None:
    """Decide the head's norm convention by overlap, once per checkpoint, and set its gains accordingly.

    The decision is kept in the user's cache under a fingerprint of the stored norms, with the figures it rests on.
    """
    stored, first = undecided
    note = _note_path(stored)
    kept = _read(note)
    if kept is not None:
        _apply(spec, stored, kept)
        return
    tokens = own_text(spec, chat)

    def score(shifts: norms.Shifts) -> float:
        _apply(spec, stored, shifts)
        return overlap(spec, tokens)

    best, accepted = norms.choose(first, score)
    _apply(spec, stored, best)
    _write(note, best, {"overlap": accepted, "agreement": agreement(spec, tokens)}, files)


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


def _write(note: Path, shifts: norms.Shifts, figures: dict[str, float], files: ModelFiles) -> None:
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        flags = {"layer": shifts.layer, "input": shifts.input, "final": shifts.final}
        note.write_text(json.dumps({"model": files.name, "shifts": flags} | figures), encoding="utf-8")
    except OSError:
        pass  # a full or read-only disk costs a second at the next load, nothing else
