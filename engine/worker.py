"""The child process of ProcessEngine: a ThreadEngine, driven and heard through two pipes. Only process.py starts it."""

import logging
import logging.handlers
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue

from engine.engine import ThreadEngine, as_engine_error
from engine.errors import EngineError
from engine.events import CacheEvent, Event, FailedEvent, LoadEvent, ReadyEvent
from engine.wire import Answer, Batch, Cancel, ClearCache, Failed, Item, Loaded, Stop, Submit, Told

BEAT_S = 0.25
FLUSH_S = 2.0


def main(control: Connection, events: Connection) -> None:
    """Serve until told to stop, or until the parent is gone. Ends the process."""
    # Ctrl-C reaches every process of the terminal; what it means is the parent's to say
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.dup2(2, 1)  # standard output is for the parent's results
    made: Future[ThreadEngine] = Future()
    outbox = Outbox(events, made)
    logging.basicConfig(handlers=[logging.handlers.QueueHandler(outbox.queue)], level=logging.WARNING)

    def listen(event: Event) -> None:
        if isinstance(event, LoadEvent | CacheEvent):
            outbox.queue.put(Told(None, event))
        elif isinstance(event, ReadyEvent | FailedEvent):
            try:
                outbox.queue.put(Loaded(made.result().model))
            except EngineError as error:
                outbox.queue.put(Failed(error))

    with suppress(EOFError, OSError):  # the parent is gone, and nobody is left to be told anything
        engine = ThreadEngine(control.recv(), listen)
        made.set_result(engine)
        _serve(engine, control, outbox)
    os._exit(0)  # the engine thread may be in the middle of native code


def _serve(engine: ThreadEngine, control: Connection, outbox: "Outbox") -> None:
    while True:
        message = control.recv()
        if isinstance(message, Submit):
            control.send(Answer(message.ticket, _submit(engine, message, outbox.queue)))
        elif isinstance(message, Cancel):
            engine.cancel(message.request_id)
        elif isinstance(message, ClearCache):
            engine.clear_cache()
        elif isinstance(message, Stop):
            if engine.state == "ready":
                engine.close(message.seconds)
            outbox.flush()
            return


def _submit(engine: ThreadEngine, message: Submit, queue: "SimpleQueue[Item | None]") -> EngineError | None:
    try:
        engine.submit(message.request, lambda event: queue.put(Told(message.ticket, event)))
    except Exception as error:
        return as_engine_error(error)
    return None


class Outbox:
    """What goes to the parent, and the thread that sends it.

    While one batch is written the next one gathers, so that a fast engine costs few writes and a slow one no delay.

    Attributes:
        queue: takes items from any thread.
    """

    def __init__(self, pipe: Connection, engine: "Future[ThreadEngine]") -> None:
        self.queue: SimpleQueue[Item | None] = SimpleQueue()
        self._pipe = pipe
        self._engine = engine
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def flush(self) -> None:
        """Send what is here, and nothing after it."""
        self.queue.put(None)
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        engine = self._engine.result()
        open_ = True
        while open_:
            items: list[Item] = []
            with suppress(Empty):
                waiting = self.queue.get(timeout=BEAT_S)
                while waiting is not None:
                    items.append(waiting)
                    waiting = self.queue.get_nowait()
                open_ = False
            try:
                self._pipe.send(Batch(time.monotonic() - engine.heartbeat_age(), tuple(items)))
            except OSError:
                os._exit(0)  # the parent is gone


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), Connection(int(sys.argv[2]), readable=False))
