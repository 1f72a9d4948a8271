"""A workspace's process as pods run it, with a real jupyter-server: found and used through an API server's streams.

The streams end at a stand-in for kubelet on this machine; `tests/kubernetes/test_real_workspaces.py` has real ones.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from fairlead.cluster.contract import workspace_settings
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.api.credentials import FixedToken
from fairlead.cluster.kubernetes.client.port_forwarding import listen, serve
from fairlead.cluster.kubernetes.client.rank_pods import member_of
from fairlead.cluster.kubernetes.client.workspaces import PodServer, find_server
from fairlead.cluster.kubernetes.manifests import runtime_bundle, workspaces
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status
from tests.frameworks.environments import interpreter_with
from tests.kubernetes.test_real_workspaces import Notebook, execute
from tests.kubernetes.test_workspaces import a_workspace
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
START_TIMEOUT_S = 240.0


class Kubelet:
    """A pod's process on this machine, and an API server's answers about it."""

    def __init__(self, directory: Path) -> None:
        self._python = str(interpreter_with("jupyter"))
        self._directory = directory
        for name in ("home", "pod"):
            (directory / name).mkdir()
        self._program = str(directory / "workspace.pyz")
        Path(self._program).write_bytes(workspaces.bundle())
        (directory / "runtime.pyz").write_bytes(runtime_bundle.bundle())
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        home = str(directory / "home")
        env = {
            "PATH": os.environ["PATH"], "HOME": home, "PYTHONPATH": str(directory / "runtime.pyz"),
            "FAIRLEAD_POD_DIR": str(directory / "pod"),
            **workspace_settings(a_workspace(), port=self.port, home=home, root=home),
        }  # fmt: skip
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self._python, self._program], env=env, cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )

    def answer(self, _: ServerConnection, request: Request) -> Response | None:
        """The pod, for any request that opens no stream."""
        if "/exec" in request.path or "/portforward" in request.path:
            return None
        container = {"name": "ranks", "command": [self._python]}
        pod = {"metadata": {"name": "dev-0-0"}, "status": {"phase": "Running"}, "spec": {"containers": [container]}}
        body = json.dumps(pod).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        return Response(200, "OK", Headers(headers), body)

    def stream(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        if "/exec" in connection.request.path:
            self._run(connection)
        else:
            self._forward(connection)

    def _run(self, connection: ServerConnection) -> None:
        command = [self._python, "-I", self._program, "address", str(self._directory / "pod")]
        ended = subprocess.run(command, capture_output=True, check=False)
        connection.send(b"\x01" + ended.stdout)
        causes = [{"reason": "ExitCode", "message": str(ended.returncode)}]
        failure = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        connection.send(b"\x03" + json.dumps(failure if ended.returncode else {"status": "Success"}).encode())

    def _forward(self, connection: ServerConnection) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            for channel in (b"\x00", b"\x01"):
                connection.send(channel + self.port.to_bytes(2, "little"))

            def send() -> None:
                while data := server.recv(32 * 1024):
                    connection.send(b"\x00" + data)
                connection.close()

            threading.Thread(target=send, daemon=True).start()
            for message in connection:
                assert isinstance(message, bytes)
                server.sendall(message[1:])
            server.shutdown(socket.SHUT_RDWR)

    def log(self) -> str:
        return (self._directory / "log").read_text()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    kubelet = Kubelet(tmp_path)
    try:
        yield kubelet
    finally:
        kubelet.process.send_signal(signal.SIGTERM)
        kubelet.process.wait(timeout=60)


def test_a_kernel_in_a_pod_is_used_by_what_the_pod_tells_and_through_a_port_of_this_machine(kubelet: Kubelet) -> None:
    run: Workload[Any] = Workload(
        uid="u", spec=a_workspace(), intent=Intent.RUN, status=status(Phase.RUNNING), version=1, created_at=0.0
    )
    protocols: Any = ["v4.channel.k8s.io", "v5.channel.k8s.io"]
    with serve_websockets(
        kubelet.stream, "127.0.0.1", 0, process_request=kubelet.answer, subprotocols=protocols, compression=None
    ) as api:
        threading.Thread(target=api.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{api.socket.getsockname()[1]}"
        client = Client(ClusterAccess(context="test", server=url, credentials=FixedToken("x")))
        server: PodServer = until(lambda: find_server(client, run), kubelet.log, timeout_s=START_TIMEOUT_S, every_s=0.5)
        listener = listen(0)
        failures: list[Exception] = []
        serve(listener, kubelet.port, lambda: member_of(client, run, 0), client.access, failures.append)
        address = server.address_at(listener.getsockname()[1])
        notebook = Notebook({"url": address.url, "token": address.token})
        with notebook.kernel() as kernel:
            assert execute(kernel, "open('made.txt', 'w').write('kept'); print(6 * 7)") == "42\n"
        assert notebook.ask("contents/made.txt")["content"] == "kept"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address.url}api/kernels", timeout=60)
        assert address.token is not None
        assert address.token not in kubelet.log()
        assert not failures
        client.close()
