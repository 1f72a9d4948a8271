"""Sweeps whose values a real Katib proposes."""

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import Access
from fairlead.cluster.kubernetes.engines.katib import API
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.control.operator import Operator
from fairlead.policy.kinds.table import leaf
from fairlead.specs.sweep import values_of
from fairlead.state.snapshot import Intent, Phase, Progress
from tests.kubernetes.operating import operating
from tests.kubernetes.test_search_controller import a_sweep, runs, sweep_of
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.katib import katib
from tests.waiting import until

pytestmark = [pytest.mark.rare, pytest.mark.kubernetes]
LABEL = "katib.kubeflow.org/metrics-collector-injection"


@pytest.fixture(scope="module")
def real_katib(plane: ControlPlane) -> Iterator[None]:
    with katib(plane):
        yield


def their(cluster: KubernetesCluster, namespace: str, plural: str) -> dict[str, dict[str, Any]]:
    """Objects of Katib, by name."""
    found = cluster.client.items(f"/apis/{API}/namespaces/{namespace}/{plural}")
    return {each["metadata"]["name"]: each for each in found}


def holds(content: dict[str, Any], type_: str) -> bool:
    conditions = (content.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def end_all(operator: Operator, cluster: KubernetesCluster, ended: set[str]) -> None:
    """Have each run that trains report a loss, which follows from its value, and its pod succeed."""
    for name, run in runs(cluster).items():
        if run.status.phase is not Phase.RUNNING or name in ended:
            continue
        lr = float(values_of(leaf(run).spec)["lr"])
        operator.cluster.report(run.uid, Progress(loss=abs(lr - 0.01), step=1, updated_at=1.0), None)
        path = f"/api/v1/namespaces/{run.spec.team}/pods/{name}-0-0"
        cluster.client.merge(path, {"metadata": {"annotations": {"fake/run": "0.1s"}}})
        ended.add(name)


@pytest.mark.usefixtures("real_katib")
@pytest.mark.parametrize("sampler", ["random", "tpe", "cma-es"])
def test_a_real_katib_proposes_all_values_and_takes_what_it_is_told_of_their_ends(
    access: Access, cluster: KubernetesCluster, namespace: str, sampler: str
) -> None:
    parameters = "lr: log 1e-4..1e-1, share: 0.0..1.0"
    cluster.submit(a_sweep(namespace, f"trials: 6\nsampler: {sampler}\n", parameters))
    ended: set[str] = set()
    with operating(access, namespace) as operator:

        def is_over() -> bool:
            end_all(operator, cluster, ended)
            return sweep_of(cluster).status.phase.is_final

        # Its webhook takes no Experiment in other namespaces, and its words are the sweep's.
        until(lambda: f'the namespace lacks label "{LABEL}: enabled"' in sweep_of(cluster).status.reason.message)
        cluster.client.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: "enabled"}}})
        until(is_over, lambda: sweep_of(cluster).status)
        assert sweep_of(cluster).status.phase is Phase.SUCCEEDED, sweep_of(cluster).status
        assert sorted(ended) == [f"rates-{number}" for number in range(6)]
        # Katib has come to the same end by itself, with the same best value.
        until(lambda: holds(their(cluster, namespace, "experiments")["rates-0"], "Succeeded"))
        experiment = their(cluster, namespace, "experiments")["rates-0"]
        trials = their(cluster, namespace, "trials")
        assert experiment["status"]["trialsSucceeded"] == len(trials) == 6
        told: dict[float, float] = {}
        for each in trials.values():
            values = {one["name"]: float(one["value"]) for one in each["spec"]["parameterAssignments"]}
            (metric,) = each["status"]["observation"]["metrics"]
            told[values["lr"]] = float(metric["latest"])
        assert all(loss == abs(lr - 0.01) for lr, loss in told.items())
        best = experiment["status"]["currentOptimalTrial"]["observation"]["metrics"][0]
        assert float(best["latest"]) == min(told.values())
        assert f"best loss {min(told.values()):.6g}" in sweep_of(cluster).status.reason.message
        jobs = cluster.client.items(f"/apis/batch/v1/namespaces/{namespace}/jobs")
        assert all(each["spec"]["suspend"] for each in jobs)
        cluster.set_intent(sweep_of(cluster).uid, Intent.DELETE)
        until(lambda: not cluster.workloads() and not their(cluster, namespace, "trials"))
