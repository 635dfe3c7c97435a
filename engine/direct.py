"""Requests run on the calling thread, for the self-test and the benchmarks: no engine thread, nothing else going on."""

from collections.abc import Callable, Sequence

from engine import device
from engine.collect import Answer, Completion
from engine.config import EngineConfig
from engine.events import Event
from engine.request import SEED_MODULUS, Request


class DirectEngine:
    """The engine's own runner, turned by hand. Must be used on the thread that made it.

    Raises what loading raises.
    """

    def __init__(self, config: EngineConfig) -> None:
        device.prepare()
        from engine.models.load import load
        from engine.runner import Runner

        self.loaded = load(config)
        self._runner = Runner(self.loaded, config)

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

            self._runner.add(Row(request, (request.seed or 0) % SEED_MODULUS, info.mode, chat, info.context, take))
        while not self._runner.idle:
            self._runner.turn()
        return [done[request.id] for request in requests]
