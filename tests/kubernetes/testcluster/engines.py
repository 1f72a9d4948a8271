"""Real controllers of engines beside a control plane, without their webhooks: each knows its own kinds.

What a webhook would fill in is in what is created. Their kinds come from their modules, at the version that is stored.
"""

import base64
import json
import os
import shlex
import subprocess
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.kubernetes.testcluster import binaries, webhooks
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.errors import Broken, Unavailable
from tests.kubernetes.testcluster.processes import Server
from tests.ports import free_ports

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CERTIFICATES = Path("/tmp/k8s-webhook-server")
"""The place where training-operator looks for them, whatever it is told."""
KINDS = {
    "jobset": "config/components/crd/bases",
    "trainer": "manifests/base/crds",
    "training-operator": "manifests/base/crds",
    "kserve": "config/crd/full",
}


@contextmanager
def engine(plane: ControlPlane, name: str) -> Iterator[Server]:
    """The controller of an engine, once it serves; built if it is missing (minutes the first time).

    Raises:
        Unavailable: It cannot be built here, or needs root.
    """
    program = binaries.ensure_engine(name)
    define(plane, binaries.source_of(name) / KINDS[name])
    home = plane.home / name
    home.mkdir(exist_ok=True)
    argv, ready, *hooks = _STARTS[name](plane, program, home)
    with ExitStack() as stack:
        server = Server(name, argv, plane.home / f"{name}.log")
        stack.callback(server.kill)
        server.start()
        server.until(ready if callable(ready) else lambda: server.said(str(ready)), "its controllers")
        for each in hooks:
            stack.enter_context(each)
        yield server


def define(plane: ControlPlane, directory: Path, files: str = "*_*.yaml") -> None:
    """Put the kinds of a directory's files on the control plane, and wait until they are served."""
    paths = []
    for file in sorted(directory.glob(files)):
        for kind in yaml.safe_load_all(file.read_text()):
            if (kind or {}).get("kind") != "CustomResourceDefinition":
                continue
            kind["spec"].pop("conversion", None)
            path = f"{DEFINITIONS}/{kind['metadata']['name']}"
            plane.request("PATCH", f"{path}?fieldManager=test&force=true", kind, kind="apply-patch+yaml")
            (stored,) = (each["name"] for each in kind["spec"]["versions"] if each["storage"])
            paths.append(f"/apis/{kind['spec']['group']}/{stored}/{kind['spec']['names']['plural']}")
    for path in paths:
        await_served(plane, path)


def apply(plane: ControlPlane, contents: Iterable[Mapping[str, Any]], what: str) -> None:
    """Put the objects of a release on a control plane, of whatever kinds they are.

    Raises:
        Broken: They are refused.
    """
    argv = [str(plane.kubectl), f"--kubeconfig={plane.kubeconfig()}", "apply", "--server-side", "-f", "-"]
    text = yaml.safe_dump_all(contents)
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        raise Broken(f"{what} was not taken: {done.stderr[-2000:]}")


def await_served(plane: ControlPlane, path: str) -> None:
    """Wait until the API server serves a kind."""
    from tests.waiting import until

    def is_served() -> bool:
        try:
            plane.request("GET", path)
        except urllib.error.HTTPError:  # 404, and 429 while its storage is made
            return False
        return True

    until(is_served)


def _jobset(plane: ControlPlane, program: Path, home: Path) -> tuple[list[str], str]:
    health, metrics, webhook = free_ports(3)
    webhooks.certified(home)
    config = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(home)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    return [*_environment(plane), str(program), f"--config={_written(home, config)}"], "Starting workers"


def _trainer(plane: ControlPlane, program: Path, home: Path) -> tuple[list[str], str]:
    health, metrics, webhook = free_ports(3)
    config = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}", "secureServing": False},
        "webhook": {"host": "127.0.0.1", "port": webhook},
        "certManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
    }
    webhooks.certified(home / "k8s-webhook-server" / "serving-certs")
    environment = _environment(plane, TMPDIR=str(home))
    return [*environment, str(program), f"--config={_written(home, config)}"], "Starting workers"


