"""A pod of a gang with `elastic: in_place` is lost: the others go on, and that pod alone is replaced."""

import math
from dataclasses import replace
from typing import Any

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import AddNode, LoseNode, LosePod, RemoveNode, ReturnNode, WarnNode
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram, by_command
from fairlead.control.loop import run_pass
from fairlead.policy.decide import decide
from fairlead.policy.next_decision import next_decision_at
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.scaling.scale_up import requested_pods
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Elastic, Retry, Training
from fairlead.state.capacity_requests import Growth, Source
from fairlead.state.reasons import Code
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
from fairlead.state.snapshot import Intent, Node, Phase, Pod, PodPhase, Workload
from tests.builders import node, training

WORK = SimulatedProgram(duration_s=1000.0, step_s=1.0, checkpoint_s=100.0)
APART = {
    "metadata": {"labels": {"gang": "one"}},
    "spec": {
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"gang": "one"}}}
                ]
            }
        }
    },
}


def gang(name: str = "gang", **changes: Any) -> Training:
    """Four pods with a whole GPU each, that go on in place."""
    one = Resources(gpu=GpuRequest(), cpu_milli=1000)
    return training(name, nodes=4, elastic=Elastic.IN_PLACE, run="work", resources=one, grace_s=5.0, **changes)


class World:
    """Nodes with two GPUs each, and the loop."""

    def __init__(self, *nodes: Node, rules: SchedulingPolicy = DEFAULT, **programs: SimulatedProgram) -> None:
        named = nodes or tuple(node(name, gpus=2) for name in "abc")
        self.cluster = SimulatedCluster(named, by_command({"work": WORK, **programs}), rules=rules)
        self.cache = PassCache()

    def start(self, spec: Training | None = None) -> Workload:
        run = self.cluster.submit(spec or gang())
        self.run(5)
        assert self.now(run).status.phase is Phase.RUNNING
        return run

    def run(self, seconds: float) -> None:
        """Let time go by with a loop that looks when it has cause, and compare each plan with that without a cache."""
        until = self.cluster.clock.now() + seconds
        while True:
            self.settle()
            now = self.cluster.clock.now()
            at = min(until, self.cluster.next_at, next_decision_at(self.cluster.snapshot(), now) + 1e-6)
            if at >= until:
                self.cluster.advance(max(0.0, until - now))
                self.settle()
                return
            self.cluster.advance(at - now)

    def settle(self) -> None:
        for _ in range(30):
            seen, now = self.cluster.snapshot(), self.cluster.clock.now()
            assert decide(seen, now, self.cache) == decide(seen, now)
            if not run_pass(self.cluster, now):
                return
        raise AssertionError(self.cluster.snapshot())

    def now(self, run: Workload) -> Workload:
        return next(each for each in self.cluster.workloads() if each.uid == run.uid)

    def pods(self, run: Workload) -> dict[str, tuple[str, PodPhase]]:
        """Node and phase of the pods of the run, by what distinguishes their uids."""
        found = [pod for pod in self.cluster.snapshot().pods if pod.workload_uid == run.uid]
        return {pod.uid.removeprefix(f"{run.uid}-"): (pod.node, pod.phase) for pod in found}

    def pod(self, run: Workload, name: str) -> Pod:
        return next(pod for pod in self.cluster.snapshot().pods if pod.uid == f"{run.uid}-{name}")

    def lose(self, run: Workload, name: str) -> None:
        self.cluster.inject(LosePod(pod_uid=f"{run.uid}-{name}"))

    def told(self, run: Workload, *types: str) -> list[str]:
        return [each.reason.message for each in self.cluster.events(run.uid) if each.type in types]

    def types(self, run: Workload) -> list[str]:
        return [each.type for each in self.cluster.events(run.uid)]


def running(world: World, run: Workload) -> set[str]:
    return {name for name, (_, phase) in world.pods(run).items() if phase is PodPhase.RUNNING}


