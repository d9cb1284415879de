"""A port at which the ranks of a job will meet."""

import contextlib
import socket


def open_port(*, listening: bool) -> socket.socket:
    """A port that is free. While it is held without listening, the kernel gives it to nobody who
    asks for any port, but rank 0 can listen on it: so two jobs never choose the same."""
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError):
            port = socket.socket(family)
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("", 0))
            if listening:
                port.listen()
            return port
    raise OSError("no port can be opened")
