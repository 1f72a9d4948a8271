"""Tells which names mean this machine.

Loopback is no boundary: any site's page in a browser of this machine may connect to it, under a name of that site that
points here (DNS rebinding). What listens on loopback without a password asks here. Other users of the machine may, too:
`runtime/peer_users.py` tells them apart.

See decision 167.
"""

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names by which a browser on this machine, or one behind a tunnel to it, knows a server on loopback."""


def is_loopback(address: str) -> bool:
    """Return whether a server on this address listens on loopback only."""
    return address.startswith("127.") or address in ("::1", "localhost")


def is_known_host(header: str | None) -> bool:
    """Return whether a Host header names this machine, with any port or none."""
    return header is not None and name_of(header) in HOSTS


def is_local_name(name: str) -> bool:
    """Return whether a name in lower case, without a port, means this machine wherever it is resolved (RFC 6761)."""
    return name in HOSTS or name.endswith(".localhost")


def is_local_origin(origin: str) -> bool:
    """Return whether an Origin header is that of a page of a server on this machine."""
    scheme, separator, host = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and is_local_name(name_of(host))


def name_of(host: str) -> str:
    """Return the name of a Host header in lower case, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
