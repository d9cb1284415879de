"""A free port for the store of a job."""

import contextlib
import socket


def open_port(*, listening: bool) -> socket.socket:
    """Bind a free port. While the socket is bound but does not listen, the kernel assigns its port
    to no other socket, but rank 0 can listen on it; so two jobs never choose the same port."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            port = socket.socket(family)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("", 0))
            if listening:
                port.listen()
            return port
    raise OSError("no port can be opened")
