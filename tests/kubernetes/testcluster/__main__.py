"""A cluster to try things out on: ``python -m tests.kubernetes.testcluster up [--nodes 200] [--real]``.

It prints the line that points kubectl and Fairlead at it, and stays until Ctrl-C. ``build`` makes no more than its
programs, which the first ``up`` and the first test do otherwise; ``build --long`` those of the long tests too,
``build --all`` also what takes an hour.
"""

import argparse
import signal
import sys
import threading
import time

from benchmarks import kueue_server
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Broken, Unavailable
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.kubernetes.testcluster.real_nodes import RealCluster


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.testcluster")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    build = commands.add_parser("build", help="build what a cluster needs, where that is missing")
    build.add_argument("--long", action="store_true", help="and what `pytest -m long` needs besides")
    build.add_argument("--all", action="store_true", help="and KEDA, Katib and Karmada, which take more than an hour")
    up = commands.add_parser("up", help="start a cluster, until Ctrl-C")
    up.add_argument("--nodes", type=int, default=4, help="fake nodes with 8 GPUs each (default 4)")
    up.add_argument("--version", default=binaries.DEFAULT, help=f"Kubernetes version (default {binaries.DEFAULT})")
    up.add_argument("--real", action="store_true", help="two real nodes too, which run containers; needs root")
    arguments = parser.parse_args()
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: over.set())
    began = time.monotonic()
    try:
        if arguments.command == "build":
            binaries.ensure()
            if arguments.long or arguments.all:
                binaries.ensure(names=binaries.REAL_NODES)
                binaries.ensure(binaries.OLDEST)
                binaries.ensure_karpenter()
                kueue_server.ensure()
                binaries.ensure_kube_proxy()
                for name in binaries.ENGINES:
                    if arguments.all or name not in binaries.RARE:
                        binaries.ensure_engine(name, rare=True)
            return
        version = arguments.version
        with RealCluster(2, version=version) if arguments.real else ControlPlane(version=version) as plane:
            add_nodes(plane, arguments.nodes)
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            nodes = f"{arguments.nodes} fake nodes" + (" and 2 real ones" if arguments.real else "")
            took = time.monotonic() - began
            print(f"Kubernetes {version} with {nodes} after {took:.1f} s; Ctrl-C ends it.", file=sys.stderr)
            print(f"A kubectl that fits: {plane.kubectl}", file=sys.stderr, flush=True)
            over.wait()
    except (Broken, Unavailable) as error:
        sys.exit(f"testcluster: {error}")


if __name__ == "__main__":
    main()
