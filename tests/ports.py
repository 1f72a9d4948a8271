"""Ports of loopback for servers of tests."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
