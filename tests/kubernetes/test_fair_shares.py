"""Shares of GPU time among teams on a real API server, one of which uses all that it may choose."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.client.operator_lease import leader_there
from fairlead.cluster.kubernetes.client.user_client import UserClient
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.policy.queue import fair_order
from fairlead.specs.training import Training
from fairlead.state.snapshot import Phase
from tests.kubernetes.operating import GPUS, comes_to, delete_runs, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import until

pytestmark = pytest.mark.kubernetes

MEASURED_S = 40.0
# Wide runs have their turn after a day; here a day is shorter.
SHORT_DAY_S = 6.0


@pytest.fixture
def others(plane: ControlPlane, namespace: str) -> Iterator[tuple[str, str]]:
    """The namespaces of two other teams."""
    names = f"{namespace}-b", f"{namespace}-c"
    for name in names:
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        plane.await_namespace(name)
    yield names
    for name in names:
        plane.request("DELETE", f"/api/v1/namespaces/{name}")


class GpuTime:
    """Adds up the GPU seconds that runs hold, as the operator sees them, while it is entered.

    Attributes:
        held_s: GPU seconds by team and uid of the run.
    """

    def __init__(self, operator: Operator) -> None:
        self.held_s = defaultdict[tuple[str, str], float](float)
        self._operator = operator
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "GpuTime":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=20)

    def of(self, team: str) -> float:
        """The GPU seconds of all runs of a team."""
        return sum(seconds for (owner, _), seconds in tuple(self.held_s.items()) if owner == team)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(0.05):
            seen, now = self._operator.cluster.shown, time.monotonic()
            if seen is not None:
                team_of = {run.uid: run.spec.team for run in seen.workloads}
                for pod in seen.pods:
                    if not pod.phase.is_final and pod.workload_uid in team_of:
                        run = team_of[pod.workload_uid], pod.workload_uid
                        self.held_s[run] += len(pod.grant.gpu_uuids) * (now - before)
            before = now


def narrow(team: str, number: int) -> Training:
    """A run of no more than the share of its team."""
    spec = gang(team, f"narrow-{number}", nodes=1, gpus=(2, 4, 4, 1)[number % 4], run=f"{1 + number % 3}s")
    return replace(spec, max_duration_s=20.0)


def wide(team: str, number: int) -> Training:
    """A run of the whole cluster, as urgent as a spec can say."""
    spec = gang(team, f"wide-{number}", nodes=2, gpus=GPUS, run="4s")
    return replace(spec, max_duration_s=20.0, priority=1000, expected_duration_s=1.0)


@pytest.mark.slow
def test_each_other_team_holds_its_share_while_one_uses_all_that_it_may_choose(
    access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str, others: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(fair_order, "OVERDUE_S", SHORT_DAY_S)
    for number in range(16):
        cluster.submit(wide(namespace, number))
    for number in range(150):  # more than they come to
        for team in others:
            cluster.submit(narrow(team, number))
    with operating(access, namespace, watch_namespace=None) as operator, GpuTime(operator) as measured:
        until(lambda: all(measured.of(team) for team in (namespace, *others)))
        time.sleep(MEASURED_S)
        held_s = {team: measured.of(team) for team in (namespace, *others)}
        snapshot = operator.cluster.snapshot()
        pending = {run.spec.team for run in snapshot.workloads if run.status.phase is Phase.PENDING}
        by_run = dict(measured.held_s).items()
        widest_s = max(seconds for (team, _), seconds in by_run if team == namespace)
        narrow_s = max(seconds for (team, _), seconds in by_run if team != namespace)
        delete_runs(plane, namespace, *others)
    assert pending >= {namespace, *others}, "somebody had nothing left to do, so the shares say nothing"
    share_s = sum(held_s.values()) / 3
    # What a wide run takes at once the others lack until it is made up for, and one run cannot be divided between them.
    assert min(held_s[team] for team in others) >= share_s - widest_s / 3 - narrow_s, (held_s, widest_s, narrow_s)


@pytest.mark.slow
def test_the_next_operator_goes_on_from_the_debts_of_the_last_and_commands_see_them(
    access: ClusterAccess, cluster: WorkloadApi, namespace: str, others: tuple[str, str]
) -> None:
    cluster.submit(gang(namespace, "all"))
    with operating(access, namespace, watch_namespace=None):
        comes_to(cluster, "all", Phase.RUNNING)
        cluster.submit(gang(others[0], "waits"))
        seen = UserClient(Client(access), namespace=namespace)
        until(lambda: seen.snapshot().debts.get(namespace, 0.0) > 1.0)
        assert seen.snapshot().debts[others[0]] < -1.0
    leader = leader_there(cluster.client)
    assert leader is None, "it has released the Lease"
    with operating(access, namespace, watch_namespace=None) as operator:
        until(lambda: operator._debts.record.debts_s)
        assert operator._debts.record.debts_s[namespace] > 1.0
