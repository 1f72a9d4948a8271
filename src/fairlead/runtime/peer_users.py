"""Finds the user of a connection to a port on loopback, to which every user of the machine can connect."""

from __future__ import annotations

import os
import socket
import struct
import sys

NOBODY = -1
"""The user of an end that no process holds any more; the kernel's tables would say that it is root's."""
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
# Of linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR, _NO_ENTRY = 4, 20, 1, 2, -2
_HEAD, _USER_AND_INODE_AT = "=IHHII", 16 + 4 + 48 + 12


def is_known_user(peer: tuple[str, int] | None, own: tuple[str, int] | None) -> bool:
    """Return whether a loopback connection belongs to our user or root; True if the system does not tell.

    Args:
        peer: Address and port of the client.
        own: Address and port of the server.
    """
    if peer is None or own is None or sys.platform != "linux":
        return True
    user = _holder_by_netlink(peer, own)
    if user is None:
        user = _holder_by_tables(peer, own)
    return user is None or user in _users()


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end of a Unix socket is of our user or root; True if the system does not tell."""
    if sys.platform != "linux":
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] in _users()


def _holder_by_netlink(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the user of the client's end, or `NOBODY`; None if the system does not tell.

    One question in microseconds, however many connections the machine has.
    """
    if sys.platform != "linux":
        return None
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        addresses = b"".join(socket.inet_pton(family, host).ljust(16, b"\0") for host in (peer[0], own[0]))
        ports = struct.pack("!HH", peer[1], own[1])
        request = struct.pack("=BBxxI", family, socket.IPPROTO_TCP, 0xFFFFFFFF) + ports + addresses
        request += struct.pack("=I8s", 0, b"\xff" * 8)  # any interface, any cookie
        head = struct.pack(_HEAD, 16 + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG) as kernel:
            kernel.setblocking(False)
            kernel.sendto(head + request, (0, 0))
            answer = kernel.recv(4096)
        kind = struct.unpack_from(_HEAD, answer)[1]
        if kind == _NLMSG_ERROR:
            return NOBODY if struct.unpack_from("=i", answer, 16)[0] == _NO_ENTRY else None
        user, inode = struct.unpack_from("=II", answer, _USER_AND_INODE_AT)
    except (OSError, struct.error):  # such as a container whose seccomp profile forbids it
        return None
    return int(user) if inode else NOBODY


def _holder_by_tables(peer: tuple[str, int], own: tuple[str, int]) -> int | None:
    """Return the same from the tables of all connections."""
    if ":" in peer[0]:
        return None
    ends = _end(*peer), _end(*own)
    for table in _TABLES:
        try:
            with open(table) as file:
                lines = file.read().splitlines()[1:]
        except OSError:  # such as a machine without IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                return int(fields[7]) if fields[9] != "0" else NOBODY
    return None


def _end(address: str, port: int) -> str:
    """An end as the tables write it. With its address: others may take the port of our user at 127.0.0.2."""
    number = int.from_bytes(socket.inet_aton(address), sys.byteorder)
    return f"{number:08X}:{port:04X}"


def _users() -> tuple[int, int]:
    return 0, os.getuid()
