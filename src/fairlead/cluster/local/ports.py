"""Chooses rendezvous ports: consecutive ones for each attempt of a gang, below the kernel's ephemeral range."""

import random
import socket

from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError
from fairlead.runtime.podfiles import read_json, write_json

LOWEST, HIGHEST = 20_000, 32_000


def port_for(home: Home, workload_uid: str, attempt: int, num_ports: int = 2) -> int:
    """Return the lowest port of an attempt; the same for every pod of the gang.

    If another program takes a port before the rendezvous, the attempt fails, and the next one gets other ports.
    """
    path = home.run(workload_uid) / f"rendezvous-{attempt}.json"
    known = read_json(path)
    if known is not None:
        return int(known["master_port"])
    # Seeded by the attempt: two concurrent agents agree, and gangs started together spread out.
    draw = random.Random(f"{workload_uid}-{attempt}")
    for _ in range(200):
        port = draw.randrange(LOWEST, HIGHEST, 2)
        if all(_is_free(port + offset) for offset in range(num_ports)):
            write_json(path, {"master_port": port}, durably=False)
            return port
    raise ClusterError(f"No {num_ports} neighbouring free ports between {LOWEST} and {HIGHEST}; end what holds them.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
