"""Creates one Ray cluster from a gang's pods: `PYTHON ray_cluster.py COMMAND...`, a rank's command on each pod.

The pod of rank 0 has the head. Its rank becomes the command once all pods have joined; the command finds the cluster by
`RAY_ADDRESS`. The ranks of the other pods each run a Ray node and end when the first rank has ended. Nodes are started
by `ray start`, the only part of Ray that this module uses; processes that it leaves running end with the pod.

Beside each rank is a watcher in a separate session, because a stop notice is for the program, which may need its
cluster to save. The head's watcher listens on the port above Ray's. It admits a pod, by the token of the
attempt, once the head is up, waits for the message that the pod's node is up, and keeps the connection open. As
watchers end with their rank, the end of that connection makes the other pods end too.

See decision 102.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator

if __name__ == "__main__":
    # Started by path: Fairlead's modules are found without running fairlead/__init__.py, and shadow none of Ray's.
    del sys.path[0]
    _here = os.path.dirname(os.path.abspath(__file__))
    for _name, _path in (("fairlead", os.path.dirname(_here)), ("fairlead.runtime", _here)):
        sys.modules[_name] = types.ModuleType(_name)
        sys.modules[_name].__path__ = [_path]
from fairlead.runtime import processes
from fairlead.runtime.admission import PeerAdmission, greet
from fairlead.runtime.private_directory import make_private
from fairlead.runtime.run_key import token_here

JOIN_PORT_NAME = "ray"
"""Name of the watcher's port, for its token."""
LOOPBACK = "127.0.0.1"
EXIT_FAILED = 70  # EX_SOFTWARE of sysexits.h
# Pods of a gang start within seconds of each other, but pulling an image may take minutes.
MEET_WITHIN_S = 1_800.0
# Ray gives up on a node that is not up within 30 s, which may happen repeatedly on a busy machine.
MOST_STARTS = 3
# The processes of Ray without which a node does not work.
VITAL = ("gcs_server", "raylet")
# A socket's path has at most 107 bytes, of which Ray's own names take 68.
SOCKETS_ROOT = "/tmp"
MOST_SHOWN_LINES = 20
_RETRY_S = 0.2
_CHECK_S = 1.0
_UP, _JOINED = b"up\n", b"joined\n"


def main(command: list[str]) -> None:
    """Make this pod a node of the cluster; on the first pod, become the command."""
    index, num_pods = int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
    if index > 0:
        sys.exit(_serve_node())
    _wait_for_cluster(num_pods)
    # The program runs as a single process, regardless of the Ray processes beside it.
    env = {**os.environ, **{name: "1" for name in os.environ if name.endswith("WORLD_SIZE")}}
    processes.become(command, env)


def _wait_for_cluster(num_pods: int) -> None:
    """Fork the watcher of the head, and return when every pod has joined."""
    parent = os.getpid()
    ready_read, ready_write = os.pipe()
    if os.fork() == 0:
        os.close(ready_read)
        os.setsid()
        processes.die_with_parent(parent)
        try:
            _watch_head(num_pods, ready_write)
        except BaseException as error:  # noqa: BLE001 (otherwise the program would wait for its cluster forever)
            sys.stderr.write(f"fairlead: Ray's head ended: {error}\n")
            sys.stderr.flush()
            os.kill(parent, signal.SIGABRT)
            os._exit(EXIT_FAILED)
    os.close(ready_write)
    if not os.read(ready_read, 1):
        signal.pause()  # the watcher has failed, and ends this process
    os.close(ready_read)


def _watch_head(num_pods: int, ready_fd: int) -> None:
    """Start the head, accept the pods and monitor the head until this process is killed.

    Raises:
        RuntimeError: The head does not start or has ended, or pods do not join.
    """
    env = os.environ
    processes.adopt_orphans()
    host, _, port = env["RAY_ADDRESS"].rpartition(":")
    # A pod's own name may not resolve yet, so this listens on all addresses.
    listen_host = host if host == LOOPBACK else ""
    _write_token(env.get("RAY_AUTH_TOKEN_PATH"))
    with socket.create_server((listen_host, int(port) + 1), backlog=1024) as listener, _private_directory() as path:
        vital = _start_node(["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={path}"])
        deadline = time.monotonic() + MEET_WITHIN_S
        pods = _admit(listener, num_pods - 1, vital, deadline)
        for pod in pods:
            _wait_until_joined(pod, vital, deadline)
        os.write(ready_fd, b"1")
        os.close(ready_fd)
        while True:
            _check_alive(vital)
            time.sleep(_CHECK_S)


