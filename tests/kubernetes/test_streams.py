"""The way to a stream into a pod, as far as it goes without containers: proxies, TLS, refusals, what the end says."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess, load_access
from fairlead.cluster.kubernetes.api.credentials import Anonymous
from fairlead.cluster.kubernetes.api.streams import exec_stream, exit_code, forward
from fairlead.errors import ClusterError, NotAllowed
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.ports import free_port

NOWHERE = "/api/v1/namespaces/default/pods/nowhere"


def opened(access: ClusterAccess, path: str = NOWHERE) -> None:
    with exec_stream(access, path, ["true"], container="ranks", stdin=False, tty=False):
        pass


def test_what_the_api_server_says_is_told(plane: ControlPlane) -> None:
    access = load_access((plane.kubeconfig(),))
    with pytest.raises(ClusterError, match=r'exec was refused: pods "nowhere" not found \(HTTP 404\)'):
        opened(access)
    with pytest.raises(NotAllowed, match='User "nobody" cannot get resource "pods/exec"'):
        opened(load_access((plane.kubeconfig("nobody"),)))


def test_a_server_that_cannot_be_trusted_is_not_spoken_to(plane: ControlPlane) -> None:
    access = replace(load_access((plane.kubeconfig(),)), ca=None)
    with pytest.raises(ClusterError, match="certificate verify failed"):
        opened(access)
    # The certificate is for the address, and for no such name.
    with pytest.raises(ClusterError, match="not valid for 'elsewhere'"):
        opened(replace(load_access((plane.kubeconfig(),)), tls_server_name="elsewhere"))


def test_a_stream_goes_through_the_proxy_of_the_kubeconfig(plane: ControlPlane) -> None:
    asked: list[str] = []
    with tunnelling(asked) as url, pytest.raises(ClusterError, match="not found"):
        opened(replace(load_access((plane.kubeconfig(),)), proxy=url))
    assert asked == [plane.url.removeprefix("https://")]


@pytest.mark.parametrize("name", ["../../secrets/token", "a?command=sh&x=", "a%2fb", "a\r\nHost: b", ".."])
def test_a_name_that_would_lead_elsewhere_opens_no_stream(name: str) -> None:
    access = ClusterAccess(context="gone", server=f"http://127.0.0.1:{free_port()}", credentials=Anonymous())
    path = f"/api/v1/namespaces/default/pods/{name}"
    local, other = socket.socketpair()
    with other, pytest.raises(ClusterError, match="no object of that name"):
        forward(access, path, 80, local)
    with pytest.raises(ClusterError, match="no object of that name"):
        opened(access, path)


def test_where_nobody_listens_is_told() -> None:
    access = ClusterAccess(context="gone", server=f"http://127.0.0.1:{free_port()}", credentials=Anonymous())
    with pytest.raises(ClusterError, match=r"opens no stream to .*/exec: .*refused"):
        opened(access)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"status": "Success"}, 0),
        (
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": "137"}]},
            },
            137,
        ),
    ],
)
def test_the_last_status_has_the_exit_code(status: dict[str, Any], code: int) -> None:
    assert exit_code(status, "train-0-0") == code


def test_a_last_status_without_an_exit_code_means_that_the_command_did_not_run() -> None:
    status = {"status": "Failure", "reason": "InternalError", "message": "no such file"}
    with pytest.raises(ClusterError, match="did not run in train-0-0: no such file"):
        exit_code(status, "train-0-0")


@contextmanager
def tunnelling(asked: list[str]) -> Iterator[str]:
    """A proxy that knows CONNECT and nothing else; it keeps where it was asked to connect to."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other direction has ended both

    def serve() -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # nobody came
        client.settimeout(60)
        head = b""
        while b"\r\n\r\n" not in head:
            more = client.recv(4096)
            assert more, "the client hung up before its request was over"
            head += more
        asked.append(head.split()[1].decode())
        host, _, port = asked[-1].rpartition(":")
        with client, socket.create_connection((host, int(port)), timeout=60) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pass_on, args=(server, client))
            back.start()
            pass_on(client, server)
            back.join(60)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join(timeout=20)
        assert not thread.is_alive()
