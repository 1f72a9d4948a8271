"""Sweeps whose values a real Katib proposes."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.engines.katib import API
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.policy.kinds.table import leaf
from fairlead.specs.sweep import values_of
from fairlead.state.snapshot import Intent, Phase, Progress
from tests.kubernetes.operating import operating
from tests.kubernetes.test_faces import Desk, a_desk, phases
from tests.kubernetes.test_search_controller import a_sweep, are_running, end, runs, sweep_of
from tests.kubernetes.test_sweeps import a_process
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.katib import katib
from tests.waiting import until

pytestmark = [pytest.mark.rare, pytest.mark.kubernetes]
LABEL = "katib.kubeflow.org/metrics-collector-injection"
TWO = "lr: log 1e-4..1e-1, share: 0.0..1.0"
ENDS = ("Succeeded", "Failed", "Killed", "EarlyStopped")


@pytest.fixture(scope="module")
def real_katib(plane: ControlPlane) -> Iterator[None]:
    with katib(plane):
        yield


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return replace(a_desk(plane, namespace, tmp_path / "desk"), in_process=True)


def their(cluster: WorkloadApi, namespace: str, plural: str) -> dict[str, dict[str, Any]]:
    """Objects of Katib, by name."""
    found = cluster.client.items(f"/apis/{API}/namespaces/{namespace}/{plural}")
    return {each["metadata"]["name"]: each for each in found}


def admit(cluster: WorkloadApi, namespace: str) -> None:
    """Have Katib take Experiments in a namespace."""
    cluster.client.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {LABEL: "enabled"}}})


def left(cluster: WorkloadApi, namespace: str) -> list[str]:
    """Name what of Katib's goes on in a namespace: searches, Trials, their Jobs, and the programs of algorithms."""
    named = [
        *(name for name, each in their(cluster, namespace, "experiments").items() if not holds(each, "Succeeded")),
        *(name for name, each in their(cluster, namespace, "trials").items() if end_of(each) not in ENDS),
    ]
    for path in ("/apis/batch/v1/namespaces/{}/jobs", "/apis/apps/v1/namespaces/{}/deployments"):
        named += [each["metadata"]["name"] for each in cluster.client.items(path.format(namespace))]
    return named


def end_of(content: dict[str, Any], of: str = "type") -> str:
    """The last condition of an object of Katib's."""
    conditions = (content.get("status") or {}).get("conditions") or [{}]
    return str(conditions[-1].get(of))


