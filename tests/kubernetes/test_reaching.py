"""Reaching into the pods of a run with `exec` and `port-forward`: real containers, through the command line."""

import contextlib
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.api.streams import V4, exec_stream
from fairlead.cluster.kubernetes.client.installation import install
from fairlead.cluster.kubernetes.manifests.install import InstallSettings
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.cluster.kubernetes.manifests.roles import render_binding
from fairlead.cluster.kubernetes.manifests.run_keys import render_key
from fairlead.cluster.kubernetes.manifests.runtime_bundle import bundle_name, render_bundle
from fairlead.cluster.kubernetes.workloads.run_record import read_training
from fairlead.runtime.run_key import new_key
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant
from tests.docs.examples import ROOT, examples_of
from tests.kubernetes.clusters import started
from tests.kubernetes.test_accepted import applied
from tests.kubernetes.test_real_nodes import pod, until_phase
from tests.kubernetes.testcluster import images
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.processes import Child
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.kubernetes]

PAGE = ROOT / "docs" / "clusters.md"
RANK = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])
import socket, threading
mute = socket.create_server(("127.0.0.1", 8001))
kept = []
threading.Thread(target=lambda: [kept.append(mute.accept()) for _ in range(100)], daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
EXPORTER = """
import http.server
TEXT = b'''
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",namespace="default",pod="holds-0-0"} 87
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",modelName="NVIDIA L4",namespace="default",pod="holds-0-0"} 1024
'''
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.end_headers()
        self.wfile.write(TEXT)
http.server.ThreadingHTTPServer(("", 9400), Handler).serve_forever()
"""
COPIES = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data)"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[RealCluster]:
    """One node with the two pods of a run, as an operator would have made them; ann is a user of its team."""
    with started(lambda: RealCluster(1, users={"ann": ["people"], "eve": ["people"]}), request) as made:
        client = Client(load_access((made.kubeconfig(),)))
        install(client, InstallSettings(image="none", replicas=0), tell=lambda _: None)
        applied(made, render_binding("default", "user", [{"kind": "User", "name": "ann", "apiGroup": RBAC}]))
        trainings = "/apis/fairlead.dev/v1alpha1/namespaces/default/trainings"
        body = {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Training",
            "metadata": {"name": "train"},
            "spec": {"run": f"python3 -c '{RANK}'", "nodes": 2, "image": images.PYTHON},
        }
        run = read_training(client.create(trainings, body)).workload
        assert run is not None
        made.request("POST", "/api/v1/namespaces/default/configmaps", render_bundle("default"))
        made.request("POST", "/api/v1/namespaces/default/secrets", render_key(run, 0, new_key()))
        grant = Grant(cpu_milli=100, memory_bytes=256 * 1024**2)
        for index in range(2):
            member = CreatePod(attempt=0, index=index, node="node-1", grant=grant)
            content = render_pod(run, member, PodSettings(runtime=bundle_name()))
            made.request("POST", "/api/v1/namespaces/default/pods", content)
        for index in range(2):
            until_phase(made, f"/api/v1/namespaces/default/pods/train-0-{index}", "Running")
        for rank in range(2):  # a pod runs before its rank does, and a rank before it listens
            until(partial(_listens, made, rank), f"a port of rank {rank}")
        yield made


RBAC = "rbac.authorization.k8s.io"


def environ(cluster: RealCluster, user: str = "ann") -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(cluster.kubeconfig(user)), "FAIRLEAD_CLUSTER": "kubernetes"}


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fairlead.cli.main", *arguments]


