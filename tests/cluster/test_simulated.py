"""The real loop over the simulated cluster: the same decisions on a virtual clock."""

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import LosePod
from fairlead.cluster.simulated.programs import Program, by_command
from fairlead.control.loop import run_pass
from fairlead.specs.resources import Resources
from fairlead.specs.training import Training
from fairlead.state.snapshot import Intent, Node, Phase, Workload

NODE = Node(name="node-0", cpu_milli=4000, memory_bytes=32 * 1024**3)


def simulated(program: Program) -> SimulatedCluster:
    return SimulatedCluster((NODE,), by_command({"work": program}))


def training(name: str, **changes: object) -> Training:
    values = {"resources": Resources(cpu_milli=2000), "nodes": 2, **changes}
    return Training(name=name, run="work", **values)  # type: ignore[arg-type]


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
    cluster = simulated(Program(duration_s=100.0))
    for name in ("first", "second", "third"):
        cluster.submit(training(name))
    play(cluster, 50.0)
    assert [named(cluster, name).status.phase for name in ("first", "second", "third")] == [
        Phase.RUNNING,
        Phase.PENDING,
        Phase.PENDING,
    ]
    assert "held by first" in named(cluster, "second").status.reason.message
    assert "behind second" in named(cluster, "third").status.reason.message
    play(cluster, 400.0)
    assert all(workload.status.phase is Phase.SUCCEEDED for workload in cluster.workloads())


def test_a_higher_priority_goes_first() -> None:
    cluster = simulated(Program(duration_s=100.0))
    cluster.submit(training("low"))
    cluster.submit(training("high", priority=10))
    play(cluster, 50.0)
    assert named(cluster, "high").status.phase is Phase.RUNNING
    assert named(cluster, "low").status.phase is Phase.PENDING


def test_a_lost_pod_restarts_the_gang_whole() -> None:
    cluster = simulated(Program(duration_s=100.0))
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
    cluster = simulated(Program(duration_s=10.0))
    uid = cluster.submit(training("train")).uid
    play(cluster, 5.0)
    cluster.wait(60.0)
    cluster.set_intent(uid, Intent.SUSPEND)
    play(cluster, 20.0)
    assert named(cluster, "train").status.phase in (Phase.SUCCEEDED, Phase.PENDING)
