"""The commands of docs/kubernetes.md, as they stand there, on a cluster that has never heard of Fairlead."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.docs.examples import ROOT, examples_of
from tests.kubernetes.clusters import started
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes
from tests.processes import Child

pytestmark = pytest.mark.kubernetes

PAGE = ROOT / "docs" / "kubernetes.md"


@pytest.fixture
def fresh(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane of the test's own, with nodes and without our kinds."""
    with started(ControlPlane, request) as plane:
        add_nodes(plane, 2)
        yield plane


@pytest.mark.slow
def test_a_new_user_gets_from_nothing_to_a_run_that_is_done(fresh: ControlPlane, tmp_path: Path) -> None:
    spec, start, look = (example for example in examples_of(PAGE) if example.kind in ("yaml", "bash"))
    # A fake node runs no program: it is told how long the pod takes.
    document = {**yaml.safe_load(spec.body), "kubernetes": {"metadata": {"annotations": {"fake/run": "500ms"}}}}
    (tmp_path / "hello.yaml").write_text(yaml.safe_dump(document))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(fresh.kubectl)
    environ = {
        **os.environ,
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(fresh.kubeconfig()),
    }
    script = f"set -e -o pipefail\n{start.body}\n{look.body}"
    with Child(
        ["bash", "-c", script], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            assert shell.wait(120) == 0
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # the operator goes on in the background
            assert shell.stdout is not None
            told = shell.stdout.read()
    assert "training.fairlead.dev/hello condition met" in told, told
    assert "all ranks succeeded" in told
    head = next(line for line in told.splitlines() if line.startswith("NAME"))
    assert head.split() == ["NAME", "PHASE", "RANKS", "PROGRESS", "AGE", "REASON"]
