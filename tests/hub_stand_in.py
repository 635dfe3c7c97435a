"""A small hub on a local port: the requests that a download makes, with everything that can go wrong on demand."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "c0ffee" + "0" * 34
PIECE = 1 << 16


class HubStandIn:
    """Repositories by name, each a mapping of file names to bytes. What the tests change takes effect at once.

    Attributes:
        status: answered for everything instead, with `code` as X-Error-Code. tokens: where not empty, one must come.
        falsified: files that come with one byte changed. ranges: whether Range is honoured.
        cut: bytes after which the connection breaks, once for each number. asked: (file, first byte) of each GET.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.status: int | None = None
        self.code: str | None = None
        self.tokens: set[str] = set()
        self.falsified: set[str] = set()
        self.ranges = True
        self.cut: list[int] = []
        self.hold_after: int | None = None
        self.holding = threading.Event()
        self.go = threading.Event()
        self.asked: list[tuple[str, int]] = []
        self.url = ""


@contextmanager
def served() -> Iterator[HubStandIn]:
    """Serve one on a free port of this machine."""
    hub = HubStandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.go.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def sibling(name: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
    if is_large(name):
        entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return entry


def handler(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(self.path.partition("?")[0])
            if hub.status is not None:
                return self.refuse(hub.status, hub.code)
            if hub.tokens and self.headers.get("Authorization", "").removeprefix("Bearer ") not in hub.tokens:
                return self.refuse(401, None)
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                return self.describe(found[1], found[2] or "main")
            if (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)) is None:
                return self.refuse(404, None)
            files = hub.repos.get(found[1])
            if files is None or found[3] not in files:
                return self.refuse(404, "EntryNotFound" if files else "RepoNotFound")
            return self.send(found[3], files[found[3]])

        def describe(self, repo: str, revision: str) -> None:
            files = hub.repos.get(repo)
            if files is None:
                return self.refuse(404, "RepoNotFound")
            if revision not in ("main", "v1", COMMIT):
                return self.refuse(404, "RevisionNotFound")
            body = {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": [sibling(*each) for each in files.items()]}
            return self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def send(self, name: str, data: bytes) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(asked[1]) if asked else 0
            hub.asked.append((name, start))
            if name in hub.falsified:
                data = data[:-1] + bytes([data[-1] ^ 1])
            partial = hub.ranges and asked is not None
            body = data[start:] if partial else data
            self.send_response(206 if partial else 200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            cut = hub.cut.pop(0) if hub.cut and is_large(name) else None
            for place in range(0, len(body), PIECE):
                if cut is not None and place >= cut:
                    self.close_connection = True
                    self.connection.close()
                    return
                if hub.hold_after is not None and is_large(name) and place >= hub.hold_after:
                    self.wfile.flush()
                    hub.holding.set()
                    hub.go.wait(60)
                self.wfile.write(body[place : place + PIECE])

        def refuse(self, status: int, code: str | None) -> None:
            self.answer(status, b"{}", {"X-Error-Code": code} if code else {})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, ValueError, OSError):  # the client went away, as it may
                self.close_connection = True

    return Handler