def _admit(listener: socket.socket, num_pods: int, vital: dict[int, str], deadline: float) -> list[socket.socket]:
    """Return the connections of the other pods; those of strangers are closed.

    Raises:
        RuntimeError: The head has ended, or not all pods came in time.
    """
    pods: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        admission = PeerAdmission(listener, token_here(os.environ, JOIN_PORT_NAME), selector)
        while len(pods) < num_pods:
            _check_alive(vital)
            if time.monotonic() >= deadline:
                raise RuntimeError(f"{len(pods) + 1} of {num_pods + 1} pods had joined after {MEET_WITHIN_S:g} s")
            for key, _ in selector.select(_CHECK_S):
                admitted = admission.handle(key)
                if admitted is not None:
                    with contextlib.suppress(OSError):  # it has ended, which `_hear_joined` notices
                        admitted[0].sendall(_UP)
                    pods.append(admitted[0])
            admission.expire()
        admission.close()
    return pods


def _wait_until_joined(pod: socket.socket, vital: dict[int, str], deadline: float) -> None:
    """Wait for the message that a pod's node is up.

    Raises:
        RuntimeError: The pod has ended, or sends nothing in time.
    """
    _keep_alive(pod)
    pod.settimeout(_CHECK_S)
    while time.monotonic() < deadline:
        _check_alive(vital)
        with contextlib.suppress(TimeoutError, socket.timeout):
            if pod.recv(len(_JOINED)) != _JOINED:
                raise RuntimeError("a pod ended before it had joined")
            return
    raise RuntimeError(f"a pod had not joined after {MEET_WITHIN_S:g} s")


def _serve_node() -> int:
    """Run a Ray node in this pod until the first rank has ended, and return the exit code for the shim."""
    parent = os.getpid()
    joined_read, joined_write = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.close(joined_read)
        os.setsid()
        processes.die_with_parent(parent)
        try:
            _watch_node(joined_write)
        except BaseException as error:  # noqa: BLE001 (after any error this pod has no node)
            sys.stderr.write(f"fairlead: Ray's node of this pod ended: {error}\n")
            sys.stderr.flush()
            os._exit(EXIT_FAILED)
        os._exit(0)
    os.close(joined_write)
    if os.read(joined_read, 1):
        # A stop notice is for the program on the first pod, which may need this node to handle it. The shim kills the
        # remaining processes when the grace period is over.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.waitpid(watcher, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else EXIT_FAILED


def _watch_node(joined_fd: int) -> None:
    """Start a node and monitor it; return when the head is gone.

    Args:
        joined_fd: Descriptor to write to when the node is up.

    Raises:
        RuntimeError: The node does not start or has ended, or there is no head.
    """
    processes.adopt_orphans()
    address = os.environ["RAY_ADDRESS"]
    host, _, port = address.rpartition(":")
    with _connected_to_head(host, int(port) + 1, token_here(os.environ, JOIN_PORT_NAME)) as head:
        vital = _start_node([f"--address={address}"])
        head.sendall(_JOINED)
        os.write(joined_fd, b"1")
        os.close(joined_fd)
        head.settimeout(_CHECK_S)
        while True:
            with contextlib.suppress(TimeoutError, socket.timeout, ConnectionError):
                if not head.recv(1):
                    return
            _check_alive(vital)


def _connected_to_head(host: str, port: int, token: bytes) -> socket.socket:
    """Return the connection to the head's watcher, once the head is up."""
    deadline = time.monotonic() + MEET_WITHIN_S
    while True:
        try:
            head = socket.create_connection((host, port), timeout=10.0)
            _keep_alive(head)
            greet(head, token)
            head.settimeout(max(1.0, deadline - time.monotonic()))
            if head.recv(len(_UP)) == _UP:
                return head
            head.close()
            why = "it ended before its head was up"
        except OSError as error:
            why = str(error)
        if time.monotonic() >= deadline:
            raise RuntimeError(f"the first pod does not answer at {host}:{port} after {MEET_WITHIN_S:g} s: {why}")
        time.sleep(_RETRY_S)


