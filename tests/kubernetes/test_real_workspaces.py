"""Workspaces in the pods of real nodes: a kernel of a real jupyter-server and sessions of a real sshd, by port-forward.

What only real nodes show: a home on a volume that survives its pod, a server that other pods cannot reach, and
activity that an operator learns of through kubelet.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from fairlead.cluster.kubernetes.manifests.crds import definitions
from fairlead.cluster.kubernetes.manifests.roles import render_roles
from tests.frameworks.environments import SITE, interpreter_with
from tests.kubernetes import desks
from tests.kubernetes.clusters import started
from tests.kubernetes.operating import await_kinds
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_faces import Desk
from tests.kubernetes.testcluster import own_python
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes, pytest.mark.timeout(1200)]

PATIENCE_S = 300.0
IMAGE = "testcluster.fairlead.dev/own-jupyter:1"
JUPYTER, HOST = "/opt/own/jupyter", "/opt/host"
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
OF_HOST = {f"{HOST}/sbin": "/usr/sbin", f"{HOST}/bin": "/usr/bin", f"{HOST}/lib": "/usr/lib/x86_64-linux-gnu"}
LIBRARIES = f"/opt/own/python/lib:{HOST}/lib"
USERS = "root:x:0:0::/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\nwork:x:1000:1000::/fairlead/home:/bin/sh\n"
OTHER_ADDRESS = """
import os, socket
try:
    socket.create_connection((os.environ["FAIRLEAD_POD_IP"], 29500), 5)
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    site = interpreter_with("jupyter").parent.parent / SITE
    directory = tmp_path_factory.mktemp("image")

    def make() -> RealCluster:
        (directory / "passwd").write_text(USERS)
        files = {"/etc/passwd": directory / "passwd"}
        own_python.write_image(directory / "image.tar", IMAGE, files=files, packages=[JUPYTER])
        places = {place: Path(source) for place, source in OF_HOST.items() if Path(source).is_dir()}
        return RealCluster(1, given={**own_python.DIRECTORIES, JUPYTER: site, **places})

    with started(make, request) as made:
        made.import_image(directory / "image.tar")
        for each in (*definitions(), *render_roles()):
            applied(made, each)
        await_kinds(made)
        yield made


@pytest.fixture
def desk(cluster: RealCluster, tmp_path: Path) -> Iterator[Desk]:
    """A user in a namespace with a volume for one home, beside an operator."""
    with desks.attended(cluster, tmp_path, patience_s=PATIENCE_S) as desk:
        directory = cluster.home / "volumes" / desk.namespace / "home"
        directory.mkdir(parents=True)
        directory.chmod(0o777)
        everywhere = [{"key": "kubernetes.io/hostname", "operator": "In", "values": cluster.nodes}]
        volume = {
            "metadata": {"name": f"{desk.namespace}-home"},
            "spec": {
                "local": {"path": str(directory)},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": everywhere}]}},
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "storageClassName": desk.namespace,
                "persistentVolumeReclaimPolicy": "Retain",
            },
        }
        cluster.request("POST", "/api/v1/persistentvolumes", volume)
        yield desk


comes_to = partial(desks.comes_to, patience_s=PATIENCE_S)


def write_workspace(desk: Desk, **keys: Any) -> str:
    spec = {
        "kind": "Workspace", "name": "dev", "image": IMAGE, "home": {"size": "1Gi", "class": desk.namespace},
        "resources": {"cpu": 0.5, "memory": "512Mi"}, "grace": "5s", **keys,
    }  # fmt: skip
    (desk.directory / "dev.yaml").write_text(json.dumps(spec))
    return "dev.yaml"


