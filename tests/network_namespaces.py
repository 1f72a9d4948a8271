"""Networks of their own for programs that take themselves for nodes, with links of a chosen speed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

FIRST_ADDRESS = "10.99.0.1"
MBIT_S, SLOW_MBIT_S = 400, 120


def lacking() -> str | None:
    """Why such networks cannot be made here; None if they can."""
    if os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc"):
        return None
    return "networks of its own need root and tc"


@contextmanager
def namespaces(num_nodes: int, slow: int) -> Iterator[list[str]]:
    """Networks behind one bridge, at 400 Mbit/s each, but one at 120; by their names."""
    prefix = f"fl{os.getpid() % 100_000}"
    names = [f"{prefix}-{number}" for number in range(num_nodes)]
    with ExitStack() as stack:

        def ip(command: str, *, undo: str) -> None:
            subprocess.run(command.split(), check=True, timeout=60)
            stack.callback(subprocess.run, undo.split(), check=False, timeout=60)

        ip(f"ip netns add {prefix}", undo=f"ip netns del {prefix}")
        inside = f"ip netns exec {prefix}"
        for command in ("link add bridge type bridge", "link set bridge up"):
            subprocess.run(f"{inside} ip {command}".split(), check=True, timeout=60)
        for number, name in enumerate(names):
            ip(f"ip netns add {name}", undo=f"ip netns del {name}")
            rate = SLOW_MBIT_S if number == slow else MBIT_S
            shaped = f"root tbf rate {rate}mbit burst 256kb latency 50ms"
            for command in (
                f"{inside} ip link add v{number} type veth peer name eth0 netns {name}",
                f"{inside} ip link set v{number} master bridge up",
                f"{inside} tc qdisc add dev v{number} {shaped}",
                f"ip -n {name} addr add 10.99.0.{number + 1}/24 dev eth0",
                f"ip -n {name} link set eth0 up",
                f"ip -n {name} link set lo up",
                f"ip netns exec {name} tc qdisc add dev eth0 {shaped}",
            ):
                subprocess.run(command.split(), check=True, timeout=60)
        yield names