def test_the_others_go_on_in_the_same_attempt_and_the_lost_pod_is_placed_again_with_a_uid_of_its_own() -> None:
    world = World()
    run = world.start()
    world.run(20)
    world.lose(run, "0-2")
    world.run(1)
    after = world.now(run)
    assert (after.status.phase, after.status.attempt, after.status.failures.program) == (Phase.RUNNING, 0, 0)
    assert running(world, run) == {"0-0", "0-1", "0-3", "0-2r1"}
    (lost,) = world.told(run, "PodLost")
    assert "pod 2 of 4" in lost
    assert "it vanished; 3 ranks in 3 of 4 pods continue in place, and it is replaced" in lost
    assert world.types(run)[-3:] == ["PodLost", "PodReplaced", "PodReturned"]
    assert after.status.reason.message == "4 ranks in all 4 pods run"
    world.run(2000)
    assert world.now(run).status.phase is Phase.SUCCEEDED
    assert {world.cluster.num_starts(f"{run.uid}-{name}") for name in ("0-0", "0-1", "0-2", "0-2r1", "0-3")} == {1}


def test_a_node_leaves_and_the_run_goes_on_smaller_until_one_with_room_is_there() -> None:
    world = World(node("a", gpus=2), node("b", gpus=2))
    run = world.start()
    names = {name: where for name, (where, _) in world.pods(run).items()}
    gone = next(where for where in "ab" if where != names["0-0"])
    left = {name for name, where in names.items() if where == gone}
    world.cluster.inject(LoseNode(node=gone))
    world.run(100)
    after = world.now(run)
    assert (after.status.phase, after.status.attempt) == (Phase.RUNNING, 0)
    assert running(world, run) == names.keys() - left
    assert len(after.status.missing) == 2
    assert after.status.reason.code is Code.WAITING_FOR_RESOURCES
    assert after.status.reason.message.startswith("2 of 4 pods run; pods 2, 3 wait: each needs 1 node with 1 GPU")
    assert f"{gone} is not ready" in after.status.reason.message
    assert world.told(run, "PodWaits"), "once"
    step = after.progress
    assert step is not None
    assert step.step is not None
    assert 50 <= step.step <= 60, "half as fast with half the pods"
    world.cluster.inject(ReturnNode(node=gone))
    world.run(1)
    assert running(world, run) == {"0-0", "0-1", "0-2r1", "0-3r1"}
    assert world.types(run)[-2:] == ["PodReplaced", "PodReturned"]
    world.run(10_000)
    assert world.now(run).status.phase is Phase.SUCCEEDED


def growth(**changes: Any) -> Growth:
    return Growth(by="Karpenter", look="`kubectl get nodepools`", sources=(Source(name="gpu"),), **changes)


def with_a_node_gone() -> tuple[World, Workload, str]:
    """A gang without two of its four pods, for which an autoscaler may bring nodes; the name of the node that left."""
    world = World(node("a", gpus=2), node("b", gpus=2))
    world.cluster.grow_by(growth(patience_s=60.0, pause_s=30.0), ())
    run = world.start()
    first = world.pods(run)["0-0"][0]
    gone = next(where for where in "ab" if where != first)
    world.cluster.inject(LoseNode(node=gone))
    world.run(1)
    return world, run, gone


def test_nodes_are_requested_for_the_lost_pods_alone_until_they_have_places() -> None:
    world, run, gone = with_a_node_gone()
    status = world.now(run).status
    assert (status.phase, requested_pods(world.now(run))) == (Phase.RUNNING, (2, 3))
    assert "Karpenter is asked for nodes with 2 placeholder pods meanwhile" in status.reason.message
    world.run(20)
    assert world.now(run).status.queue.nodes_requested_at == status.queue.nodes_requested_at
    assert len(world.told(run, "PodWaits")) == 1
    world.cluster.inject(AddNode(node=node("new", gpus=1)))
    world.run(1)
    assert requested_pods(world.now(run)) == (3,)
    world.cluster.inject(ReturnNode(node=gone))
    world.run(1)
    assert running(world, run) == {"0-0", "0-1", "0-2r1", "0-3r1"}
    after = world.now(run).status
    assert (after.queue.nodes_requested_at, after.queue.request_again_at, after.attempt) == (None, None, 0)