class Notebook:
    """The server of a workspace, as a client on this machine uses it through `fairlead workspace open`."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.url, self.token = shown["url"], shown["token"]
        self._headers = {"Authorization": f"token {self.token}"}

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}api/{path}", method=method, data=data, headers=self._headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    @contextlib.contextmanager
    def kernel(self) -> Iterator[ClientConnection]:
        """A new kernel, and the connection that a page keeps to it."""
        kernel = self.ask("kernels", "POST", {})["id"]
        address = f"{self.url.replace('http', 'ws', 1)}api/kernels/{kernel}/channels"
        with connect(address, additional_headers=self._headers, open_timeout=120, max_size=None) as connection:
            yield connection


def execute(connection: ClientConnection, code: str) -> str:
    """Execute code in a kernel and return what it prints."""
    header = {
        "msg_id": uuid.uuid4().hex,
        "session": "s",
        "username": "u",
        "msg_type": "execute_request",
        "version": "5.3",
    }
    content = {"code": code, "silent": False, "store_history": False}
    request = {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
    connection.send(json.dumps(request))
    printed = ""
    while True:
        message = json.loads(connection.recv(timeout=PATIENCE_S))
        if message["parent_header"].get("msg_id") != header["msg_id"]:
            continue
        if message["msg_type"] == "stream":
            printed += message["content"]["text"]
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return printed


@contextlib.contextmanager
def opened(desk: Desk) -> Iterator[Notebook]:
    """The workspace through a port of this machine, for as long as the command that opens it runs."""
    command = [sys.executable, "-m", "fairlead.cli.main", "workspace", "open", "dev", "--json", "--no-browser"]
    with subprocess.Popen(command, env=desk.environ, cwd=desk.directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, "it has ended"
                text += line
            yield Notebook(json.loads(text))
        finally:
            process.kill()


def test_a_kernel_is_used_through_the_port_forward_and_the_home_survives_every_end(
    desk: Desk, cluster: RealCluster
) -> None:
    desk("run", write_workspace(desk), timeout_s=PATIENCE_S)
    with opened(desk) as notebook, notebook.kernel() as kernel:
        assert execute(kernel, "open('made.txt', 'w').write('kept'); print(6 * 7)") == "42\n"
        notebook.ask("contents/notes.txt", "PUT", {"type": "file", "format": "text", "content": "edited"})
        # Nothing that the API server has contains the token, and no other address of the pod answers.
        kept = [
            cluster.request("GET", f"/api/v1/namespaces/{desk.namespace}/{kind}")
            for kind in ("pods", "secrets", "events", "configmaps")
        ]
        kept.append(cluster.request("GET", f"/apis/fairlead.dev/v1alpha1/namespaces/{desk.namespace}/workspaces"))
        assert notebook.token not in json.dumps(kept) + desk("logs", "dev").out + desk("events", "dev").out
        refused = desk("exec", "dev", "--", "python3", "-c", OTHER_ADDRESS).out
        assert refused == "ConnectionRefusedError\n"

    desk("suspend", "dev")
    comes_to(desk, "dev", "Suspended")
    desk("resume", "dev")
    with opened(desk) as notebook:
        assert notebook.ask("contents/made.txt")["content"] == "kept"

    # Its pod is killed, as by a drain or by a node that is lost: it starts again by itself.
    (pod,) = cluster.request("GET", f"/api/v1/namespaces/{desk.namespace}/pods")["items"]
    path = f"/api/v1/namespaces/{desk.namespace}/pods/{pod['metadata']['name']}"
    cluster.request("DELETE", path, {"gracePeriodSeconds": 0})
    until(lambda: desks.shown(desk, "dev")["attempt"] > 1, lambda: desk("status", "dev").out, timeout_s=PATIENCE_S)
    comes_to(desk, "dev", "Running")
    with opened(desk) as notebook:
        assert notebook.ask("contents/notes.txt")["content"] == "edited"

    claims = f"/api/v1/namespaces/{desk.namespace}/persistentvolumeclaims"
    assert "uses its home" in desk("workspace", "delete-home", "dev", "--yes", code=6).err
    desk("delete", "dev", "--yes", timeout_s=PATIENCE_S)
    until(lambda: "dev" not in desk("status", "--all").out, timeout_s=PATIENCE_S)
    assert "fairlead-home-dev" in json.dumps(cluster.request("GET", claims))
    desk("workspace", "delete-home", "dev", "--yes")
    until(lambda: "fairlead-home-dev" not in json.dumps(cluster.request("GET", claims)), timeout_s=PATIENCE_S)


def test_an_open_page_is_suspended_and_a_busy_kernel_is_not(desk: Desk) -> None:
    desk("run", write_workspace(desk, idle="40s"), timeout_s=PATIENCE_S)
    with opened(desk) as notebook, notebook.kernel() as kernel:
        begun = time.monotonic()
        assert execute(kernel, "import time; time.sleep(90); print('done')") == "done\n"
        assert time.monotonic() - begun >= 90
        assert desks.shown(desk, "dev")["phase"] == "Running"
        # The page stays open, and nothing runs.
        reason = comes_to(desk, "dev", "Suspended")
    assert reason == "suspended by `idle`: nothing ran and nobody typed in it for 40s"
    assert "it is suspended in 10s" in desk("events", "dev").out


@pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_sessions_of_a_real_sshd_and_files_go_through_the_api_server(desk: Desk) -> None:
    path = f"{HOST}/sbin:/usr/local/bin:/usr/bin:/bin:{HOST}/bin"
    env = {"GREETING": "hello", "PATH": path, "LD_LIBRARY_PATH": LIBRARIES}
    desk("run", write_workspace(desk, ide="ssh", env=env), timeout_s=PATIENCE_S)
    shown = desk("ssh", "dev", "--", "pwd; echo $HOME $GREETING")
    assert shown.out == "/fairlead/home\n/fairlead/home hello\n"
    assert desk("ssh", "dev", "--", "exit 7", code=7).code == 7
    (desk.directory / "ssh_config").write_text(desk("ssh", "dev", "--config").out)
    (desk.directory / "a.txt").write_text("of the client\n")
    copy = ["ssh", "-F", str(desk.directory / "ssh_config"), "dev.fairlead", "cat > b.txt"]
    with (desk.directory / "a.txt").open() as source:
        subprocess.run(copy, stdin=source, env=desk.environ, check=True, timeout=120)
    desk("suspend", "dev")
    comes_to(desk, "dev", "Suspended")
    desk("resume", "dev")
    assert desk("ssh", "dev", "--", "cat b.txt").out == "of the client\n"
    assert "PRIVATE KEY" not in desk("logs", "dev").out + desk("status", "dev", "--json").out + os.linesep