def fairlead(
    cluster: RealCluster, *arguments: str, user: str = "ann", given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    ended = subprocess.run(
        argv(*arguments), env=environ(cluster, user), input=given, capture_output=True, timeout=120, check=False
    )
    assert b"internal error" not in ended.stderr, ended.stderr
    return ended


def _listens(cluster: RealCluster, rank: int) -> bool:
    asking = python("import socket; [socket.create_connection(('127.0.0.1', port), 5) for port in (8000, 8001)]")
    return fairlead(cluster, "exec", "train", "--rank", str(rank), *asking).returncode == 0


def python(code: str) -> tuple[str, ...]:
    return ("--", "python3", "-c", code)


def test_output_and_errors_of_a_command_come_apart_and_its_exit_code_is_ours(cluster: RealCluster) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(42)"
    ended = fairlead(cluster, "exec", "train", *python(code))
    assert (ended.returncode, ended.stdout, ended.stderr) == (42, b"out\n", b"err\n")


def test_the_command_runs_where_the_rank_is(cluster: RealCluster) -> None:
    code = "import socket; print(socket.gethostname())"
    second = fairlead(cluster, "exec", "train", "--rank", "1", *python(code))
    assert (second.stdout, second.stderr) == (b"train-0-1\n", b"")
    none = fairlead(cluster, "exec", "train", "--rank", "2", *python(code))
    assert none.returncode == 6
    assert b"no rank 2; its ranks are 0 to 1" in none.stderr


def test_the_command_has_what_the_rank_was_given(cluster: RealCluster) -> None:
    code = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], 'FAIRLEAD_POD_DIR' in os.environ)"
    ended = fairlead(cluster, "exec", "train", "--rank", "1", *python(code))
    assert (ended.stdout, ended.stderr) == (b"1 2 False\n", b"")


def test_what_is_piped_in_arrives_whole_and_ends(cluster: RealCluster) -> None:
    given = os.urandom(3_000_000)
    ended = fairlead(cluster, "exec", "-i", "train", *python(COPIES), given=given)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == given


def test_a_program_that_is_not_there_is_told(cluster: RealCluster) -> None:
    ended = fairlead(cluster, "exec", "train", "--", "no-such-program")
    assert ended.returncode == 127
    assert b"no-such-program: command not found on PATH" in ended.stderr


def test_a_terminal_is_handed_on_with_its_size_and_its_keys(cluster: RealCluster) -> None:
    code = "import os; print(os.get_terminal_size(), os.isatty(0)); print('you said', input())"
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, argv("exec", "-it", "train", *python(code)), environ(cluster))
    try:
        _read_until(terminal, b"True")
        os.write(terminal, b"hello\r")
        assert b"you said hello" in _read_until(terminal, b"you said hello")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        os.close(terminal)


def test_a_server_that_knows_only_the_older_protocol_is_spoken_to_in_it(cluster: RealCluster) -> None:
    access = load_access((cluster.kubeconfig(),))
    path = "/api/v1/namespaces/default/pods/train-0-0"
    said: list[bytes] = []
    command = ["python3", "-c", "import sys; print(input()); sys.exit(3)"]
    with exec_stream(
        access, path, command, container="ranks", stdin=True, tty=False, protocols=("v6.channel.k8s.io", V4)
    ) as stream:
        assert not stream.can_end_input
        stream.write(b"hello\n")
        assert stream.run(said.append, said.append) == 3
    assert b"".join(said) == b"hello\n"


def test_who_may_not_is_refused_in_a_sentence(cluster: RealCluster) -> None:
    ended = fairlead(cluster, "exec", "train", *python(""), user="eve")
    assert ended.returncode == 7
    assert b'User "eve" cannot' in ended.stderr


def test_a_port_of_a_rank_is_reached_from_loopback_by_many_at_once(cluster: RealCluster) -> None:
    body = os.urandom(500_000)
    with _forwarding(cluster, "train", "0:8000") as port:
        answers = []
        for _ in range(5):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=body)
            with urllib.request.urlopen(request, timeout=30) as answer:
                answers.append(answer.read())
        assert answers == [body[::-1]] * 5
        listening = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
        assert f"0100007F:{port:04X}" in listening
        assert f"00000000:{port:04X}" not in listening


def test_a_port_at_which_nobody_listens_is_told_and_the_next_connection_tries_again(
    cluster: RealCluster, tmp_path: Path
) -> None:
    with _forwarding(cluster, "train", ":9", said=tmp_path / "said") as port:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                assert connection.recv(1) == b""
        failed = "A connection to port 9 failed: "
        until(lambda: (tmp_path / "said").read_text().count(failed) == 2, "word of both")
    said = (tmp_path / "said").read_text()
    assert said.count("refused") >= 2


