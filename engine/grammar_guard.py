"""Compiles each grammar first where it can be stopped: in a small process of its own.

llguidance bounds most of what a grammar can cost, but not all: 20 patterns in an `allOf` (900 bytes) take a second and
each two more four times as long; `multipleOf: 999983` takes ten. Native code can not be stopped from outside, and what
never ends would keep one of the server's threads, and a core, for good. The system ends this process instead, by the
processor time and the memory that it may use.

The process compiles for an alphabet of single bytes: what takes long does not depend on the model's own tokens.
"""

import json
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Collection
from contextlib import suppress
from select import select

CPU_S = 2  # what real grammars take is measured in milliseconds
MEMORY_BYTES = 256 << 20
ANSWER_S = 60.0  # longest wait: on a busy machine two seconds of work take longer, on a stopped one for ever


class GrammarGuard:
    """Any thread may use it. The process starts with the first grammar, and again after one that ended it."""

    def __init__(self, vocab_size: int, special: Collection[tuple[int, str]]) -> None:
        """`special`: the special tokens, which a grammar may name."""
        self._setting = json.dumps({"vocab_size": vocab_size, "special": list(special)})
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def passes(self, source: str) -> bool:
        """Whether llguidance can be given this source: it comes to an end with it, one way or the other."""
        with self._lock:
            process = self._process if self._process is not None and self._process.poll() is None else self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError):
                print(json.dumps(source), file=process.stdin, flush=True)
                if select([process.stdout], [], [], ANSWER_S)[0] and process.stdout.readline():
                    return True
            process.kill()
            process.wait()
            return False

    def _start(self) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-P", "-m", "engine.grammar_guard"]
        pipe = subprocess.PIPE
        # In a session of its own: Ctrl-C is for the server to answer, and this one ends with its input.
        process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert process.stdin is not None
        print(self._setting, file=process.stdin, flush=True)
        weakref.finalize(self, _end, process)
        self._process = process
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not written yet
                pipe.close()


class _Bytes:
    """A vocabulary of the model's special tokens, under their ids, and of 256 bytes behind the model's own."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocab_size: int, special: dict[int, str]) -> None:
        self.special_token_ids = sorted(special)
        self.eos_token_id = self.special_token_ids[0]
        self.tokens = [special.get(token, "").encode() for token in range(vocab_size)]
        self.tokens += [bytes([byte]) for byte in range(256)]
        self._first = vocab_size

    def __call__(self, text: str) -> list[int]:
        return [self._first + byte for byte in text.encode("utf-8", "surrogatepass")]


def _serve() -> None:
    from llguidance import LLMatcher, LLTokenizer

    from engine.grammar import LIMITS

    setting = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(_Bytes(setting["vocab_size"], dict(setting["special"])))  # type: ignore[arg-type]  # not its base class
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory()
    for line in sys.stdin:
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_S, resource.RLIM_INFINITY))
        with suppress(Exception):  # what is wrong with it is not asked here
            LLMatcher(tokenizer, json.loads(line), log_level=0, limits=LIMITS).compute_bitmask()
        print(flush=True)


def _limit_memory() -> None:
    """Beside what the process has by now. macOS knows no such limit; there the time alone has to do."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm", encoding="ascii") as sizes:
            pages = int(sizes.read().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    _serve()
