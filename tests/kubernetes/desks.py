"""A user of real nodes, whose runs keep their checkpoints on a volume that all pods share."""

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairlead.specs.overlay import RANKS
from tests.kubernetes.test_faces import Desk, a_desk, operating
from tests.kubernetes.test_real_nodes import new_namespace
from tests.kubernetes.testcluster import volumes
from tests.kubernetes.testcluster.real_nodes import RealCluster
from tests.waiting import until


@contextmanager
def attended(cluster: RealCluster, directory: Path, *, patience_s: float) -> Iterator[Desk]:
    """A user in a namespace of the test's own with the volume, beside an operator; their runs are deleted after it."""
    namespace = f"t-{secrets.token_hex(3)}"
    new_namespace(cluster, namespace)
    volumes.share(cluster, namespace, "team")
    (directory / "desk").mkdir()
    desk = a_desk(cluster, namespace, directory / "desk")
    with operating(desk):
        yield desk
        desk("delete", "--all", "--yes", timeout_s=patience_s, code=None)


def write_run(
    desk: Desk, name: str, program: str, *, extra: Sequence[tuple[dict[str, Any], str]] = (), **keys: Any
) -> str:
    """Write a program and the file of a run of it that saves each step on the volume; return the file's name.

    Args:
        extra: More volumes, and where they are mounted.
        keys: Other keys of the run.
    """
    (desk.directory / f"{name}.py").write_text(program)
    claim = {"name": "team", "persistentVolumeClaim": {"claimName": "team"}}
    given = [(claim, "/team"), *extra]
    mounts = [{"name": volume["name"], "mountPath": path} for volume, path in given]
    spec = {
        "name": name,
        "workdir": ".",
        "run": f"python3 {name}.py",
        "checkpoint": {"to": "/team/runs", "every": "1 steps"},
        "kubernetes": {
            "spec": {
                "volumes": [volume for volume, _ in given],
                "containers": [{"name": RANKS, "volumeMounts": mounts}],
            }
        },
        **keys,
    }
    (desk.directory / f"{name}.yaml").write_text(json.dumps(spec))
    return f"{name}.yaml"


def shown(desk: Desk, name: str) -> dict[str, Any]:
    """Return the object that `fairlead status --json` prints for a run."""
    found: dict[str, Any] = json.loads(desk("status", name, "--json").out)
    return found


def comes_to(desk: Desk, name: str, phase: str, *, patience_s: float) -> str:
    """Wait until a run is in a phase, and return its reason's sentence."""
    until(lambda: shown(desk, name)["phase"] == phase, lambda: desk("status", name).out, timeout_s=patience_s)
    return str(shown(desk, name)["reason"]["message"])