def test_nodes_that_do_not_come_are_requested_again_after_a_pause_and_the_others_go_on() -> None:
    world, run, _ = with_a_node_gone()
    world.run(60)
    status = world.now(run).status
    assert requested_pods(world.now(run)) == ()
    assert (status.phase, status.attempt) == (Phase.RUNNING, 0)
    assert "Karpenter is asked for nodes again later" in status.reason.message
    world.run(30)
    assert requested_pods(world.now(run)) == (2, 3)
    assert len(world.told(run, "PodWaits")) == 1


def test_a_gang_that_is_stopped_without_its_lost_pods_requests_no_nodes() -> None:
    world, run, _ = with_a_node_gone()
    world.cluster.set_intent(run.uid, Intent.SUSPEND)
    world.run(20)
    status = world.now(run).status
    assert (status.phase, status.queue.nodes_requested_at, status.queue.request_again_at) == (
        Phase.SUSPENDED,
        None,
        None,
    )
    assert requested_pods(world.now(run)) == ()


def test_a_lost_pod_that_waits_for_nodes_delays_no_request_of_another_run() -> None:
    world, _, _ = with_a_node_gone()
    other = world.cluster.submit(training("other", run="work", resources=Resources(gpu=GpuRequest())))
    world.run(1)
    assert requested_pods(world.now(other)) == range(1)


def test_the_first_pod_is_needed_by_the_others_so_its_loss_restarts_the_gang() -> None:
    world = World()
    run = world.start()
    world.run(150)
    world.lose(run, "0-0")
    world.run(1)
    after = world.now(run)
    assert (after.status.phase, after.status.attempt) == (Phase.RUNNING, 1)
    assert running(world, run) == {"1-0", "1-1", "1-2", "1-3"}
    assert after.status.failures.lost_pods == ()


def test_a_gang_whose_ranks_have_not_met_restarts() -> None:
    world = World(silent=SimulatedProgram(duration_s=100.0))
    run = world.start(gang().__class__(**{**_fields(gang()), "run": "silent"}))
    world.lose(run, "0-2")
    world.run(1)
    assert world.now(run).status.attempt == 1


def test_without_in_place_a_lost_pod_restarts_the_gang() -> None:
    world = World()
    run = world.start(training("plain", nodes=4, run="work"))
    world.run(20)
    world.lose(run, "0-2")
    world.run(1)
    assert world.now(run).status.attempt == 1


def test_a_pod_that_is_lost_again_and_again_without_a_new_step_restarts_the_gang() -> None:
    stuck = SimulatedProgram(duration_s=1000.0, step_s=1.0, hangs_after_s=20.0)
    world = World(stuck=stuck)
    run = world.start(gang().__class__(**{**_fields(gang()), "run": "stuck", "retry": Retry(backoff_s=1.0)}))
    world.run(60)
    name = "0-2"
    for times in range(1, 4):
        world.lose(run, name)
        world.run(10)
        assert world.now(run).status.attempt == 0, times
        name = f"0-2r{times}"
        assert name in running(world, run)
    world.lose(run, name)
    world.run(10)
    after = world.now(run)
    assert (after.status.phase, after.status.attempt, after.status.failures.disruptions) == (Phase.RUNNING, 1, 1)
    assert after.status.failures.lost_pods == ()


def test_a_replacement_that_is_lost_at_once_is_placed_again_later_and_later() -> None:
    world = World()
    run = world.start(gang(retry=Retry(backoff_s=10.0, max_backoff_s=15.0)))
    world.run(100)
    world.lose(run, "0-2")
    world.run(1)
    for name, wait_s in (("0-2r1", 10.0), ("0-2r2", 15.0), ("0-2r3", 15.0)):
        world.lose(run, name)
        world.run(wait_s - 0.5)
        assert running(world, run) == {"0-0", "0-1", "0-3"}
        world.run(1)
        assert len(running(world, run)) == 4
    world.run(70)
    world.lose(run, "0-2r4")
    world.run(1)
    assert "0-2r5" in running(world, run), "at once, after a minute of work"


