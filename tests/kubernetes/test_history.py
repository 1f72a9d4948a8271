"""What a Kubernetes cluster remembers of its runs, as a trace, through the command line."""

import json

import pytest

from tests.kubernetes.test_faces import Desk, desk, namespace, operator, phases, plane, prepared
from tests.waiting import until

__all__ = ["desk", "namespace", "operator", "plane", "prepared"]  # fixtures of the test below

pytestmark = pytest.mark.kubernetes


@pytest.mark.slow
def test_the_history_of_a_cluster_is_recorded_and_replayed(desk: Desk, operator: None) -> None:
    desk("run", desk.write("done", nodes=2, resources={"gpu": 1}, fake={"run": "1s"}))
    desk("run", "-d", desk.write("still", fake={"run": "300s"}))
    until(lambda: "Running" in phases(desk).values())
    told = desk("simulate", "--from-cluster", "--save", "kept", "--json")
    assert "not over: taken to last the median" in told.err
    own = [run for run in json.loads(told.out)["runs"] if run["team"] == desk.namespace]
    assert {run["name"] for run in own} == {"done", "still"}
    assert {run["num_gpus"] for run in own} == {0, 2}
    assert all(run["duration_s"] > 0 and run["ended_s"] is not None for run in own)
    pools = (desk.directory / "kept" / "cluster.yaml").read_text()
    assert "kind: Pool" in pools
    again = desk("simulate", "kept/trace.csv", "--cluster", "kept/cluster.yaml", "--json").out
    assert json.loads(again)["runs"] == json.loads(told.out)["runs"]
    desk("stop", "still")
