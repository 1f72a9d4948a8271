"""Sees from the sockets of a pod whether its ranks have connected to others, for a gang that is to train together.

Ranks meet at `MASTER_PORT`, torch.distributed's, or the port above it, Fairlead's. A launcher in a script that starts a
gang of its own for each rank uses neither, and each trains alone. Linux only; elsewhere nothing is known.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NEVER_MET = "no rank of it connected to another"
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"


class Meeting:
    """Watches whether the ranks of a pod connect to those of others.

    Args:
        env: The environment of the pod's ranks.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ports: set[int] = set()
        # On one machine all pods share loopback; elsewhere a connection within the pod is none to another.
        self._is_abroad = env.get("GROUP_WORLD_SIZE", "1") != "1" and not env.get("MASTER_ADDR", "").startswith("127.")
        self._is_seen = False
        # Frameworks meet at ports of their own, and fail where they do not; ranks in place through files or a server.
        others = ("FAIRLEAD_FRAMEWORK", "FAIRLEAD_MEMBERS_DIR", "FAIRLEAD_MEMBERS_AT", "FAIRLEAD_SERVICE")
        if env.get("WORLD_SIZE", "1") != "1" and not any(env.get(name) for name in others):
            self._ports = {int(env[name]) for name in ("MASTER_PORT", "FAIRLEAD_AGREE_PORT") if env.get(name)}

    def look(self) -> None:
        """Look for a connection, also one that was closed less than a minute ago (TIME_WAIT)."""
        if not self._ports or self._is_seen:
            return
        known = False
        for table in _TABLES:
            try:
                with open(table, encoding="ascii") as file:
                    lines = file.read().splitlines()[1:]
            except OSError:
                continue
            known = True
            self._is_seen = self._is_seen or any(self._is_of_ranks(line.split()) for line in lines)
        if not known:
            self._ports = set()

    @property
    def failed(self) -> bool:
        """Return whether no connection was seen, where there should be one."""
        return bool(self._ports) and not self._is_seen

    def _is_of_ranks(self, fields: list[str]) -> bool:
        (local, local_port), (remote, remote_port) = (address.split(":") for address in fields[1:3])
        if fields[3] == _LISTENS or not {int(local_port, 16), int(remote_port, 16)} & self._ports:
            return False
        return not self._is_abroad or local != remote
