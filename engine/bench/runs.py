"""One timed answer of ours or of the peer, counted in the same way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.collect import Completion
from engine.direct import DirectEngine
from engine.errors import EngineError
from engine.events import Event, TokenEvent
from engine.prompts import Conversation
from engine.request import Request, Sampling

if TYPE_CHECKING:
    from engine.bench.peer import Peer
    from engine.chat import ChatFormat

GREEDY = Sampling(temperature=0.0)
PEER = "mlx-lm"
OURS = "mtplx"


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer. `tokens` came in `seconds` after the first output; the end-of-turn token is in neither.

    Attributes:
        first_s: from the request to the first output.
    """

    ids: tuple[int, ...]
    tokens: int
    seconds: float
    first_s: float
    tokens_per_step: float


def rate(runs: Sequence[Timed]) -> float:
    """Tokens a second of several answers together. Raises EngineError where there was nothing to time."""
    seconds = sum(run.seconds for run in runs)
    if not seconds:
        raise EngineError(
            f"The answers ended with their first output ({sum(len(run.ids) for run in runs)} tokens in all), so there "
            "is no speed to measure. Ask for more tokens, or take a model that answers these prompts."
        )
    return sum(run.tokens for run in runs) / seconds


def rendered(chat: "ChatFormat", conversation: Conversation) -> tuple[int, ...]:
    """Prompt ids of a conversation."""
    return chat.render([{"role": role, "content": text} for role, text in conversation])


def run(engine: DirectEngine, prompt: tuple[int, ...], most: int, depth: int | None, *, endless: bool = False) -> Timed:
    """A greedy answer of ours; `endless` goes on to `most` tokens whatever the model says.

    Raises EngineError where the request failed.
    """
    outputs: list[TokenEvent] = []

    def take(event: Event) -> None:
        if isinstance(event, TokenEvent):
            outputs.append(event)

    request = Request(prompt, GREEDY, max_tokens=most, depth=depth, seed=0, source="bench", ignore_eos=endless)
    answer, first_s = answered(engine, request, take)
    tokens = sum(len(event.ids) for event in outputs[1:])
    seconds = outputs[-1].at - outputs[0].at
    return Timed(answer.ids, tokens, seconds, first_s, answer.stats.tokens_per_step)


def answered(
    engine: DirectEngine, request: Request, on_event: Callable[[Event], None] = lambda event: None
) -> tuple[Completion, float]:
    """The answer, and seconds to its first output. Raises EngineError where the request failed."""
    answer = engine.run([request], on_event)[0]
    if answer.error is not None or answer.stats.ttft_s is None:
        raise EngineError(f"A request of the benchmark failed: {answer.error or 'it ended without any output'}")
    return answer, answer.stats.ttft_s


def run_peer(peer: "Peer", prompt: tuple[int, ...], most: int, eos_ids: frozenset[int]) -> Timed:
    """The peer's greedy answer."""
    made = peer.run(prompt, most)
    ids = made.ids[:-1] if made.ids[-1] in eos_ids else made.ids
    return Timed(ids, max(0, len(ids) - 1), made.decode_s, made.first_s, 1.0)
