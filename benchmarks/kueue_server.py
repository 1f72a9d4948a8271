"""Runs Kueue with a control plane of the tests: built from its published module, without its webhooks.

Kueue reads its metrics certificate from a fixed place under /etc, so it runs in its own mount namespace with a small
/etc; that needs root. Its kinds are taken from the module, at the version that Kueue itself writes. Without webhooks a
Job is created suspended and with the label of its queue.
"""

import os
import shlex
import subprocess
import time
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trustme
import yaml

from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Broken
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports

MODULE = Path(__file__).parent / "kueue"
VERSION = "v0.15.2"
PACKAGE = "sigs.k8s.io/kueue"
API = "kueue.x-k8s.io/v1beta2"
QUEUE = "gangs"
# What the configuration in Kueue's release allows it.
SHIPPED_QPS, SHIPPED_BURST = 50, 100


def ensure() -> Path:
    """The program, built if it is missing (minutes the first time)."""
    directory = binaries.cache() / f"kueue-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "kueue").exists():
        binaries.refuse_to_build("kueue")
    with binaries.alone(directory):
        if not (directory / "kueue").exists():
            binaries.say(f"building Kueue {VERSION} (once; minutes) ...")
            _go("build", "-trimpath", "-ldflags=-s -w", "-o", str(directory / "new"), f"{PACKAGE}/cmd/kueue")
            (directory / "new").rename(directory / "kueue")
    return directory / "kueue"


def start(plane: ControlPlane, *, qps: int, burst: int) -> Server:
    """Kueue, once it serves.

    Args:
        qps, burst: Requests a second that it allows itself, and at once.
    """
    program = ensure()
    for path in sorted((_source() / "config/components/crd/bases").glob("*.yaml")):
        _define(plane, yaml.safe_load(path.read_text()))
    kinds = ("workloads", "localqueues", "clusterqueues", "resourceflavors", "topologies")
    while not all(_is_served(plane, plural) for plural in kinds):
        time.sleep(0.2)
    home = plane.home / "kueue"
    home.mkdir()
    health, metrics, webhook = free_ports(3)
    certificate = trustme.CA().issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(home / "tls.key"))
    (home / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(home)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": qps, "burst": burst},
        "integrations": {"frameworks": ["batch/job"]},
    }
    (home / "config.yaml").write_text(yaml.safe_dump(config))
    place = shlex.quote(str(home))
    script = (
        "mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics/certs && "
        f"cp {place}/tls.crt {place}/tls.key /etc/kueue/metrics/certs/ && "
        f"exec {shlex.quote(str(program))} --config={place}/config.yaml --feature-gates=VisibilityOnDemand=false"
    )
    os.environ["KUBECONFIG"] = str(plane.kubeconfig())
    server = Server("kueue", ["unshare", "--mount", "sh", "-c", script], plane.home / "kueue.log")
    server.start()
    server.until(lambda: "Starting workers" in server.log_tail(), "its controllers")
    return server


def set_quota(plane: ControlPlane, namespace: str, resources: Mapping[str, int | str]) -> None:
    """One queue in the namespace that admits so much at a time."""
    flavor = {"name": "default", "resources": [{"name": n, "nominalQuota": q} for n, q in resources.items()]}
    groups = [{"coveredResources": list(resources), "flavors": [flavor]}]
    for plural, content in {
        "resourceflavors": _object("ResourceFlavor", "default", {}),
        "clusterqueues": _object(
            "ClusterQueue", QUEUE, {"namespaceSelector": {}, "resourceGroups": groups, "queueingStrategy": "StrictFIFO"}
        ),
        f"namespaces/{namespace}/localqueues": _object("LocalQueue", QUEUE, {"clusterQueue": QUEUE}),
    }.items():
        path = f"/apis/{API}/{plural}/{content['metadata']['name']}?fieldManager=benchmark&force=true"
        plane.request("PATCH", path, content, kind="apply-patch+yaml")


def _define(plane: ControlPlane, content: dict[str, Any]) -> None:
    """Apply a kind at the version that Kueue writes, for nothing converts between versions without its webhooks."""
    content["spec"].pop("conversion", None)
    content["spec"]["versions"] = [
        {**version, "storage": True} for version in content["spec"]["versions"] if version["name"] == "v1beta2"
    ]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{content['metadata']['name']}"
    plane.request("PATCH", f"{path}?fieldManager=benchmark&force=true", content, kind="apply-patch+yaml")


def _is_served(plane: ControlPlane, plural: str) -> bool:
    try:
        plane.request("GET", f"/apis/{API}/{plural}")
    except urllib.error.HTTPError:  # 404, and 429 while its storage is made
        return False
    return True


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _source() -> Path:
    return Path(_go("list", "-m", "-f", "{{.Dir}}", PACKAGE).strip())


def _go(*arguments: str) -> str:
    done = subprocess.run(
        [binaries.go(), *arguments],
        cwd=MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"},
        preexec_fn=lambda: os.nice(10),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Broken(f"go {arguments[0]} of Kueue failed:\n{done.stderr[-2000:]}")
    return done.stdout
