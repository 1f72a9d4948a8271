"""Runs Kueue with a control plane of the tests: built from its published module, without most of its webhooks.

Kueue reads its metrics certificate from a fixed place under /etc, so it runs in its own mount namespace with a small
/etc; that needs root. Its kinds are taken from the module, at the version that Kueue itself writes. Without webhooks a
Job is created suspended and with the label of its queue.
"""

import base64
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
SYSTEM = "kueue-system"
# What the configuration in Kueue's release allows it.
MOST_STARTS = 4
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
    kinds = (
        "workloads", "localqueues", "clusterqueues", "resourceflavors", "topologies", "admissionchecks",
        "multikueueclusters", "multikueueconfigs",
    )  # fmt: skip
    while not all(_is_served(plane, plural) for plural in kinds):
        time.sleep(0.2)
    home = plane.home / "kueue"
    home.mkdir(exist_ok=True)
    health, metrics, webhook = free_ports(3)
    authority = trustme.CA()
    (home / "webhook").write_text(f"https://127.0.0.1:{webhook}")
    authority.cert_pem.write_to_path(str(home / "ca.crt"))
    certificate = authority.issue_cert("127.0.0.1")
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
    for left in reversed(range(MOST_STARTS)):
        server.start()
        try:
            server.until(lambda: server.said("Starting workers"), "its controllers")
            break
        except Broken:
            # Where the API server lists a kind later than it serves it, Kueue ends, and a kubelet would start it again.
            if server.pid is not None or not left:
                raise
    return server


def default_jobs(plane: ControlPlane, namespace: str) -> str:
    """Have the server's own webhook look at new Jobs of a namespace, which is how Kueue has others carry them out.

    Returns:
        The path of what is to be deleted afterwards.
    """
    home = plane.home / "kueue"
    place = f"{(home / 'webhook').read_text()}/mutate-batch-v1-job"
    content = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "kueue-mutating-webhook-configuration"},
        "webhooks": [
            {
                "name": "mjob.kb.io",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "url": place, "caBundle": base64.b64encode((home / "ca.crt").read_bytes()).decode(),
                },
                "failurePolicy": "Fail",
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
                ],
                "sideEffects": "None",
            }
        ],
    }  # fmt: skip
    path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{content['metadata']['name']}"  # type: ignore[index]
    plane.request("PATCH", f"{path}?fieldManager=benchmark&force=true", content, kind="apply-patch+yaml")
    return path


def set_quota(
    plane: ControlPlane,
    namespace: str,
    resources: Mapping[str, int | str],
    *,
    queue: str = QUEUE,
    check: str | None = None,
) -> None:
    """One queue in the namespace that admits so much at a time, once a check agrees where there is one."""
    checks = {} if check is None else {"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}}
    flavor = {"name": "default", "resources": [{"name": n, "nominalQuota": q} for n, q in resources.items()]}
    groups = [{"coveredResources": list(resources), "flavors": [flavor]}]
    for plural, content in {
        "resourceflavors": _object("ResourceFlavor", "default", {}),
        "clusterqueues": _object(
            "ClusterQueue", queue,
            {"namespaceSelector": {}, "resourceGroups": groups, "queueingStrategy": "StrictFIFO", **checks},
        ),
        f"namespaces/{namespace}/localqueues": _object("LocalQueue", queue, {"clusterQueue": queue}),
    }.items():  # fmt: skip
        _apply(plane, plural, content)


def join(manager: ControlPlane, workers: Mapping[str, ControlPlane], check: str) -> None:
    """Have a check of one Kueue send what is to be admitted to others, with MultiKueue."""
    if not manager.exists(f"/api/v1/namespaces/{SYSTEM}"):
        manager.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
    for name, worker in workers.items():
        config = base64.b64encode(worker.kubeconfig().read_bytes()).decode()
        secret = {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"kubeconfig": config},
        }  # fmt: skip
        path = f"/api/v1/namespaces/{SYSTEM}/secrets/{name}?fieldManager=benchmark&force=true"
        manager.request("PATCH", path, secret, kind="apply-patch+yaml")
        source = {"kubeConfig": {"locationType": "Secret", "location": name}}
        _apply(manager, "multikueueclusters", _object("MultiKueueCluster", name, {"clusterSource": source}))
    _apply(manager, "multikueueconfigs", _object("MultiKueueConfig", check, {"clusters": list(workers)}))
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": check}
    spec = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    _apply(manager, "admissionchecks", _object("AdmissionCheck", check, spec))


def _apply(plane: ControlPlane, plural: str, content: dict[str, Any]) -> None:
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
