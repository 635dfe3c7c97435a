"""Requests run on the calling thread, for the self-test and the benchmarks: no engine thread, nothing else going on."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from engine import device
from engine.collect import Answer, Completion
from engine.config import EngineConfig
from engine.events import Event
from engine.request import SEED_MODULUS, Request
from engine.times import StepTimes

if TYPE_CHECKING:
    from engine.models.load import LoadedModel

FLUSH_SECONDS = 60.0  # that writing prefixes to disk may take at the end


class DirectEngine:
    """The engine's own runner, turned by hand. Must be used on the thread that made it.

    `on_step` is told where the time of each step went. `loaded` are another one's weights, to be shared. Raises what
    loading raises.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_step: Callable[[StepTimes], None] | None = None,
        loaded: "LoadedModel | None" = None,
    ) -> None:
        device.prepare()
        from engine.grammar import GrammarCompiler
        from engine.models.load import load
        from engine.runner import Runner

        self.loaded = loaded or load(config)
        self._rule = config.profile.accept
        self._grammars = GrammarCompiler(self.loaded.chat, self.loaded.info.vocab_size)
        self._runner = Runner(self.loaded, config, on_step)

    def close(self) -> None:
        """Write what the cache's folder does not have yet."""
        self._runner.close(FLUSH_SECONDS)

    def run(
        self, requests: Sequence[Request], on_event: Callable[[Event], None] = lambda event: None
    ) -> list[Completion]:
        """Run all requests together to their ends; answers in the order given. `on_event` sees every event."""
        from engine.row import Row

        done: dict[str, Completion] = {}
        info, chat = self.loaded.info, self.loaded.chat
        for request in requests:
            request.check(info.vocab_size)
            answer = Answer()

            def take(event: Event, request_id: str = request.id, answer: Answer = answer) -> None:
                on_event(event)
                completion = answer.add(event)
                if completion is not None:
                    done[request_id] = completion

            seed = (request.seed or 0) % SEED_MODULUS
            grammar = None if request.grammar is None else self._grammars.compile(request.grammar, request.prompt)
            self._runner.add(Row(request, seed, info.mode, chat, info.context, take, self._rule, grammar))
        while not self._runner.idle:
            self._runner.turn()
        return [done[request.id] for request in requests]