def _training_operator(plane: ControlPlane, program: Path, home: Path) -> tuple[list[str], Callable[[], bool]]:
    """With the certificate that it makes where kubelet would put it, in a mount namespace of its own."""
    if os.geteuid() != 0:
        raise Unavailable("training-operator reads certificates from a fixed place; mounting that needs root")
    health, metrics, webhook = free_ports(3)
    namespace, secret = "kubeflow", "training-operator-webhook-cert"
    objects: dict[str, dict[str, Any]] = {
        "/api/v1/namespaces": {"metadata": {"name": namespace}},
        f"/api/v1/namespaces/{namespace}/secrets": {"metadata": {"name": secret}},
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": {
            "metadata": {"name": "validator.training-operator.kubeflow.org"},
            "webhooks": [],
        },
    }
    for path, content in objects.items():
        kept(plane, path, content)
    places = home / "serving-certs"
    places.mkdir(exist_ok=True)

    def is_ready() -> bool:
        data = plane.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{secret}").get("data") or {}
        for name, value in data.items():
            if not (places / name).exists():
                (places / name).write_bytes(base64.b64decode(value))
        log = plane.home / "training-operator.log"
        return log.exists() and log.read_text().count("Starting workers") >= 4

    flags = [
        f"--metrics-bind-address=127.0.0.1:{metrics}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--webhook-server-port={webhook}",
        "--kube-api-qps=500",
        "--kube-api-burst=500",
        *(f"--enable-scheme={kind}" for kind in ("pytorchjob", "tfjob", "xgboostjob", "mpijob")),
    ]
    place = shlex.quote(str(CERTIFICATES))
    script = (
        f"mkdir -p {place} && mount --bind {shlex.quote(str(home))} {place} && "
        f"exec {shlex.join([*_environment(plane, MY_POD_NAMESPACE=namespace), str(program), *flags])}"
    )
    return ["unshare", "--mount", "sh", "-c", script], is_ready


def _kserve(
    plane: ControlPlane, program: Path, home: Path
) -> tuple[list[str], Callable[[], bool], AbstractContextManager[None]]:
    """In Standard mode, without any ingress, and with the webhooks that fill in and check an InferenceService."""
    health, metrics, webhook = free_ports(3)
    source = binaries.source_of("kserve")
    found = yaml.safe_load((source / "config/configmap/inferenceservice.yaml").read_text())
    data = {name: text for name, text in found["data"].items() if name != "_example"}
    data["deploy"] = json.dumps({"defaultDeploymentMode": "Standard"})
    data["ingress"] = json.dumps(
        {**json.loads(data["ingress"]), "disableIngressCreation": True, "disableIstioVirtualHost": True}
    )
    kept(plane, "/api/v1/namespaces", {"metadata": {"name": "kserve"}})
    kept(plane, "/api/v1/namespaces/kserve/configmaps", {"metadata": {"name": found["metadata"]["name"]}, "data": data})
    authority = webhooks.certified(home / "k8s-webhook-server" / "serving-certs")
    configurations = []
    for each in yaml.safe_load_all((source / "config/webhook/manifests.yaml").read_text()):
        if each["metadata"]["name"] != "inferenceservice.serving.kserve.io":
            continue
        # Fakes keep no promise to pods: what KServe puts beside a container is not looked at here.
        each["webhooks"] = [hook for hook in each["webhooks"] if "pod-mutator" not in hook["name"]]
        configurations.append(each)

    def is_ready() -> bool:
        log = plane.home / "kserve.log"
        said = log.read_text() if log.exists() else ""
        return "Serving webhook server" in said and "Starting workers" in said

    flags = [
        f"-metrics-addr=127.0.0.1:{metrics}",
        f"-health-probe-addr=127.0.0.1:{health}",
        f"-webhook-port={webhook}",
    ]
    hooks = webhooks.registered(plane, configurations, webhook, authority)
    return [*_environment(plane, TMPDIR=str(home)), str(program), *flags], is_ready, hooks


def kept(plane: ControlPlane, path: str, content: Mapping[str, Any]) -> None:
    """Create an object, unless it is there."""
    try:
        plane.request("POST", path, content)
    except urllib.error.HTTPError as error:
        if error.code != 409:
            raise


_STARTS: Mapping[str, Any] = {
    "jobset": _jobset,
    "trainer": _trainer,
    "training-operator": _training_operator,
    "kserve": _kserve,
}


def _environment(plane: ControlPlane, **more: str) -> list[str]:
    return ["env", f"KUBECONFIG={plane.kubeconfig()}", *(f"{name}={value}" for name, value in more.items())]


def _written(home: Path, config: Mapping[str, Any]) -> Path:
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(dict(config)))
    return path
