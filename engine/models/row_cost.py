"""What one row costs in memory, measured on the caches that the loaded model really makes."""

import mlx.core as mx

from engine.caches.capacity import capacity
from engine.caches.recurrent import RecurrentCache
from engine.memory import STATES, RowCost
from engine.models.spec import SpecModel
from engine.request import MAX_DEPTH

LOGIT_COPIES = 6  # arrays over the vocabulary that a step makes of each logit: filters, noise, probabilities of drafts


def row_cost(spec: SpecModel) -> RowCost:
    """Read two tokens and weigh what was kept, so that types, bits and families need not be known here."""
    state = spec.new_state()
    state.read(True)
    hidden = spec.hidden(mx.zeros((1, 2), dtype=mx.int32), state)
    if spec.head is not None:
        spec.head_hidden(mx.zeros((1, 1), dtype=mx.int32), hidden[:, :1], state)
    mx.eval(hidden, state.arrays())
    kv = recurrent = 0
    for cache in (*state.trunk, *state.head):
        size = sum(array.nbytes for array in cache.arrays())
        if isinstance(cache, RecurrentCache):
            recurrent += size
        else:
            kv += size
    logits = (MAX_DEPTH + 1) * spec.vocab_size * 4 * LOGIT_COPIES
    return RowCost(kv // capacity(2), STATES * recurrent + logits)
