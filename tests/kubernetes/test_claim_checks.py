"""Claims of a run's data that no pod could mount are named at its submission."""

from typing import Any, cast

import pytest

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.client.claim_checks import claim_problem
from fairlead.specs.data import DataSource
from tests.builders import training


class Claims:
    """A client of a namespace that has some claims, by their access modes."""

    def __init__(self, **modes: list[str]) -> None:
        self._modes = modes

    def get(self, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        if name not in self._modes:
            raise ApiError(path, 404, "NotFound", "it is not there")
        return {"spec": {"accessModes": self._modes[name]}}


@pytest.mark.parametrize(
    ("modes", "write", "nodes", "problem"),
    [
        ({}, False, 1, "data.rows: there is no PersistentVolumeClaim `tokens` in namespace vision; "),
        ({"tokens": ["ReadOnlyMany"]}, True, 1, "data.rows.write: the claim `tokens` is read-only; leave `write` out"),
        ({"tokens": ["ReadWriteOnce"]}, False, 2, "is ReadWriteOnce, which one node mounts, and the run has several"),
        ({"tokens": ["ReadWriteOnce"]}, True, 1, None),
        ({"tokens": ["ReadOnlyMany"]}, False, 2, None),
    ],
)
def test_a_claim_that_pods_could_not_mount_is_named(
    modes: dict[str, list[str]], write: bool, nodes: int, problem: str | None
) -> None:
    spec = training(nodes=nodes, data={"rows": DataSource(origin="pvc://tokens/a", write=write)})
    said = claim_problem(cast(Client, Claims(**modes)), "vision", spec)
    assert said is None if problem is None else problem in (said or "")
