"""The cost of a client library: import, and a list of 10,000 pods in pages, in time and memory.

Each library runs in its own process against a server on loopback that has its pages ready, so that only the library is
measured. Those that are not installed are left out:

    pip install kubernetes lightkube kr8s kubernetes-asyncio httpx
    python -m benchmarks.kubernetes_client [--pods 10000] [--python PYTHON]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 500
SOURCE = Path(__file__).resolve().parents[1] / "src"

# The body of each sees URL and CONFIG (a kubeconfig file) and keeps in `kept` what an operator would keep.
LIBRARIES = {
    "fairlead": """
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.api.objects import read_pod
imported()
kept = {pod.key: pod for pod in map(read_pod, Client(load_access((Path(CONFIG),))).items("/api/v1/pods"))}
""",
    "httpx, by hand": """
import httpx
imported()
kept, token = {}, ""
with httpx.Client(base_url=URL) as client:
    while True:
        page = client.get("/api/v1/pods", params={"limit": PAGE, "continue": token}).json()
        kept |= {pod["metadata"]["name"]: pod for pod in page["items"]}
        token = page["metadata"].get("continue")
        if not token:
            break
""",
    "lightkube": """
from lightkube import Client
from lightkube.resources.core_v1 import Pod
from lightkube.config.kubeconfig import KubeConfig
imported()
client = Client(config=KubeConfig.from_file(CONFIG))
kept = {pod.metadata.name: pod for pod in client.list(Pod, namespace="*", chunk_size=PAGE)}
""",
    "kr8s": """
import kr8s
imported()
api = kr8s.api(kubeconfig=CONFIG)
kept = {pod.name: pod for pod in api.get("pods", namespace=kr8s.ALL)}
""",
    "kubernetes": """
from kubernetes import client, config
imported()
config.load_kube_config(CONFIG)
api, kept, token = client.CoreV1Api(), {}, None
while True:
    page = api.list_pod_for_all_namespaces(limit=PAGE, _continue=token)
    kept |= {pod.metadata.name: pod for pod in page.items}
    token = page.metadata._continue
    if not token:
        break
""",
}
FRAME = """
import json, resource, sys, time
from pathlib import Path
URL, CONFIG, PAGE = sys.argv[1], sys.argv[2], int(sys.argv[3])
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
def cpu(): return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
def imported(): print(json.dumps({"import_cpu_ms": 1000 * (cpu() - begun), "import_mib": peak()}))
begun = cpu()
%s
print(json.dumps({"list_cpu_s": cpu() - begun, "peak_mib": peak(), "pods": len(kept)}))
"""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--python", default=sys.executable, help="Interpreter that has the libraries.")
    arguments = parser.parse_args()
    pages = _pages(arguments.pods)
    print(f"{arguments.pods} pods, {sum(map(len, pages)) / 2**20:.0f} MiB of JSON in {len(pages)} pages")
    print(f"{'library':16}{'import CPU ms':>15}{'after import MiB':>18}{'list CPU s':>12}{'peak MiB':>10}{'pods':>8}")
    with _server(pages) as (url, config):
        for name, body in LIBRARIES.items():
            _show(name, _measure(arguments.python, body, url, config))


def _measure(python: str, body: str, url: str, config: str) -> dict[str, float] | str:
    done = subprocess.run(
        [python, "-W", "ignore", "-c", FRAME % body, url, config, str(PAGE)],
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin", "HOME": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:100]
    found: dict[str, float] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line)
    return found


def _show(name: str, found: dict[str, float] | str) -> None:
    if isinstance(found, str):
        print(f"{name:16}  {found}")
        return
    print(
        f"{name:16}{found['import_cpu_ms']:15.0f}{found['import_mib']:18.0f}"
        f"{found['list_cpu_s'] - found['import_cpu_ms'] / 1000:12.2f}{found['peak_mib']:10.0f}{found['pods']:8.0f}"
    )


def _pages(num_pods: int) -> list[bytes]:
    pods = [_pod(number) for number in range(num_pods)]
    pages = []
    for start in range(0, num_pods, PAGE):
        metadata = {"resourceVersion": "1000"}
        if start + PAGE < num_pods:
            metadata["continue"] = str(start // PAGE + 1)
        page = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": pods[start : start + PAGE]}
        pages.append(json.dumps(page).encode())
    return pages


def _pod(number: int) -> dict[str, Any]:
    """A pod as large as a running one usually is, 5 to 6 KiB."""
    moment, name = "2026-01-01T00:00:00Z", f"train-{number // 8}-0-{number % 8}"
    resources = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}
    fields: dict[str, Any] = {f"f:field-{each}": {"f:inner": {}, "f:other": {}} for each in range(30)}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "team", "uid": f"uid-{number}", "resourceVersion": str(number + 1),
            "creationTimestamp": moment, "labels": {f"label-{each}": f"value-{each}" for each in range(6)},
            "annotations": {f"annotation-{each}": "some words" for each in range(4)},
            "managedFields": [
                {"manager": who, "operation": "Update", "apiVersion": "v1", "time": moment, "fieldsType": "FieldsV1",
                 "fieldsV1": fields} for who in ("fairlead", "kubelet")
            ],
        },
        "spec": {
            "nodeName": f"node-{number % 200}", "restartPolicy": "Never",
            "containers": [
                {"name": "ranks", "image": "python:3.12", "resources": {"requests": resources, "limits": resources},
                 "env": [{"name": f"VARIABLE_{each}", "value": "value"} for each in range(25)]}
            ],
            "volumes": [{"name": f"volume-{each}", "emptyDir": {}} for each in range(4)],
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": moment}
                for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {"name": "ranks", "image": "python:3.12", "imageID": "sha256:0", "ready": True, "restartCount": 0,
                 "state": {"running": {"startedAt": moment}}}
            ],
        },
    }  # fmt: skip


class _server:  # noqa: N801 (used as a function)
    """A server of ready pages, as a context that gives its URL and a kubeconfig."""

    def __init__(self, pages: list[bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                body = (
                    pages[int(query.get("continue", ["0"])[0])] if url.path == "/api/v1/pods" else _discovery(url.path)
                )
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._file = tempfile.NamedTemporaryFile("w", suffix=".yaml")  # noqa: SIM115 (closed in __exit__)

    def __enter__(self) -> tuple[str, str]:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }  # fmt: skip
        self._file.write(json.dumps(config))
        self._file.flush()
        return url, self._file.name

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._file.close()


def _discovery(path: str) -> bytes:
    """What clients ask first."""
    pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["list"]}
    answers: dict[str, dict[str, Any]] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
        "/version": {"major": "1", "minor": "36", "gitVersion": "v1.36.3"},
    }
    nothing: dict[str, Any] = {"kind": "APIResourceList", "groups": [], "resources": [], "items": [], "metadata": {}}
    return json.dumps(answers.get(path.rstrip("/"), nothing)).encode()


if __name__ == "__main__":
    main()
