"""The launchers of runs that end and are resumed while the launcher is still on its way out."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.home import Home
from fairlead.cluster.local.launchers import Launchers
from fairlead.state.snapshot import Intent, Workload
from tests.builders import status, training

RUN = Workload(uid="uid", spec=training(), intent=Intent.RUN, status=status(), version=1, created_at=1_000_000.0)


class Spawned(Launchers):
    """Launchers that are slow to end: they never look whether their input has ended."""

    def __init__(self, home: Home) -> None:
        super().__init__(home)
        self.made: list[subprocess.Popen[bytes]] = []

    def _spawn(self, uid: str, argv: tuple[str, ...], spec: dict[str, Any]) -> subprocess.Popen[bytes]:
        self.made.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE))
        return self.made[-1]


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Spawned]:
    made = Spawned(Home(tmp_path))
    yield made
    made.close()
    for process in made.made:
        process.kill()
        process.wait(60)


def test_a_run_resumed_while_its_launcher_still_ends_gets_another(launchers: Spawned, tmp_path: Path) -> None:
    spec = {"command": "python3 train.py", "env": {"PATH": "/usr/bin:/usr/local/bin:/bin"}}
    assert launchers.start(RUN, spec, tmp_path / "first")
    launchers.reap(set())
    assert launchers.start(RUN, spec, tmp_path / "second")
    assert len(launchers.made) == 2
    launchers.reap({"uid"})
    assert not launchers.has_ended("uid")
