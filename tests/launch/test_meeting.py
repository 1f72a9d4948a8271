"""Ranks that succeeded although none has ever connected to another."""

import socket
from pathlib import Path

import pytest

from fairlead.policy.kinds import training
from fairlead.runtime.meeting import NEVER_MET, Meeting
from tests.launch.pods import PodDir

MEET = (
    "python3 -c 'import os, socket, time\n"
    'port = int(os.environ["MASTER_PORT"])\n'
    'if os.environ["RANK"] == "0":\n'
    '    server = socket.create_server(("127.0.0.1", port))\n'
    "    server.accept()\n"
    "else:\n"
    "    for _ in range(200):\n"
    "        try:\n"
    '            socket.create_connection(("127.0.0.1", port)).recv(1)\n'
    "            break\n"
    "        except ConnectionRefusedError:\n"
    "            time.sleep(0.05)'"
)


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def message(directory: Path, command: str, **env: str) -> object:
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), **env}
    return PodDir(directory / "pod").write(command, ranks=2, env=env).run()["message"]


def test_ranks_that_connected_for_an_instant_have_met(tmp_path: Path) -> None:
    assert message(tmp_path, MEET) is None


@pytest.mark.parametrize("command", ["true", "sleep 0.3 && echo alone", "sh -c 'echo $RANK'"])
def test_ranks_that_connected_to_nothing_never_met(tmp_path: Path, command: str) -> None:
    assert message(tmp_path, command) == NEVER_MET == training.NEVER_MET


@pytest.mark.parametrize(
    ("command", "env"),
    [
        ("test $RANK = 0", {}),
        ("true", {"WORLD_SIZE": "1"}),
        ("true", {"FAIRLEAD_FRAMEWORK": "jax"}),
        ("true", {"FAIRLEAD_MEMBERS_DIR": "/x"}),
    ],
)
def test_nothing_is_said_of_a_failure_a_lone_rank_or_another_way_to_meet(
    tmp_path: Path, command: str, env: dict[str, str]
) -> None:
    assert message(tmp_path, command, **env) is None


def test_a_port_that_is_only_listened_on_is_no_meeting_and_a_connection_within_a_pod_is_none_across_pods() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        here, abroad = Meeting(env), Meeting({**env, "MASTER_ADDR": "pod-0.host", "GROUP_WORLD_SIZE": "2"})
        here.look()
        assert here.failed
        with socket.create_connection(server.getsockname()):
            here.look()
            abroad.look()
    assert (here.failed, abroad.failed) == (False, True)
