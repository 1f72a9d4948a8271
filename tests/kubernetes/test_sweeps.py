"""Sweeps on a real control plane: their trials are objects of their own, and none is lost or made twice."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml, write_object
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.specs.formats.reading import parse
from fairlead.state.snapshot import Phase, Progress
from tests.kubernetes.operating import live_pods, operating
from tests.kubernetes.test_faces import COMMAND, Desk, a_desk, phases
from tests.kubernetes.test_kubectl import Kubectl
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

NUM_TRIALS = 12


def a_sweep(namespace: str, *, trials: int = 4, parallel: int = 2, run_s: float = 0.2, more: str = "") -> str:
    """An array of runs whose pods last so long, as an object."""
    (spec,) = parse(
        f"kind: Sweep\nname: grid\nteam: {namespace}\nparallel: {parallel}\n"
        f"parameters: {{lr: {' | '.join(f'0.{n + 1:03}' for n in range(trials))}}}\n{more}"
        "trial:\n  run: train --lr {{lr}}\n  image: python:3.12\n  resources: {cpu: 100m, memory: 64Mi}\n"
        f"  kubernetes: {{metadata: {{annotations: {{fake/start: 0.1s, fake/run: {run_s}s, fake/on-term: ends}}}}}}\n"
    )
    return to_yaml([write_object(spec)])


@pytest.mark.slow
def test_a_sweep_that_kubectl_applies_has_each_trial_once_and_goes_with_all_of_them(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    assert "created" in kubectl("apply", "-f", "-", given=a_sweep(namespace))
    with operating(access, namespace):
        assert "condition met" in kubectl("wait", "--for=condition=Complete", "sweep/grid", "--timeout=60s")
        trials = sorted(run.spec.name for run in cluster.workloads() if run.parent is not None)
        assert trials == [f"grid-{number}" for number in range(4)]
        head, row = kubectl("get", "sweeps").splitlines()
        assert head.split() == ["NAME", "PHASE", "PROGRESS", "BEST", "AGE", "REASON"]
        assert row.split()[:3] == ["grid", "Succeeded", "4/4"]
        assert row.endswith("4 of 4 trials are over")
        until(lambda: "Succeeded: 4 of 4 trials are over" in kubectl("describe", "sweep", "grid"))
        owners = json.loads(kubectl("get", "training", "grid-3", "-o", "json"))["metadata"]["ownerReferences"]
        assert [(owner["kind"], owner["name"], owner["controller"]) for owner in owners] == [("Sweep", "grid", True)]
        environment = kubectl("get", "training", "grid-3", "-o", "jsonpath={.spec.env.FAIRLEAD_PARAM_LR}")
        assert environment == "0.004"
        kubectl("delete", "sweep", "grid", "--timeout=60s")
        assert kubectl("get", "fairlead", "-o", "name") == ""
        assert live_pods(cluster, namespace) == []


@pytest.mark.slow
def test_a_sweep_is_suspended_resumed_and_deleted_with_the_trials_that_run(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    kubectl("apply", "-f", "-", given=a_sweep(namespace, run_s=600))

    def phases(*wanted: str) -> bool:
        shown = kubectl(
            "get", "sweep/grid", "training/grid-0", "training/grid-1", "-o", "jsonpath={.items[*].status.phase}"
        )
        return shown.split() == list(wanted)

    with operating(access, namespace):
        until(lambda: phases("Running", "Running", "Running"))
        kubectl("annotate", "sweep", "grid", "fairlead.dev/intent=suspend")
        until(lambda: phases("Suspended", "Suspended", "Suspended"))
        assert live_pods(cluster, namespace) == []
        kubectl("annotate", "sweep", "grid", "fairlead.dev/intent=run", "--overwrite")
        until(lambda: phases("Running", "Running", "Running"))
        kubectl("delete", "sweep", "grid", "--timeout=60s")
        until(lambda: live_pods(cluster, namespace) == [] and not cluster.workloads())


def test_a_sweep_that_cannot_be_read_says_so_and_its_spec_cannot_change(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    text = a_sweep(namespace).replace("lr: 0.001 | 0.002 | 0.003 | 0.004", "lr: log 5..1")
    assert "created" in kubectl("apply", "-f", "-", given=text)
    with operating(access, namespace):
        until(lambda: "lr" in kubectl("get", "sweep", "grid", "-o", "jsonpath={.status.message}"))
        assert kubectl("get", "sweep", "grid", "-o", "jsonpath={.status.phase}") == Phase.FAILED.value
        until(lambda: "InvalidSpec" in kubectl("describe", "sweep", "grid"))
        assert "`seed` of a Sweep stays as it is" in kubectl("apply", "-f", "-", given=text + "  seed: 3\n")
        assert "`parameters` of a Sweep stays as it is" in kubectl("apply", "-f", "-", given=a_sweep(namespace))
        kubectl("delete", "sweep", "grid", "--timeout=60s")


@pytest.mark.slow
def test_a_sweep_that_is_over_has_more_trials_by_kubectl_and_by_the_command(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, desk: Desk
) -> None:
    kubectl = Kubectl(plane, namespace)
    three = a_sweep(namespace, trials=9, more="trials: 3\n")
    kubectl("apply", "-f", "-", given=three)
    with operating(access, namespace):
        assert "condition met" in kubectl("wait", "--for=condition=Complete", "sweep/grid", "--timeout=60s")
        assert "configured" in kubectl("apply", "-f", "-", given=three.replace("trials: 3", "trials: 5"))
        kubectl("annotate", "sweep", "grid", "fairlead.dev/intent=run", "--overwrite")
        until(lambda: "5 of 5 trials are over" in kubectl("get", "sweep", "grid"))
        told = kubectl("describe", "sweep", "grid")
        assert "trials: 3 -> 5" in told
        assert "resumed after it had succeeded" in told
        answer = desk("resume", "grid", "--set", "trials=7")
        assert "trials: 5 -> 7" in answer.err, answer.err
        until(lambda: "7 of 7 trials are over" in kubectl("get", "sweep", "grid"))
        uids = {run.spec.name: run.uid for run in cluster.workloads() if run.parent is not None}
        assert sorted(uids) == [f"grid-{number}" for number in range(7)]
        kubectl("delete", "sweep", "grid", "--timeout=60s")


@pytest.mark.long
def test_a_trial_pauses_at_a_rung_and_is_promoted_by_the_next_operator_as_by_this_one(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str
) -> None:
    kubectl = Kubectl(plane, namespace)
    more = "objective: loss\nprune: {after: 1, factor: 2}\n"
    kubectl("apply", "-f", "-", given=a_sweep(namespace, run_s=600, more=more))

    def trials(**wanted: str) -> bool:
        """Compare the phases and numbers of starts of all trials with these."""
        found = {
            each["metadata"]["name"]: each.get("status") or {} for each in objects(plane, "Training", namespace)
        }  # fmt: skip
        shown = {name.replace("-", "_"): f"{at.get('phase')} {at.get('attempt')}" for name, at in found.items()}
        return shown == wanted

    def report(operator: Operator, name: str, step: int, loss: float) -> None:
        (uid,) = (run.uid for run in cluster.workloads() if run.spec.name == name)
        told = Progress(step=step, loss=loss, checkpoint_step=step, updated_at=time.time())
        operator.cluster.reports.note(uid, told, time.time())
        operator.view.wake()

    with operating(access, namespace) as operator:
        until(lambda: trials(grid_0="Running 0", grid_1="Running 0"))
        report(operator, "grid-0", step=1, loss=5.0)
        until(lambda: trials(grid_0="Stopped 0", grid_1="Running 0", grid_2="Running 0"))
        assert "1 paused" in kubectl("get", "sweep", "grid")
        report(operator, "grid-1", step=1, loss=6.0)
        until(lambda: trials(grid_0="Running 1", grid_1="Stopped 0", grid_2="Running 0"))
        until(lambda: "grid-0 continues: its loss at step 1, 5, is among" in kubectl("describe", "sweep", "grid"))
    with operating(access, namespace) as operator:
        report(operator, "grid-0", step=2, loss=1.0)
        until(lambda: trials(grid_0="Stopped 1", grid_1="Stopped 0", grid_2="Running 0", grid_3="Running 0"))
        # No more trials are to come, so that the best at each rung goes on.
        report(operator, "grid-2", step=1, loss=7.0)
        until(lambda: trials(grid_0="Running 2", grid_1="Stopped 0", grid_2="Stopped 0", grid_3="Running 0"))
        report(operator, "grid-3", step=1, loss=8.0)
        until(lambda: trials(grid_0="Running 2", grid_1="Running 1", grid_2="Stopped 0", grid_3="Stopped 0"))
        assert len(live_pods(cluster, namespace)) == 2
        assert "sweep grid may promote it later" in kubectl("get", "training", "grid-2")
        kubectl("annotate", "sweep", "grid", "fairlead.dev/intent=stop")
        until(lambda: {each.status.phase for each in cluster.workloads()} == {Phase.STOPPED})
        said = "paused by asha at step 1, with loss 7; sweep grid ended without promoting it"
        assert said in kubectl("get", "training", "grid-2")
        kubectl("delete", "sweep", "grid", "--timeout=60s")
        until(lambda: live_pods(cluster, namespace) == [] and not cluster.workloads())


@pytest.fixture
def desk(access: ClusterAccess, plane: ControlPlane, namespace: str, tmp_path: Path) -> Desk:
    (tmp_path / "desk").mkdir()
    return replace(a_desk(plane, namespace, tmp_path / "desk"), in_process=True)


@contextmanager
def a_process(desk: Desk, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    """An operator for the desk's namespace that may be killed."""
    arguments = ["operator", "--namespace", desk.namespace, "--only", desk.namespace, "--listen", "127.0.0.1:0"]
    environ = {**desk.environ, "KUBECONFIG": str(desk.operator_config)}
    with (desk.directory.parent / "operator.log").open("ab") as log:
        process = subprocess.Popen([*COMMAND, *arguments, *more], cwd="/", env=environ, stderr=log, stdout=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(timeout=30)


def objects(plane: ControlPlane, kind: str, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plane.request("GET", objects_path(kind, namespace))["items"]
    return found


@pytest.mark.slow
def test_the_commands_know_a_sweep_and_its_trials(desk: Desk, plane: ControlPlane, namespace: str) -> None:
    (desk.directory / "train.py").write_text("print('hello')\n")
    fakes = "{fake/start: 0.1s, fake/run: 600s, fake/on-term: ends}"
    (desk.directory / "sweep.yaml").write_text(
        "kind: Sweep\nname: grid\nparallel: 2\nparameters: {lr: 0.1 | 0.2 | 0.3}\ntrial:\n"
        "  run: python train.py --lr {{lr}}\n  workdir: .\n  image: python:3.12\n"
        "  resources: {cpu: 100m, memory: 64Mi}\n"
        f"  kubernetes: {{metadata: {{annotations: {fakes}}}}}\n"
    )
    with a_process(desk):
        told = desk("run", "-d", "sweep.yaml").err
        assert f"Submitted grid in the namespace {namespace}" in told

        def shown() -> dict[str, str]:
            listed = json.loads(desk("status", "--all", "--json").out)
            return {run["name"]: run["phase"] for run in listed}

        until(lambda: phases(desk) == {"grid": "Running", "grid-0": "Running", "grid-1": "Running"})
        assert shown() == {"grid": "Running", "grid-0": "Running", "grid-1": "Running"}
        (sweep,) = objects(plane, "Sweep", namespace)
        for trial in objects(plane, "Training", namespace):
            carried = "fairlead.dev/workdir"
            assert trial["metadata"]["annotations"][carried] == sweep["metadata"]["annotations"][carried]
        assert "0/3" in desk("status", "grid").out
        assert "grid-1" in desk("events", "grid").out
        assert "0.1" in desk("sweep", "table", "grid").out
        refused = desk("sweep", "best", "grid", code=None)
        assert "no objective" in refused.err
        assert "finished" in desk("run", "-d", "--name", "grid", "--", "true", code=None).err
        desk("suspend", "grid")
        until(lambda: phases(desk) == {"grid": "Suspended", "grid-0": "Suspended", "grid-1": "Suspended"})
        desk("resume", "grid")
        until(lambda: phases(desk)["grid"] == "Running")
        desk("stop", "grid")
        until(lambda: set(phases(desk).values()) == {"Stopped"})
        assert set(shown().values()) == {"Stopped"}
        desk("delete", "--yes", "grid")
        until(lambda: not objects(plane, "Training", namespace) and not objects(plane, "Sweep", namespace))


@pytest.mark.long
def test_an_operator_that_is_killed_again_and_again_makes_no_trial_twice(
    desk: Desk, plane: ControlPlane, namespace: str
) -> None:
    kubectl, draw = Kubectl(plane, namespace), random.Random(7)
    for _ in range(4):
        kubectl("apply", "-f", "-", given=a_sweep(namespace, trials=NUM_TRIALS, parallel=3, run_s=0.5))

        def is_over() -> bool:
            (sweep,) = objects(plane, "Sweep", namespace)
            return (sweep.get("status") or {}).get("phase") == "Succeeded"

        for _ in range(4):
            with a_process(desk) as process:
                time.sleep(draw.uniform(1.0, 5.0))
                process.send_signal(signal.SIGKILL)
        with a_process(desk):
            until(is_over, timeout_s=180.0)
            trials = objects(plane, "Training", namespace)
            assert sorted(int(run["metadata"]["name"].split("-")[1]) for run in trials) == list(range(NUM_TRIALS))
            assert {run["status"]["phase"] for run in trials} == {"Succeeded"}
            assert {run["status"]["attempt"] for run in trials} == {0}
            values = {run["spec"]["env"]["FAIRLEAD_PARAM_LR"] for run in trials}
            assert len(values) == NUM_TRIALS
            kubectl("delete", "sweep", "grid", "--timeout=60s")
            until(lambda: not objects(plane, "Training", namespace))
            until(lambda: not plane.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"])