def test_a_connection_that_this_side_has_left_does_not_stay_for_ever(cluster: RealCluster) -> None:
    with _forwarding(cluster, "train", ":8001") as port:
        forwarder = next(
            each for each in psutil.Process().children() if f"{port}" in str(each.net_connections(kind="tcp"))
        )

        def num_open() -> int:
            server = int(cluster.url.rpartition(":")[2])
            ways = [each for each in forwarder.net_connections(kind="tcp") if each.raddr and each.raddr.port == server]
            return sum(each.status == psutil.CONN_ESTABLISHED for each in ways)

        before = num_open()
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(b"is anybody there?")
            until(lambda: num_open() > before, "a stream into the pod")
        until(lambda: num_open() <= before, "its end")


def test_the_commands_of_the_guide_reach_a_run(cluster: RealCluster, tmp_path: Path) -> None:
    (block,) = [each.body for each in examples_of(PAGE) if each.kind == "bash" and "exec" in each.body]
    environment = {**environ(cluster), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (tmp_path / "said").open("w") as said, Child(
        ["bash", "-c", f"set -e -o pipefail\n{block}"], env=environment, cwd=tmp_path, stdout=said,
        stderr=subprocess.STDOUT, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            code = shell.wait(60)
            assert code == 0, (tmp_path / "said").read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGTERM)  # the forwarding goes on in the background
    text = (tmp_path / "said").read_text()
    assert "Python 3" in text
    assert "what is piped in" in text


def test_what_a_gpu_does_is_read_from_the_exporter_on_its_node(cluster: RealCluster) -> None:
    node = "/api/v1/nodes/node-1"
    cluster.request(
        "PATCH", f"{node}/status", {"status": {"capacity": {"nvidia.com/gpu": "1"}}}, kind="merge-patch+json"
    )
    until(lambda: cluster.request("GET", node)["status"]["allocatable"].get("nvidia.com/gpu") == "1", "a GPU")
    exporter = pod("exporter", "node-1", EXPORTER)
    exporter["metadata"]["labels"] = {"app": "nvidia-dcgm-exporter"}
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
    cluster.await_namespace("gpu-operator")
    cluster.request("POST", "/api/v1/namespaces/gpu-operator/pods", exporter)
    holder = pod(
        "holds-0-0", "node-1", RANK, container={"name": "ranks", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    )
    holder["metadata"]["labels"] = {f"fairlead.dev/{name}": name for name in ("run", "run-uid")}
    cluster.request("POST", "/api/v1/namespaces/default/pods", holder)
    for path in ("gpu-operator/pods/exporter", "default/pods/holds-0-0"):
        until_phase(cluster, f"/api/v1/namespaces/{path}", "Running")

    def gpus() -> list[dict[str, object]]:
        found = json.loads(fairlead(cluster, "top", "--json", user="admin").stdout)
        (used,) = (each for each in found["pods"] if each["pod"] == "holds-0-0")
        return list(used["gpus"])

    until(gpus, "word of the GPU")
    untold = {"power_watts": None, "temperature_celsius": None}
    assert gpus() == [{"name": "GPU-a", "model": "L4", "busy": 0.87, "memory_bytes": 2**30, **untold}]
    assert b" 87% " in fairlead(cluster, "top", user="admin").stdout
    # Who may not reach the exporter is told so, and sees the rest.
    assert b"GPU usage is not known" in fairlead(cluster, "top").stderr


@contextmanager
def _forwarding(cluster: RealCluster, *arguments: str, said: Path = Path(os.devnull)) -> Iterator[int]:
    command = argv("port-forward", "--json", *arguments)
    with (
        said.open("w") as errors,
        Child(command, env=environ(cluster), stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def _read_until(terminal: int, text: bytes, timeout_s: float = 60.0) -> bytes:
    deadline, seen = time.monotonic() + timeout_s, b""
    while text not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                seen += os.read(terminal, 65_536)
            except OSError:  # the other side has closed it
                break
    return seen
