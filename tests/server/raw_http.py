"""Requests as bytes, for what no HTTP client would send."""

import socket
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

BODY = b'{"messages":[{"role":"user","content":"hi"}]}'
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The beginning of a request to the model; the headers go on."""


def dial(client: httpx.Client, timeout: float = 10) -> socket.socket:
    """A connection to the server of a client."""
    url = urlsplit(str(client.base_url))
    assert url.hostname is not None
    return socket.create_connection((url.hostname, url.port), timeout=timeout)


def deaf(client: httpx.Client) -> socket.socket:
    """A connection that takes in little before it is read from."""
    sock = dial(client)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return sock


def ending(sock: socket.socket) -> bytes:
    """All that comes until the server closes. Raises TimeoutError where it does not."""
    received = b""
    with suppress(ConnectionResetError):  # what it has not read is thrown away with the connection
        while chunk := sock.recv(65536):
            received += chunk
    return received


def one_answer(sock: socket.socket) -> bytes:
    """A whole answer on a connection that goes on."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(sock)
    head, _, rest = received.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(rest) < length:
        rest += _some(sock)
    return head + b"\r\n\r\n" + rest


def _some(sock: socket.socket) -> bytes:
    chunk = sock.recv(65536)
    assert chunk, "the server has closed"
    return chunk


def raw(client: httpx.Client, *lines: bytes, body: bytes = b"") -> bytes:
    """The answer to a request of these lines."""
    with dial(client) as sock:
        with suppress(ConnectionResetError, BrokenPipeError):
            sock.sendall(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
        return ending(sock)


def status(answer: bytes) -> int:
    """The status of an answer."""
    return int(answer.split(b" ", 2)[1])
