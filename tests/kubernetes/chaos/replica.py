"""One operator as a process of its own: `replica.py KUBECONFIG NAMESPACE`; elections go fast, the rest is as ever."""

import logging
import sys
from pathlib import Path

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.pods import PodSettings
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name
from fairlead.control.controllers import OperatorSettings
from fairlead.control.operator import Operator

LEASE_S, DEADLINE_S, BEAT_S = 3.0, 2.0, 0.5


def main(kubeconfig: str, namespace: str) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    settings = OperatorSettings(namespace=namespace, lease_s=LEASE_S, deadline_s=DEADLINE_S, beat_s=BEAT_S)
    Operator(Client(load_access((Path(kubeconfig),))), PodSettings(runtime=bundle_name()), settings).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
