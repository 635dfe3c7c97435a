"""Where the server listens: this machine alone by default, on both kinds of address under one port."""

import errno
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress

PORTS_TRIED = 21
BACKLOG = 128

Address = tuple[socket.AddressFamily, str]

# Clients take "localhost" for either, and where only one is ours somebody else could listen on the other.
LOOPBACK: tuple[Address, ...] = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
EVERYWHERE: tuple[Address, ...] = ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0"))


class ServerStartError(Exception):
    """The server can not listen where it was told to; the text can be shown to a user as it is."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Names other than localhost are not looked up."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check_host(host: str, keyed: bool) -> None:
    """Raise ServerStartError for a host that other machines can reach, unless they need a key there."""
    if not keyed and not is_loopback(host):
        raise ServerStartError(
            f"{host or 'An empty host'} can be reached from other machines, so the server needs keys: give a file with "
            "--key-file, or set MTPLX_API_KEY. Without --host it serves this machine alone."
        )


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on the first port from `port` on that is free on all addresses of `host`; 0 is any.

    `localhost` is both loopback addresses and `::` all addresses of both kinds; of the second ones there may be none.

    Raises:
        ServerStartError: with what to do instead.
    """
    if not 0 <= port <= 65535:
        raise ServerStartError(f"Port {port} does not exist; choose one from 0 to 65535.")
    addresses = _addresses(host)
    for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else [0] * PORTS_TRIED:
        listeners = _bind(addresses, candidate)
        if listeners:
            return listeners
    raise ServerStartError(f"Ports {port} to {candidate} of {host} are all taken; choose another with --port.")


def _addresses(host: str) -> Sequence[Address]:
    if host == "localhost":
        return LOOPBACK
    if host == "::":
        return EVERYWHERE
    try:
        if not host:
            raise OSError("it is empty")
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ServerStartError(f"The host {host!r} is no address of this machine: {error}.") from error
    return [(socket.AddressFamily(family), str(address[0]))]


def _bind(addresses: Sequence[Address], port: int) -> list[socket.socket]:
    """A socket for each address, all on one port; none where it is taken on any of them."""
    listeners: list[socket.socket] = []
    for family, address in addresses:
        try:
            listeners.append(_listen(family, address, port))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and listeners:
                continue
            for listener in listeners:
                listener.close()
            if error.errno == errno.EADDRINUSE:
                return []
            raise ServerStartError(f"{address}:{port} can not be used: {error.strerror or error}.") from error
        port = listeners[0].getsockname()[1]
    return listeners


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # asyncio turns TCP_NODELAY on where a socket says that it is TCP. Without it the first token waits behind the
    # headers for the client's delayed acknowledgement: 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A port whose last owner has just closed is free; one that somebody listens on is not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