def test_only_the_pods_of_a_node_that_is_reclaimed_leave_it() -> None:
    world = World(node("a", gpus=2), node("b", gpus=2), quick=WORK)
    run = world.start()
    gone = world.pod(run, "0-3").node
    leavers = {name for name, (where, _) in world.pods(run).items() if where == gone}
    assert "0-0" not in leavers
    world.cluster.inject(WarnNode(node=gone, why="spot reclaim", within_s=30.0))
    world.run(1)
    after = world.now(run)
    assert (after.status.phase, after.status.attempt) == (Phase.RUNNING, 0)
    (told,) = world.told(run, "NodeReclaimed")
    assert told == f"node {gone} is being reclaimed (spot reclaim); pods 2, 3 of 4 leave it, and the others continue"
    world.run(10)
    assert not leavers & running(world, run)
    assert world.told(run, "PodLost") == [
        f"pod 2 of 4 has left {gone}, which is being reclaimed, and 1 other pod with it; 2 ranks in 2 of 4 pods "
        "continue in place, and they are replaced"
    ]
    world.cluster.inject(RemoveNode(node=gone))
    world.cluster.inject(AddNode(node=node("c", gpus=2)))
    world.run(5)
    assert {world.pods(run)[name][0] for name in ("0-2r1", "0-3r1")} == {"c"}


def test_a_pod_that_leaves_alone_saves_nothing_as_the_others_go_on() -> None:
    saves = SimulatedProgram(duration_s=1000.0, step_s=1.0, checkpoint_s=500.0, on_term=OnTerm.CHECKPOINT, save_s=1.0)
    world = World(node("a", gpus=2), node("b", gpus=2), saves=saves)
    run = world.start(gang().__class__(**{**_fields(gang()), "run": "saves"}))
    world.run(15)
    world.cluster.inject(WarnNode(node=world.pod(run, "0-3").node, why="spot reclaim", within_s=30.0))
    world.run(20)
    after = world.now(run)
    assert (after.status.phase, running(world, run)) == (Phase.RUNNING, {"0-0", "0-1"})
    assert after.progress is not None
    assert (after.progress.step, after.progress.checkpoint_step) == (30, None)


def test_all_leave_where_the_first_pod_has_to() -> None:
    world = World()
    run = world.start()
    world.cluster.inject(WarnNode(node=world.pod(run, "0-0").node, why="spot reclaim", within_s=30.0))
    world.run(1)
    assert world.now(run).status.after_stop.phase is Phase.PENDING or world.now(run).status.attempt == 1


def test_a_stop_while_a_pod_is_missing_is_obeyed_and_a_resume_starts_the_whole_gang() -> None:
    world = World(node("a", gpus=2), node("b", gpus=2))
    run = world.start()
    gone = world.pod(run, "0-3").node
    world.cluster.inject(LoseNode(node=gone))
    world.run(10)
    world.cluster.set_intent(run.uid, Intent.SUSPEND)
    world.run(10)
    assert world.now(run).status.phase is Phase.SUSPENDED
    world.cluster.inject(ReturnNode(node=gone))
    world.cluster.set_intent(run.uid, Intent.RUN)
    world.run(5)
    assert running(world, run) == {"1-0", "1-1", "1-2", "1-3"}


def test_a_stop_notice_with_a_missing_pod_keeps_the_checkpoint_of_the_others() -> None:
    saves = SimulatedProgram(duration_s=1000.0, step_s=1.0, checkpoint_s=500.0, on_term=OnTerm.CHECKPOINT, save_s=1.0)
    world = World(node("a", gpus=2), node("b", gpus=2), saves=saves)
    run = world.start(gang().__class__(**{**_fields(gang()), "run": "saves"}))
    world.cluster.inject(LoseNode(node=world.pod(run, "0-3").node))
    world.run(45)
    world.cluster.set_intent(run.uid, Intent.SUSPEND)
    world.run(10)
    progress = world.now(run).progress
    assert progress is not None
    assert progress.stopped_step == progress.checkpoint_step == 27