def _keep_alive(connection: socket.socket) -> None:
    """Make a connection to a machine that is gone end within half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _start_node(node_options: list[str]) -> dict[int, str]:
    """Run `ray start` and return the names of the processes that a node needs, by their pids.

    Raises:
        RuntimeError: It fails at every try.
    """
    flags = json.loads(os.environ["FAIRLEAD_RAY_NODE"])
    options = [f"--{name}={value}" for name, value in flags.items()]
    options += [f"--node-ip-address={_own_address()}", "--disable-usage-stats", "--no-monitor"]
    # Two nodes may share an address, so no port is fixed.
    options += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    # Ray's processes are not ranks: they have no rank number and do not report. Only programs get the cluster's
    # address.
    rank_variables = (
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RAY_ADDRESS",
        "FAIRLEAD_POD_DIR",
        "FAIRLEAD_AGREE_PORT",
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith(rank_variables)}
    output = ""
    for _ in range(MOST_STARTS):
        result = subprocess.run(
            [sys.executable, "-c", _START, *node_options, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False, env=env,
        )  # fmt: skip
        vital = {pid: name for pid in processes.descendants(os.getpid()) if (name := _command(pid)) in VITAL}
        if result.returncode == 0 and vital:
            return vital
        output = "\n".join(result.stdout.strip().splitlines()[-MOST_SHOWN_LINES:])
        while remaining := processes.descendants(os.getpid()):
            processes.kill(remaining)
            _reap()
            time.sleep(_RETRY_S)
    raise RuntimeError(f"`ray start` failed {MOST_STARTS} times, at last with:\n{output}")


# `ray start` refuses clusters of several nodes on systems where Ray uses only the loopback address, a setting meant for
# laptops; the rest of Ray follows that setting.
_START = """\
import sys, types
from ray.scripts import scripts
if not scripts.ray_constants.ENABLE_RAY_CLUSTER:
    scripts.ray_constants = types.SimpleNamespace(**{**vars(scripts.ray_constants), "ENABLE_RAY_CLUSTER": True})
sys.argv[:1] = ["ray", "start"]
scripts.main()
"""


def _own_address() -> str:
    return os.environ.get("FAIRLEAD_POD_IP") or LOOPBACK


def _check_alive(vital: dict[int, str]) -> None:
    """Reap ended processes.

    Raises:
        RuntimeError: One that the node needs has ended.
    """
    for pid, status in _reap():
        if pid in vital:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"code {os.WEXITSTATUS(status)}"
            raise RuntimeError(f"its {vital[pid]} ended with {how}")


def _reap() -> list[tuple[int, int]]:
    statuses = []
    with contextlib.suppress(ChildProcessError):
        while (exited := os.waitpid(-1, os.WNOHANG))[0]:
            statuses.append(exited)
    return statuses


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _write_token(path: str | None) -> None:
    """Create the cluster's secret, if it is passed by a file; later attempts use the same."""
    if not path or os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.replace(temporary, path)


@contextlib.contextmanager
def _private_directory() -> Iterator[str]:
    """Yield a short path for this attempt's Ray sockets and logs, and remove those of attempts that are over.

    The owner of a path holds its lock, so that after a kill at any time the next attempt removes it.

    Raises:
        RuntimeError: The directory belongs to another user.
    """
    home = os.path.join(SOCKETS_ROOT, f"fairlead-ray-{os.getuid()}")
    try:
        make_private(home)
    except PermissionError as error:
        raise RuntimeError(f"{home} is not a directory of this user alone; have it removed") from error
    name = hashlib.sha256(os.environ["FAIRLEAD_POD_UID"].encode()).hexdigest()[:10]
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(open(os.path.join(home, f"{name}.lock"), "w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        for other in os.listdir(home):
            if other.endswith(".lock") and other != f"{name}.lock":
                _remove_if_over(home, other)
        directory = os.path.join(home, name)
        os.makedirs(directory, exist_ok=True)
        yield directory


def _remove_if_over(home: str, lock_name: str) -> None:
    with contextlib.suppress(OSError), open(os.path.join(home, lock_name), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(os.path.join(home, lock_name.removesuffix(".lock")), ignore_errors=True)
        os.unlink(os.path.join(home, lock_name))


if __name__ == "__main__":
    main(sys.argv[1:])
