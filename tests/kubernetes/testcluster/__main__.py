"""A control plane for trying things out: ``python -m tests.kubernetes.testcluster [--nodes 4] [--version 1.36.3]``.

It prints the line that points kubectl and Fairlead at it, and stays until Ctrl-C.
"""

import argparse
import signal
import sys
import time

from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Broken, Unavailable
from tests.kubernetes.testcluster.fakes import add_nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4, help="fake nodes with 8 GPUs each (default 4)")
    parser.add_argument("--version", default=binaries.NEWEST, help=f"Kubernetes version (default {binaries.NEWEST})")
    arguments = parser.parse_args()
    began = time.monotonic()
    try:
        with ControlPlane(version=arguments.version) as plane:
            add_nodes(plane, arguments.nodes)
            took = time.monotonic() - began
            print(f"Kubernetes {plane.version} with {arguments.nodes} fake nodes after {took:.1f} s; Ctrl-C ends it.")
            print(f"export KUBECONFIG={plane.kubeconfig()}", flush=True)
            kubectl = binaries.ensure(arguments.version)["kubectl"]
            print(f"alias kubectl={kubectl}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    except (Broken, Unavailable) as error:
        sys.exit(f"testcluster: {error}")


if __name__ == "__main__":
    main()
