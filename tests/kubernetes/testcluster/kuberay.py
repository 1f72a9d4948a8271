"""KubeRay in a pod of a cluster with real nodes, as its manifests have it, and an image with Ray."""

import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.frameworks.environments import SITE, find_interpreter
from tests.kubernetes.testcluster import binaries, images, own_python
from tests.kubernetes.testcluster.engines import apply, define
from tests.kubernetes.testcluster.errors import Unavailable
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

SYSTEM = "ray-system"
OPERATOR = "kuberay-operator"
IMAGE = "testcluster.fairlead.dev/kuberay:1"
RAY = "testcluster.fairlead.dev/ray:1"
"""The image of runs: the Python of the tests with Ray, and the commands that KubeRay expects of Ray's own images."""
_PACKAGES = "/opt/own/ray"
_PROGRAMS = {
    "ray": """#!/usr/local/bin/python3
import sys
from ray.scripts.scripts import main
sys.exit(main())
""",
    # Of wget KubeRay's probes need no more.
    "wget": """#!/usr/local/bin/python3 -IS
import sys, urllib.request
seconds = float(sys.argv[sys.argv.index("-T") + 1])
sys.stdout.write(urllib.request.urlopen(sys.argv[-1], timeout=seconds).read().decode())
""",
}


def directories() -> dict[str, Path]:
    """The directories of this machine that the nodes' containers need, for ``RealCluster``.

    Raises:
        Unavailable: Ray cannot be installed here.
    """
    found = find_interpreter("ray-jobs")
    if isinstance(found, str):
        raise Unavailable(found)
    return {**own_python.DIRECTORIES, _PACKAGES: found.parent.parent / SITE}


def install(cluster: RealCluster) -> None:
    """Start KubeRay on a cluster whose containers have ``directories``, and import ``RAY``; built if it is missing.

    Raises:
        Unavailable: It cannot be built here.
        Broken: It did not come up.
    """
    program = binaries.ensure_engine("kuberay")
    home = binaries.source_of("kuberay") / "config"
    with tempfile.TemporaryDirectory(dir=cluster.home) as scratch:
        place = Path(scratch)
        for name, text in _PROGRAMS.items():
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        files = {f"/usr/local/bin/{name}": place / name for name in _PROGRAMS}
        cluster.import_image(own_python.write_image(place / "ray.tar", RAY, files=files, packages=[_PACKAGES]))
        layer = images.layer_of(place / "layer.tar", {"/manager": program})
        images.write_archive(place / "kuberay.tar", IMAGE, [layer], command=["/manager"])
        cluster.import_image(place / "kuberay.tar")
    define(cluster, home / "crd" / "bases")
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    cluster.await_namespace(SYSTEM)
    files_ = [home / "manager" / "manager.yaml", *(home / "rbac" / f"{name}.yaml" for name in _RIGHTS)]
    contents = [_fitted(each) for file in files_ for each in yaml.safe_load_all(file.read_text())]
    apply(cluster, contents, "KubeRay")
    path = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/{OPERATOR}"
    until(lambda: cluster.request("GET", path)["status"].get("availableReplicas") == 1, timeout_s=120)


_RIGHTS = ("service_account", "role", "role_binding", "leader_election_role", "leader_election_role_binding")


def _fitted(content: dict[str, Any]) -> dict[str, Any]:
    """An object of its manifests in our namespace, with an image that is here."""
    if content["kind"] not in ("ClusterRole", "ClusterRoleBinding"):
        content["metadata"]["namespace"] = SYSTEM
    for subject in content.get("subjects", ()):
        subject["namespace"] = SYSTEM
    if content["kind"] == "Deployment":
        (container,) = content["spec"]["template"]["spec"]["containers"]
        container |= {"image": IMAGE, "imagePullPolicy": "Never"}
        container["readinessProbe"]["initialDelaySeconds"] = 1
        # A busy machine is no reason to begin anew.
        container.pop("livenessProbe")
        del container["resources"]
    return content
