"""The supervisor of a gateway in a pod: how it ends."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.gateway.in_cluster import GatewaySupervisor
from tests.debian import haproxy
from tests.gateway.parts import LIMIT_S, Door, Replica, service
from tests.ports import free_ports
from tests.waiting import until


def test_metrics_are_for_the_cluster_at_the_port_that_is_given(tmp_path: Path) -> None:
    door, (port,) = Door(tmp_path), free_ports(1)
    door.write_routes({"m": service()})
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gateways = GatewaySupervisor(tmp_path, listening, LIMIT_S, metrics_port=port)
        running = threading.Thread(target=gateways.run)
        running.start()
        try:
            door.wait_until_open()
            assert door.demand()["admin_port"] == port
            answer = door.ask("/metrics", admin=True, headers={"Host": f"10.1.2.3:{port}"})
            assert answer.status == 200
            assert b'fairlead_gateway_in_flight{service="m"} 0.0' in answer.body
        finally:
            gateways.end()
            running.join(LIMIT_S)
    assert not running.is_alive()


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(LIMIT_S)
        try:
            client.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            return True
    return False


@pytest.mark.parametrize("proxy", [lambda: None, haproxy], ids=["python", "haproxy"])
def test_connections_are_refused_while_a_gateway_that_ends_finishes_its_requests(
    tmp_path: Path, proxy: Callable[[], Path | None]
) -> None:
    replica, door = Replica("r"), Door(tmp_path)
    door.write_routes({"m": service(replica)})
    program = proxy()
    codes: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gateways = GatewaySupervisor(tmp_path, listening, LIMIT_S, program)
        running = threading.Thread(target=lambda: codes.append(gateways.run()))
        running.start()
        try:
            door.wait_until_open()
            if program is not None:
                door.wait_until_told()
            port = door.port
            asking = door.ask_beside("/m/slow")
            until(lambda: replica.asked == ["/slow"], "one under way")
            gateways.end()
            until(lambda: is_refused(port), "a refusal", timeout_s=LIMIT_S)
            assert asking.waits()
            replica.go.release()
            assert asking.answer().status == 200
        finally:
            gateways.end()
            replica.end()
            running.join(LIMIT_S)
    assert not running.is_alive()
    assert codes == [0]