def holds(content: dict[str, Any], type_: str) -> bool:
    conditions = (content.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def end_all(operator: Operator, cluster: WorkloadApi, ended: set[str]) -> None:
    """Have each run that trains report a loss, which follows from its value, and its pod succeed."""
    for name, run in runs(cluster).items():
        if run.status.phase is not Phase.RUNNING or name in ended:
            continue
        lr = float(values_of(leaf(run).spec)["lr"])
        operator.cluster.reports.note(run.uid, Progress(loss=abs(lr - 0.01), step=1, updated_at=1.0), None)
        path = f"/api/v1/namespaces/{run.spec.team}/pods/{name}-0-0"
        cluster.client.merge(path, {"metadata": {"annotations": {"fake/run": "0.1s"}}})
        ended.add(name)


@pytest.mark.usefixtures("real_katib")
@pytest.mark.parametrize("sampler", ["random", "tpe", "cma-es"])
def test_a_real_katib_proposes_all_values_and_takes_what_it_is_told_of_their_ends(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, sampler: str
) -> None:
    cluster.submit(a_sweep(namespace, f"trials: 6\nsampler: {sampler}\n", TWO))
    ended: set[str] = set()
    with operating(access, namespace) as operator:

        def is_over() -> bool:
            end_all(operator, cluster, ended)
            return sweep_of(cluster).status.phase.is_final

        # Its webhook takes no Experiment in other namespaces, and its words are the sweep's.
        until(lambda: f'the namespace lacks label "{LABEL}: enabled"' in sweep_of(cluster).status.reason.message)
        admit(cluster, namespace)
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


@pytest.mark.usefixtures("real_katib")
def test_a_real_katib_ends_with_a_sweep_whose_target_is_reached(
    desk: Desk, access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    admit(cluster, namespace)
    cluster.submit(a_sweep(namespace, "trials: 6\nsampler: random\nstop: {target: 0.5}\n"))
    with operating(access, namespace) as operator:
        until(lambda: are_running(cluster, "rates-0", "rates-1"))
        end(operator, cluster, "rates-0", 0.75)
        until(lambda: are_running(cluster, "rates-1", "rates-2"))
        end(operator, cluster, "rates-1", 0.25)
        until(lambda: sweep_of(cluster).status.phase is Phase.SUCCEEDED)
        until(lambda: not left(cluster, namespace), lambda: left(cluster, namespace))
        lr = values_of(leaf(runs(cluster)["rates-1"]).spec)["lr"]
    assert sweep_of(cluster).status.reason.message == (
        f"it reached its target, 0.5; 2 of 6 trials are over; best loss 0.25 by rates-1 (lr {lr:g})"
    )
    ends = {name: end_of(each) for name, each in their(cluster, namespace, "trials").items()}
    assert sorted(ends.values()) == ["Killed", "Succeeded", "Succeeded"]
    assert desk("sweep", "best", "rates").out.splitlines()[0] == f"rates-1  loss 0.25  lr {lr:g}"
    rows = desk("sweep", "table", "rates").out.splitlines()[1:]
    assert [row.split()[:3] for row in rows] == [
        ["rates-1", "succeeded", "0.25"], ["rates-0", "succeeded", "0.75"], ["rates-2", "stopped", "-"],
    ]  # fmt: skip


@pytest.mark.usefixtures("real_katib")
def test_a_real_katib_ends_with_a_stop_also_where_the_operator_is_killed_meanwhile(
    desk: Desk, cluster: WorkloadApi, namespace: str
) -> None:
    admit(cluster, namespace)
    uid = cluster.submit(a_sweep(namespace, "trials: 20\nsampler: cma-es\n", TWO)).uid
    draw = random.Random(7)

    def num_running() -> int:
        return sum(phase == "Running" for name, phase in phases(desk).items() if name != "rates")

    def is_over() -> bool:
        experiments = their(cluster, namespace, "experiments").values()
        return not left(cluster, namespace) and all(
            end_of(each, "message") == "stopped on request" for each in experiments
        )

    with a_process(desk):
        until(lambda: num_running() == 2)
        # A stopped trial does not end the search, and a suspended search continues.
        desk("stop", "rates-0")
        until(lambda: phases(desk).get("rates-2") == "Running", lambda: desk("status", "rates").out)
        desk("suspend", "rates")
        until(lambda: phases(desk)["rates"] == "Suspended")
        desk("resume", "rates")
    for number in range(1, 4):
        with a_process(desk) as process:
            # A resumed search has another Experiment, and no more trials at once for that.
            until(lambda: num_running() == 2, lambda: desk("status", "rates").out)
            until(lambda number=number: len(their(cluster, namespace, "experiments")) == number)  # type: ignore[misc]
            cluster.set_intent(uid, Intent.STOP)
            time.sleep(draw.uniform(0.0, 0.5))
            process.kill()
        with a_process(desk):
            until(is_over, lambda: left(cluster, namespace))
            until(lambda: set(phases(desk).values()) == {"Stopped"})
            desk("resume", "rates")
    with a_process(desk):
        until(lambda: num_running() == 2, lambda: desk("status", "rates").out)
        assert sorted(phases(desk)) == ["rates", "rates-0", "rates-1", "rates-2"]
        desk("delete", "--yes", "rates")
        for plural in ("experiments", "trials", "suggestions"):
            until(lambda plural=plural: not their(cluster, namespace, plural))  # type: ignore[misc]
        until(lambda: not left(cluster, namespace), lambda: left(cluster, namespace))
        assert phases(desk) == {}


@pytest.mark.usefixtures("real_katib")
def test_what_a_real_katibs_algorithm_refuses_is_why_the_sweep_failed(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str
) -> None:
    admit(cluster, namespace)
    cluster.submit(a_sweep(namespace, "trials: 6\nsampler: cma-es\n"))
    with operating(access, namespace):
        until(lambda: sweep_of(cluster).status.phase is Phase.FAILED, lambda: sweep_of(cluster).status)
    said = "CMA-ES only supports two or more dimensional continuous search space; 0 of 6 trials are over"
    assert said in sweep_of(cluster).status.reason.message
