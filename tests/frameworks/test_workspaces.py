"""A workspace with a real jupyter-server: a kernel executes code through its API, and its home outlives kills.

`pytest -m frameworks` runs these; the first time makes the environment.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.workspaces import WorkspaceAddress, address_of
from fairlead.runtime.podfiles import read_json
from fairlead.state.snapshot import Phase, Workload
from tests.frameworks.environments import interpreter_with
from tests.home import end_everything
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
START_TIMEOUT_S = 240.0
EXECUTE = """\
import sys
from jupyter_client.blocking import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.kernel_info(reply=True, timeout=120)
client.execute_interactive(sys.argv[2], timeout=120)
"""


class Desk:
    """A workspace in a state directory, used through the command line and its server's API."""

    def __init__(self, directory: Path) -> None:
        self.python = interpreter_with("jupyter")
        self.home = directory / "state"
        self.work = directory / "work"
        self.work.mkdir()
        self._env = os.environ | {
            "FAIRLEAD_HOME": str(self.home), "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self.cluster = LocalCluster.open(self.home)

    def fairlead(self, *words: str) -> str:
        command = [sys.executable, "-m", "fairlead.cli.main", *words]
        ended = subprocess.run(
            command, env=self._env, cwd=self.work, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    @property
    def run(self) -> Workload:
        return self.cluster.find("dev")

    @property
    def address(self) -> WorkspaceAddress:
        """Return the address of the workspace, once it can be opened."""

        def running() -> WorkspaceAddress | None:
            run = self.run
            is_ready = run.status.phase is Phase.RUNNING
            return address_of(self.cluster.home, run.uid, self.cluster.pods(run.uid)) if is_ready else None

        address: WorkspaceAddress = until(running, timeout_s=START_TIMEOUT_S, every_s=0.2)
        return address

    def ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        address = self.address
        request = urllib.request.Request(
            f"{address.url}api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {address.token}"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")

    def execute(self, code: str) -> str:
        """Run code in a new kernel, started through the API, and return what it prints."""
        kernel = self.ask("kernels", "POST", {})["id"]
        runtime = Path(str(self.run.spec.home.path), ".local/share/jupyter/runtime")  # type: ignore[attr-defined]
        command = [str(self.python), "-c", EXECUTE, str(runtime / f"kernel-{kernel}.json"), code]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def server(self) -> int:
        """The process id of the workspace's only rank."""
        run = self.run
        (pod,) = [pod for pod in self.cluster.pods(run.uid) if not pod.phase.is_final]
        started = read_json(self.cluster.home.pod(run.uid, pod.uid) / "started.json")
        assert started is not None
        return int(started["pids"]["0"])


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    try:
        yield desk
    finally:
        desk.cluster.close()
        end_everything(desk.home)


def test_a_real_jupyter_server_keeps_its_home_and_stops_when_nobody_works(desk: Desk) -> None:
    (desk.work / "dev.yaml").write_text("kind: Workspace\nidle: 40s\ngrace: 5s\n")
    desk.fairlead("run", "dev.yaml")
    address = desk.address
    # A kernel works longer than the workspace may be idle, and is not stopped.
    printed = desk.execute("import time, os; time.sleep(45); open('made.txt', 'w').write('kept'); print(6 * 7)")
    assert printed == "42\n"
    assert desk.run.status.phase is Phase.RUNNING
    desk.ask("contents/notes.txt", "PUT", {"type": "file", "format": "text", "content": "edited"})

    # No secret is in the spec, the events, the log, or an argument of a process.
    assert address.token is not None
    shown = desk.fairlead("status", "dev", "--json") + desk.fairlead("events", "dev") + desk.fairlead("logs", "dev")
    arguments = subprocess.run(["ps", "-ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert address.token not in shown + arguments
    assert address.token in desk.fairlead("workspace", "open", "dev")

    # Killed, it starts again by itself, and its home is whole.
    attempt = desk.run.status.attempt
    os.kill(desk.server(), signal.SIGKILL)
    until(lambda: desk.run.status.attempt > attempt, timeout_s=60.0)
    assert desk.ask("contents/notes.txt")["content"] == "edited"

    # Nobody works any more: that is said, and it is suspended.
    until(lambda: desk.run.status.phase is Phase.SUSPENDED, timeout_s=240.0, every_s=0.2)
    said = [event.reason.message for event in desk.cluster.events(desk.run.uid) if event.type == "Idle"]
    assert said[-1] == "nothing ran and nobody typed in it for 30s; it is suspended in 10s"
    desk.fairlead("resume", "dev")
    assert desk.ask("contents/made.txt")["content"] == "kept"

    # Deleted, its home stays until that is asked for.
    desk.fairlead("delete", "dev", "--yes")
    home = desk.cluster.home.workspace("default", "dev")
    assert (home / "notes.txt").read_text() == "edited"
    desk.fairlead("workspace", "delete-home", "dev", "--yes")
    assert not home.exists()
