"""Servers for the tests of links: ours over a scripted engine, one like vLLM, and a proxy that cuts connections."""

import json
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "server"))


class Proxy:
    """Passes bytes on to the server at `port`; `cut` ends all connections, and `refusing` ends new ones at once."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refusing = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self.port))
                self._open |= {client, server}
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open -= {one, other}
        one.close()


METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/big"} 2.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/big"} 1.0
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="org/big"} 100.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="org/big"} 200.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="org/big"} 130.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/big",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/big",position="1"} 50.0
"""


class VllmLike:
    """Answers as vLLM does, with the lines that a test gives, on a free port or the given one.

    Attributes:
        lines: what a stream holds. refusal: status and body instead of one. bodies: what was asked.
        gate: opened by the test before the last line is sent. keep_open: never ends a stream.
    """

    def __init__(self, port: int = 0) -> None:
        self.lines: list[str] = []
        self.refusal: tuple[int, dict[str, Any]] | None = None
        self.bodies: list[dict[str, Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    listed = {"id": "org/big", "object": "model", "owned_by": "vllm", "max_model_len": 32768}
                    self._send(200, json.dumps({"object": "list", "data": [listed]}).encode())
                elif self.path == "/metrics":
                    self._send(200, METRICS.encode(), "text/plain")
                else:
                    self._send(404, b'{"detail": "Not Found"}')

            def do_POST(self) -> None:
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                if outer.refusal is not None:
                    self._send(outer.refusal[0], json.dumps(outer.refusal[1]).encode())
                    return
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                for place, line in enumerate(outer.lines):
                    if place == len(outer.lines) - 1:
                        outer.gate.wait(20)
                    with suppress(OSError):
                        self.wfile.write(f"data: {line}\n\n".encode())
                        self.wfile.flush()

            def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


def until(condition: Callable[[], object], what: str = "it", seconds: float = 20.0) -> None:
    """Wait for what another thread will bring about."""
    from http_helpers import until as wait

    try:
        wait(condition, seconds)
    except AssertionError:
        raise AssertionError(f"{what} did not come about") from None
