"""The contract on a virtual clock, and the real loop over it."""

import math
from collections.abc import Callable

import pytest

from fairlead.cluster.port import LogLine
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram, by_command
from fairlead.control.loop import run_pass
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Node, Phase, Workload
from tests import builders
from tests.cluster.contract import ClusterContract
from tests.cluster.family_contract import FamilyContract

NODE = Node(name="node-0", cpu_milli=4000, memory_bytes=32 * 1024**3)


class SimulatedHarness:
    """The table of programs is the world; the cluster's own state is saved and loaded for a crash."""

    moment_s = 1.0

    def __init__(self) -> None:
        self._programs: dict[str, SimulatedProgram] = {}
        self.cluster = SimulatedCluster((NODE,), by_command(self._programs))

    def program(
        self,
        duration_s: float = math.inf,
        *,
        exit_code: int = 0,
        signal: int | None = None,
        ignores_term: bool = False,
        steps: int = 0,
        output: tuple[str, ...] = (),
    ) -> Training:
        name = f"run-{len(self._programs)}"
        self._programs[name] = SimulatedProgram(
            duration_s=duration_s,
            exit_code=exit_code,
            signal=signal,
            tail=output,
            start_s=self.moment_s / 4,
            step_s=duration_s / steps if steps else None,
            on_term=OnTerm.IGNORE if ignores_term else OnTerm.EXIT,
        )
        return builders.training(name, run=name)

    def now(self) -> float:
        return self.cluster.clock.now()

    def advance(self, seconds: float) -> None:
        self.cluster.advance(seconds)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(100_000):
            if condition():
                return
            self.advance(self.moment_s / 100)
        raise AssertionError(self.cluster.snapshot())

    def crash(self) -> None:
        self.cluster = SimulatedCluster.load(self.cluster.save(), by_command(self._programs))

    def lose(self, pod_uid: str) -> None:
        self.cluster.inject(LosePod(pod_uid=pod_uid))

    def num_starts(self, pod_uid: str) -> int:
        return self.cluster.num_starts(pod_uid)

    def logs(self, uid: str) -> list[LogLine]:
        pytest.skip("simulated: its programs print nothing, so it keeps no output")

    def break_down(self) -> None:
        pytest.skip("simulated: nothing lies below it that could fail")


@pytest.fixture
def harness() -> SimulatedHarness:
    return SimulatedHarness()


class TestSimulatedCluster(ClusterContract, FamilyContract):
    """Every promise of the port, kept by plain data."""


def simulated(program: SimulatedProgram) -> SimulatedCluster:
    return SimulatedCluster((NODE,), by_command({"work": program}))


def training(name: str, **changes: object) -> Training:
    values = {"resources": Resources(cpu_milli=2000), "nodes": 2, **changes}
    return Training(name=name, run="work", **values)  # type: ignore[arg-type]


def test_a_gang_works_as_fast_as_it_is_large_also_from_a_checkpoint_of_another_size() -> None:
    cluster = simulated(SimulatedProgram(duration_s=100.0, step_s=1.0, checkpoint_s=10.0))
    run = cluster.submit(training("train", nodes=1, most_nodes=2, resources=Resources(cpu_milli=2000)))
    run_pass(cluster, cluster.clock.now())
    cluster.advance(25.0)
    (seen,) = cluster.snapshot().workloads
    assert (seen.gang.nodes, seen.progress and (seen.progress.step, seen.progress.checkpoint_step)) == (2, (50, 40))
    cluster.inject(LosePod(pod_uid=f"{run.uid}-0-1"))
    blocker = cluster.submit(training("blocker", nodes=1, resources=Resources(cpu_milli=2000), priority=9))
    play(cluster, 59.0)
    (seen,) = (each for each in cluster.snapshot().workloads if each.uid == run.uid)
    assert (seen.gang.nodes, seen.progress and seen.progress.step) == (1, 40 + 59)
    play(cluster, 10.0)
    assert cluster.workloads()[1].status.phase is Phase.SUCCEEDED
    assert cluster.workloads()[0].uid == blocker.uid


def play(cluster: SimulatedCluster, seconds: float) -> None:
    """Passes of the loop until so much time has gone by."""
    end = cluster.clock.now() + seconds
    while cluster.clock.now() < end:
        while run_pass(cluster, cluster.clock.now()):
            assert held(cluster) <= NODE.cpu_milli
        cluster.wait(1.0)


def held(cluster: SimulatedCluster) -> int:
    return sum(pod.grant.cpu_milli for pod in cluster.snapshot().pods if not pod.phase.is_final)


def named(cluster: SimulatedCluster, name: str) -> Workload:
    return next(workload for workload in cluster.workloads() if workload.spec.name == name)


def test_gangs_run_one_after_the_other_when_only_one_fits() -> None:
    cluster = simulated(SimulatedProgram(duration_s=100.0))
    for name in ("first", "second", "third"):
        cluster.submit(training(name))
    play(cluster, 50.0)
    assert [named(cluster, name).status.phase for name in ("first", "second", "third")] == [
        Phase.RUNNING,
        Phase.PENDING,
        Phase.PENDING,
    ]
    assert "held by first" in named(cluster, "second").status.reason.message
    assert "waits its turn" in named(cluster, "third").status.reason.message
    play(cluster, 400.0)
    assert all(workload.status.phase is Phase.SUCCEEDED for workload in cluster.workloads())


def test_a_higher_priority_goes_first() -> None:
    cluster = simulated(SimulatedProgram(duration_s=100.0))
    cluster.submit(training("low"))
    cluster.submit(training("high", priority=10))
    play(cluster, 50.0)
    assert named(cluster, "high").status.phase is Phase.RUNNING
    assert named(cluster, "low").status.phase is Phase.PENDING


def test_a_lost_pod_restarts_the_gang_whole() -> None:
    cluster = simulated(SimulatedProgram(duration_s=100.0))
    uid = cluster.submit(training("train")).uid
    play(cluster, 20.0)
    cluster.inject(LosePod(pod_uid=f"{uid}-0-1"))
    play(cluster, 20.0)
    now = named(cluster, "train")
    assert (now.status.phase, now.status.attempt) == (Phase.RUNNING, 1)
    live = [pod for pod in cluster.snapshot().pods if not pod.phase.is_final]
    assert {pod.attempt for pod in live} == {1}
    assert len(live) == 2


def test_a_request_to_suspend_a_gang_whose_pods_have_just_ended_does_no_harm() -> None:
    cluster = simulated(SimulatedProgram(duration_s=10.0))
    uid = cluster.submit(training("train")).uid
    play(cluster, 5.0)
    cluster.wait(60.0)
    cluster.set_intent(uid, Intent.SUSPEND)
    play(cluster, 20.0)
    assert named(cluster, "train").status.phase in (Phase.SUCCEEDED, Phase.SUSPENDED)
