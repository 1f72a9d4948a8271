"""The door of this machine's endpoints: where it is, what keeps it shut, and that it closes behind the last of them."""

import logging
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from fairlead.cluster.local import endpoints as module
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.endpoints import Endpoints, gateway_url
from fairlead.cluster.local.home import Home
from fairlead.control import supervisor
from fairlead.control.pass_counts import PassCounts
from fairlead.gateway import handover
from fairlead.policy.queue.team_debts import TeamDebts
from fairlead.runtime.podfiles import write_json
from fairlead.specs.serving import Serving
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import status

SERVED = Workload(
    uid="parent", spec=Serving(name="chat", run="serve $PORT", workdir="/"), intent=Intent.RUN,
    status=status(Phase.RUNNING), version=1, created_at=1.0,
)  # fmt: skip
NOTHING = Snapshot(nodes=(), workloads=(), pods=())
ENDPOINT = Snapshot(nodes=(), workloads=(), pods=(), parents=(SERVED,))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Whose gateways end at once, so that none is left behind; Python would warn of one that is not waited for."""
    children: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen.__init__

    def start_and_note(child: subprocess.Popen[bytes], *arguments: Any, **named: Any) -> None:
        start(child, *arguments, **named)
        children.append(child)

    monkeypatch.setattr(sys, "executable", "true")
    monkeypatch.setattr(subprocess.Popen, "__init__", start_and_note)
    monkeypatch.setenv("FAIRLEAD_GATEWAY_PORT", str(free_port()))
    yield Home.open(tmp_path)
    for child in children:
        child.wait(20.0)


@pytest.fixture
def endpoints(home: Home) -> Iterator[Endpoints]:
    made = Endpoints(home)
    yield made
    made.update(NOTHING)
    made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def handing_on(home: Home, door: socket.socket) -> Iterator[None]:
    """A gateway's part: whoever asks is given the door."""
    with closing(handover.listen(home.door_socket)) as listening:

        def answer() -> None:
            select.select([listening], [], [], 10.0)
            handover.hand_on(listening, door)

        asked = threading.Thread(target=answer)
        asked.start()
        yield
        asked.join(20.0)
        assert not asked.is_alive()


def port_of(home: Home) -> int:
    url = gateway_url(home)
    assert url is not None
    return int(url.rpartition(":")[2])


def test_the_door_closes_behind_the_last_endpoint_also_where_its_gateway_is_gone(
    home: Home, endpoints: Endpoints
) -> None:
    endpoints.update(ENDPOINT)
    port = port_of(home)
    socket.create_connection(("127.0.0.1", port), timeout=10.0).close()
    endpoints.update(NOTHING)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10.0)


def test_nothing_is_looked_after_once_the_last_endpoint_is_gone(home: Home, endpoints: Endpoints) -> None:
    assert [endpoints.is_open] == [False], "nobody ever had an endpoint here"
    home.serving.mkdir()
    assert [endpoints.is_open] == [True], "a supervisor before may have left a gateway"
    endpoints.update(NOTHING)
    assert [endpoints.is_open] == [False]
    endpoints.update(ENDPOINT)
    assert [endpoints.is_open] == [True]


@pytest.mark.parametrize("given", ["70000", "0", "http"])
def test_a_port_that_is_none_is_told_and_keeps_nothing_else_from_being_done(
    given: str, endpoints: Endpoints, home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FAIRLEAD_GATEWAY_PORT", given)
    with caplog.at_level(logging.ERROR):
        endpoints.update(ENDPOINT)
    assert f"FAIRLEAD_GATEWAY_PORT has to be a port, from 1 to 65535; it is '{given}'" in caplog.text
    assert gateway_url(home) is None


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        (
            "HOSTS",
            "models.example:80",
            "has to be host names without ports, separated by commas; one is 'models.example:80'",
        ),
        ("HOSTS", "a, http://b", "one is 'http://b'"),
        ("TRUSTED_PROXIES", "10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,proxy", "'proxy' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_a_setting_that_is_none_is_told(
    name: str,
    given: str,
    told: str,
    endpoints: Endpoints,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(f"FAIRLEAD_GATEWAY_{name}", given)
    with caplog.at_level(logging.ERROR):
        endpoints.update(ENDPOINT)
    assert f"FAIRLEAD_GATEWAY_{name}" in caplog.text
    assert told in caplog.text


def test_settings_of_the_environment_reach_the_gateway(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLEAD_GATEWAY_HOSTS", "Models.example, other.example,")
    monkeypatch.setenv("FAIRLEAD_GATEWAY_TRUSTED_PROXIES", "10.0.0.0/8,fd00::/8")
    endpoints.update(ENDPOINT)
    assert endpoints._gateway is not None
    given = endpoints._gateway.args
    assert isinstance(given, list)
    wanted = {
        "--allow-host=models.example",
        "--allow-host=other.example",
        "--trusted-proxy=10.0.0.0/8",
        "--trusted-proxy=fd00::/8",
    }
    assert {each for each in given if str(each).startswith(("--allow-host", "--trusted-proxy"))} == wanted


def test_the_door_moves_where_it_is_asked_to_be_and_else_stays_where_it_was(
    endpoints: Endpoints, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.serving.mkdir()
    before = free_port()
    asked = next(port for port in iter(free_port, None) if not port <= before < port + module.NUM_PORTS)
    write_json(home.serving / "port.json", {"port": before})
    monkeypatch.setenv("FAIRLEAD_GATEWAY_PORT", str(asked))
    endpoints.update(ENDPOINT)
    assert asked <= port_of(home) < asked + module.NUM_PORTS
    endpoints.update(NOTHING)
    write_json(home.serving / "port.json", {"port": before})
    monkeypatch.delenv("FAIRLEAD_GATEWAY_PORT")
    again = Endpoints(home)
    again.update(ENDPOINT)
    assert port_of(home) == before
    again.update(NOTHING)


def test_runs_start_and_stop_also_where_the_gateway_cannot_be_told(tmp_path: Path) -> None:
    agent, untold = Mock(unreadable={}), Mock(is_open=True)
    agent.observe.return_value = 0
    untold.update.side_effect = OSError(28, "No space left on device")
    with closing(LocalCluster.open(tmp_path)) as cluster, pytest.raises(OSError, match="No space left"):
        supervisor._step(cluster, agent, untold, PassCounts(), TeamDebts())
    agent.act.assert_called_once()


def test_a_supervisor_that_follows_holds_the_door_of_a_gateway_that_lives(home: Home, endpoints: Endpoints) -> None:
    endpoints.update(ENDPOINT)
    endpoints.close()  # the supervisor is killed, and the gateway, here this process, lives
    with closing(module._listen(home.serving)) as door, handing_on(home, door):
        port = door.getsockname()[1]
        following = Endpoints(home)
        with patch.object(module, "is_locked", return_value=True):
            following.update(ENDPOINT)
    socket.create_connection(("127.0.0.1", port), timeout=10.0).close()
    following.update(NOTHING)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10.0)


def test_a_door_at_another_port_than_is_asked_for_is_left_to_its_gateway(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.serving.mkdir()
    with closing(module._listen(home.serving)) as door, handing_on(home, door):
        monkeypatch.setenv("FAIRLEAD_GATEWAY_PORT", str(door.getsockname()[1] + 1))
        assert module._handed_on(home.door_socket) is None


def test_a_door_that_is_closed_is_handed_on_to_nobody(home: Home) -> None:
    assert module._handed_on(home.door_socket) is None, "nobody is there"
    door = socket.socket()
    door.close()
    with handing_on(home, door):
        assert module._handed_on(home.door_socket) is None
