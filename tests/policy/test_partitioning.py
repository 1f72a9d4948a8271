"""Which step a node takes on its way to another layout, and when it sets out."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.disruption.partitioning import DRAIN_PATIENCE_S, LEAST_PATIENCE_S, RETRY_S, partition_steps
from fairlead.policy.gpu.device_inventory import in_layout
from fairlead.policy.next_decision import next_decision_at
from fairlead.specs.pool import GpuLayout, Hardware, Partitions, Pool, PoolGpu
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.sharing import Sharing
from fairlead.specs.training import Training
from fairlead.state.partitions import ManagerState, PartitionAction, PartitionChange, PartitionedNode, PartitionStep
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import (
    Grant,
    Intent,
    Leaving,
    Node,
    Phase,
    Pod,
    PodPhase,
    Progress,
    Snapshot,
    Status,
    Workload,
)

NOW = 1_000_000.0
SEVENTHS, WHOLE = "all-1g.5gb", "all-disabled"
LAYOUTS = {SEVENTHS: GpuLayout(instances={"1g.5gb": "7"}), WHOLE: GpuLayout()}
POOL = Pool(
    name="p",
    nodes=2,
    hardware=Hardware(cpu_milli=64_000, memory_bytes=2**38, gpu=PoolGpu(model="A100", memory_bytes=40 * 10**9)),
    partitions=Partitions(layouts=LAYOUTS, reconfigure_s=180.0),
)
ROOM = Reason(code=Code.WAITING_FOR_RESOURCES, message="no room")


def a_node(name: str, layout: str, **changes: object) -> Node:
    gpus = in_layout(POOL, layout, name)
    return Node(name=name, cpu_milli=64_000, memory_bytes=2**38, gpus=gpus, **changes)  # type: ignore[arg-type]


def resting(name: str, layout: str, **changes: object) -> PartitionedNode:
    return PartitionedNode(node=name, pool=POOL, layout=layout, requested=layout, **changes)  # type: ignore[arg-type]


def a_run(name: str, milli: int, phase: Phase, since_s: float, *, saves: bool = True, **changes: object) -> Workload:
    sharing = () if milli == 1000 else (Sharing.MIG,)
    resources = Resources(gpu=GpuRequest(milli=milli), cpu_milli=1000, sharing=sharing)
    spec = Training(name=name, team="t", run="x", resources=resources, **changes)  # type: ignore[arg-type]
    status = Status(phase=phase, reason=ROOM, since=NOW - since_s, started_at=NOW - since_s)
    progress = Progress(checkpoint_at=NOW, checkpoint_step=1) if saves and phase is Phase.RUNNING else None
    return Workload(
        uid=name, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=NOW - since_s, progress=progress
    )


def a_pod(run: Workload, node: Node, device: int = 0) -> Pod:
    grant = Grant(cpu_milli=1000, gpu_uuids=(node.gpus[device].uuid,), gpu_milli=run.spec.resources.gpu.milli)  # type: ignore[union-attr]
    return Pod(
        uid=f"{run.uid}-0-0", workload_uid=run.uid, attempt=0, index=0, node=node.name, grant=grant,
        phase=PodPhase.RUNNING, created_at=run.created_at, started_at=run.created_at,
    )  # fmt: skip


def steps(
    partitioned: tuple[PartitionedNode, ...],
    nodes: tuple[Node, ...],
    runs: tuple[Workload, ...] = (),
    pods: tuple[Pod, ...] = (),
    at: float = NOW,
) -> list[tuple[PartitionAction, str]]:
    snapshot = Snapshot(nodes=nodes, workloads=runs, pods=pods, partitioned=partitioned)
    return [(each.action, each.to) for each in partition_steps(snapshot, (), at)]


def on_its_way(
    since_s: float, *, requested: str = WHOLE, said: ManagerState = ManagerState.SUCCESS, layout: str = WHOLE,
    back: str = WHOLE, to: str = SEVENTHS,
) -> PartitionedNode:  # fmt: skip
    change = PartitionChange(to=to, back=back, since=NOW - since_s)
    return PartitionedNode(node="a", pool=POOL, layout=layout, requested=requested, manager_state=said, change=change)


HELD = a_run("there", 1000, Phase.RUNNING, 60.0)


@pytest.mark.parametrize(
    ("each", "held", "step"),
    [
        (on_its_way(10.0), True, None),
        (on_its_way(10.0), False, (PartitionAction.RELABEL, SEVENTHS)),
        (on_its_way(DRAIN_PATIENCE_S), True, (PartitionAction.GIVE_UP, WHOLE)),
        (on_its_way(10.0, requested=SEVENTHS, said=ManagerState.PENDING), False, None),
        (on_its_way(10.0, requested=SEVENTHS, said=ManagerState.SUCCESS), False, None),
        (on_its_way(10.0, requested=SEVENTHS, layout=SEVENTHS), False, (PartitionAction.UNCORDON, SEVENTHS)),
        (
            on_its_way(10.0, requested=SEVENTHS, said=ManagerState.FAILED),
            False,
            (PartitionAction.REVERT, WHOLE),
        ),
        (
            on_its_way(LEAST_PATIENCE_S, requested=SEVENTHS, said=ManagerState.PENDING),
            False,
            (PartitionAction.REVERT, WHOLE),
        ),
        (on_its_way(1e6, to=WHOLE, said=ManagerState.FAILED), False, None),
        (on_its_way(10.0, to=WHOLE), False, (PartitionAction.UNCORDON, WHOLE)),
    ],
)
def test_a_node_on_its_way_takes_the_step_that_follows_from_what_it_says(
    each: PartitionedNode, held: bool, step: tuple[PartitionAction, str] | None
) -> None:
    node = a_node("a", WHOLE, closed="cordoned", leaving=Leaving(why="new layout", gpus_only=True))
    pods = (a_pod(HELD, node),) if held else ()
    assert steps((each,), (node,), (HELD,), pods) == ([] if step is None else [step])


def test_a_node_sets_out_once_waiting_has_cost_as_much_as_the_change_and_not_before() -> None:
    node = a_node("a", WHOLE)
    early, late = (tuple(a_run(f"r{n}", 142, Phase.PENDING, since_s) for n in range(3)) for since_s in (175.0, 185.0))
    assert steps((resting("a", WHOLE),), (node,), early) == []
    assert steps((resting("a", WHOLE),), (node,), late) == [(PartitionAction.CORDON, SEVENTHS)]
    snapshot = Snapshot(nodes=(node,), workloads=early, pods=(), partitioned=(resting("a", WHOLE),))
    assert NOW < next_decision_at(snapshot, NOW) <= NOW + 30.0


def test_what_a_change_costs_is_said_with_it() -> None:
    node = a_node("a", WHOLE)
    waiting = a_run("first", 142, Phase.PENDING, 3600.0)
    snapshot = Snapshot(nodes=(node,), workloads=(waiting,), pods=(), partitioned=(resting("a", WHOLE),))
    assert decide(snapshot, NOW).partitioning == (
        PartitionStep(
            node="a",
            action=PartitionAction.CORDON,
            to=SEVENTHS,
            why="a goes from the layout all-disabled to all-1g.5gb for first, which have waited 0.142 GPU-hours; "
            "that costs 0.0071: 0.0071 out of use",
        ),
    )


def test_one_that_runs_leaves_only_for_more_than_it_loses_and_only_if_it_saves() -> None:
    node, each = a_node("a", SEVENTHS), resting("a", SEVENTHS)
    large = a_run("large", 1000, Phase.PENDING, 900.0)

    def with_small(ran_s: float, *, saves: bool = True, **changes: object) -> list[tuple[PartitionAction, str]]:
        small = a_run("small", 142, Phase.RUNNING, ran_s, saves=saves, **changes)
        return steps((each,), (node,), (small, large), (a_pod(small, node),))

    assert with_small(600.0) == [(PartitionAction.CORDON, WHOLE)]
    assert with_small(9000.0) == []
    assert with_small(600.0, saves=False) == []
    assert with_small(600.0, priority=5) == []


def test_others_pods_keep_a_node_as_it_is() -> None:
    node, large = a_node("a", SEVENTHS), a_run("large", 1000, Phase.PENDING, 1e5)
    others = replace(a_pod(a_run("x", 142, Phase.RUNNING, 1.0), node), workload_uid="", uid="others-a")
    assert steps((resting("a", SEVENTHS),), (node,), (large,)) == [(PartitionAction.CORDON, WHOLE)]
    assert steps((resting("a", SEVENTHS),), (node,), (large,), (others,)) == []


def test_a_node_that_somebody_else_cordoned_or_whose_manager_is_at_work_is_left_alone() -> None:
    node, small = a_node("a", WHOLE), a_run("small", 142, Phase.PENDING, 1e5)
    assert steps((resting("a", WHOLE),), (replace(node, closed="cordoned"),), (small,)) == []
    assert steps((resting("a", WHOLE, manager_state=ManagerState.PENDING),), (node,), (small,)) == []


def test_a_layout_that_failed_is_not_tried_again_for_an_hour() -> None:
    node, small = a_node("a", WHOLE), a_run("small", 142, Phase.PENDING, 1e5)
    failed = resting("a", WHOLE, failed={SEVENTHS: NOW})
    assert steps((failed,), (node,), (small,), at=NOW + RETRY_S - 1) == []
    assert steps((failed,), (node,), (small,), at=NOW + RETRY_S) == [(PartitionAction.CORDON, SEVENTHS)]


def test_one_node_of_a_small_pool_changes_at_a_time() -> None:
    nodes = tuple(a_node(name, WHOLE) for name in ("a", "b"))
    waiting = tuple(a_run(f"r{n}", 142, Phase.PENDING, 1e5) for n in range(14))
    both = (resting("a", WHOLE), resting("b", WHOLE))
    assert len(steps(both, nodes, waiting)) == 1
    assert steps((on_its_way(10.0), both[1]), nodes, waiting) == [(PartitionAction.RELABEL, SEVENTHS)]


def test_a_run_that_fits_in_another_layout_alone_waits_for_it_and_is_told_so() -> None:
    node = a_node("a", SEVENTHS)
    new = a_run("large", 1000, Phase.PENDING, 0.0)
    new = replace(new, status=replace(new.status, reason=Reason(code=Code.SUBMITTED, message="new")))
    snapshot = Snapshot(nodes=(node,), workloads=(new,), pods=(), partitioned=(resting("a", SEVENTHS),))
    (change,) = decide(snapshot, NOW).changes
    assert change.status is not None
    assert change.status.phase is Phase.PENDING
    assert change.status.reason.message.startswith("it fits where a node's GPUs have the layout all-disabled")
    (change,) = decide(replace(snapshot, partitioned=()), NOW).changes
    assert change.status is not None
    assert change.status.phase is Phase.FAILED
