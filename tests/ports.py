"""Ports of loopback for servers of tests."""

import random
import socket

LOWEST, HIGHEST = 10_000, 20_000
"""Below the range that kernels give to connections: a server that is started again finds its port free, however many
connections were opened in between. Runs of ours take theirs from above this range."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different."""
    found: list[int] = []
    draw = random.SystemRandom()  # two processes with one seed would be after the same ones
    while len(found) < count:
        port = draw.randrange(LOWEST, HIGHEST)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]


def listens(port: int) -> bool:
    """Return whether a server listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