def test_a_run_of_a_higher_priority_comes_before_a_missing_pod_and_one_of_a_lower_after_it() -> None:
    one = Resources(gpu=GpuRequest(), cpu_milli=1000)
    for priority, team, comes_first in ((5, "default", True), (0, "default", False), (-1, "default", False),
                                        (5, "vision", False)):  # fmt: skip
        world = World(node("a", gpus=2), node("b", gpus=2), rules=replace(DEFAULT, preempts=False))
        run = world.start()
        gone = world.pod(run, "0-3").node
        world.cluster.inject(LoseNode(node=gone))
        world.run(1)
        other = world.cluster.submit(
            training("other", run="work", nodes=2, resources=one, priority=priority, team=team)
        )
        world.run(1)
        assert world.now(other).status.phase is Phase.PENDING
        world.cluster.inject(ReturnNode(node=gone))
        world.run(1)
        assert (world.now(other).status.phase is Phase.RUNNING) is comes_first, priority
        assert (len(running(world, run)) == 4) is not comes_first, priority


def test_a_team_keeps_the_place_of_a_missing_pod_in_its_quota_and_pays_only_for_what_it_holds() -> None:
    world = World(node("a", gpus=2), node("b", gpus=2))
    run = world.start()
    gone = world.pod(run, "0-3").node
    world.run(100)
    world.cluster.inject(LoseNode(node=gone))
    world.run(100)
    times, _ = world.cluster.accounts()
    held = sorted(round(each.ended_at - each.created_at) for each in times if each.workload_uid == run.uid)
    assert held == [105, 105, 205, 205]


def test_pods_that_must_not_share_a_node_do_not_after_a_loss_either() -> None:
    world = World(*(node(name, gpus=2) for name in "abcd"))
    run = world.start(gang(kubernetes=overlay(APART)))
    gone = world.pod(run, "0-3").node
    world.cluster.inject(LoseNode(node=gone))
    world.run(20)
    assert len(running(world, run)) == 3, "the other nodes have a GPU free each, but one of its pods"
    world.cluster.inject(ReturnNode(node=gone))
    world.run(2)
    assert world.pods(run)["0-3r1"] == (gone, PodPhase.RUNNING)


def test_a_replacement_that_never_starts_is_placed_elsewhere_and_the_others_go_on() -> None:
    world = World(silent=WORK)
    run = world.start()
    world.run(20)
    waits = SimulatedProgram(duration_s=1000.0, step_s=1.0, start_s=math.inf)
    world.cluster = SimulatedCluster.load(world.cluster.save(), by_command({"work": waits}))
    world.cache = PassCache()
    world.lose(run, "0-2")
    world.run(1)
    first = world.pods(run)["0-2r1"][0]
    world.run(605)
    assert world.now(run).status.attempt == 0
    assert "0-2r1" not in world.pods(run), "it is over"
    assert world.pods(run)["0-2r2"][0] != first
    world.run(2000)
    assert world.now(run).status.phase is Phase.SUCCEEDED, "nobody waits for a pod that comes when all is done"
    assert all(phase.is_final for _, phase in world.pods(run).values())


def test_a_loop_that_dies_between_two_changes_creates_no_pod_twice() -> None:
    world = World()
    run = world.start()
    world.run(20)
    world.lose(run, "0-2")
    for _ in range(6):
        seen, now = world.cluster.snapshot(), world.cluster.clock.now()
        plan = decide(seen, now)
        world.cluster.apply(plan)
        world.cluster = SimulatedCluster.load(world.cluster.save(), by_command({"work": WORK}))
        assert not any(world.cluster.apply(plan)), "a plan that was carried out is void"
    world.cache = PassCache()
    world.run(5)
    assert sorted(world.pods(run)) == ["0-0", "0-1", "0-2r1", "0-3"]
    assert world.cluster.num_starts(f"{run.uid}-0-2r1") == 1


def _fields(spec: Training) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in Training.__slots__}
