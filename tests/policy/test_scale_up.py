"""Who asks for nodes to come, in which order, and when that is given up."""

from dataclasses import replace
from typing import Any

from fairlead.policy.decide import decide
from fairlead.policy.scaling.scale_up import MOST_PLACEHOLDERS, is_asking
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Training
from fairlead.state.capacity_requests import Amount, CapacityRequest, Growth, Source
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import node, status, training

NOW = 1_000_000_500.0
GPUS = 8


def karpenter(*sources: Source, **changes: Any) -> Growth:
    return Growth(by="Karpenter", look="`kubectl get nodepools`", sources=sources or (Source(name="gpu"),), **changes)


def gang(name: str = "train", nodes: int = 2, *, model: str | None = None, **changes: Any) -> Training:
    gpu = GpuRequest(milli=1000 * GPUS, model=model)
    return training(name, nodes=nodes, resources=Resources(gpu=gpu), **changes)


def run(spec: Training, number: int = 0, **changes: Any) -> Workload:
    first = {"reason": Reason(code=Code.SUBMITTED, message="submitted"), **changes}
    return Workload(
        uid=spec.name, spec=spec, intent=Intent.RUN, status=status(**first), version=1, created_at=float(number)
    )


def world(*runs: Workload, growth: Growth | None, nodes: tuple[Node, ...] = (), **changes: Any) -> Snapshot:
    return Snapshot(nodes=(node("cpu"), *nodes), workloads=runs, **{"pods": (), "growth": growth, **changes})


def after(snapshot: Snapshot, now: float = NOW) -> dict[str, Status]:
    """The statuses after one pass."""
    known = {each.uid: each.status for each in snapshot.workloads}
    return known | {c.workload_uid: c.status for c in decide(snapshot, now).changes if c.status is not None}


def settled(snapshot: Snapshot, now: float = NOW) -> Snapshot:
    found = after(snapshot, now)
    return replace(snapshot, workloads=tuple(replace(each, status=found[each.uid]) for each in snapshot.workloads))


def holder(node_name: str) -> Pod:
    uuids = tuple(f"{node_name}-gpu-{index}" for index in range(GPUS))
    grant = Grant(gpu_uuids=uuids, gpu_milli=1000)
    return Pod(
        uid="o", workload_uid="", attempt=0, index=0, node=node_name, grant=grant, phase=PodPhase.RUNNING, created_at=0
    )


def test_without_an_autoscaler_what_no_node_holds_fails_as_ever() -> None:
    found = after(world(run(gang()), growth=None))["train"]
    assert found.phase is Phase.FAILED
    assert found.reason.code is Code.CANNOT_FIT


def test_with_one_it_asks_for_nodes_and_says_so_once() -> None:
    snapshot = settled(world(run(gang()), growth=karpenter()))
    found = snapshot.workloads[0]
    assert is_asking(found)
    assert found.status.queue.nodes_requested_at == NOW
    assert found.status.reason.code is Code.WAITING_FOR_NODES
    assert "Karpenter is asked for nodes with 2 placeholder pods" in found.status.reason.message
    assert decide(snapshot, NOW + 60).changes == ()


def test_what_it_asks_with_is_said_anew_when_it_changes() -> None:
    growth = Growth(by="the Cluster Autoscaler", look="x", sources=(Source(name="groups"),), by_request=True)
    snapshot = settled(world(run(gang()), growth=growth))
    assert "is asked for nodes with a ProvisioningRequest" in snapshot.workloads[0].status.reason.message
    assert decide(snapshot, NOW + 60).changes == ()
    snapshot = settled(replace(snapshot, growth=replace(growth, by_request=False)), NOW + 60)
    assert "is asked for nodes with 2 placeholder pods" in snapshot.workloads[0].status.reason.message
    assert snapshot.workloads[0].status.queue.nodes_requested_at == NOW


def test_a_run_that_waits_for_others_to_end_asks_too() -> None:
    snapshot = world(run(gang(nodes=1)), growth=karpenter(), nodes=(node("a", gpus=GPUS),), pods=(holder("a"),))
    assert is_asking(settled(snapshot).workloads[0])


def test_when_the_nodes_are_there_it_starts_and_asks_no_more() -> None:
    asking = settled(world(run(gang()), growth=karpenter()))
    there = replace(asking, nodes=(node("a", gpus=GPUS), node("b", gpus=GPUS)))
    (change,) = decide(there, NOW + 60).changes
    assert {member.node for member in change.create} == {"a", "b"}
    assert change.status is not None
    assert change.status.queue.nodes_requested_at is None


def test_an_autoscaler_that_brings_nothing_in_time_is_given_up() -> None:
    asking = settled(world(run(gang()), growth=karpenter(patience_s=600, pause_s=300)))
    assert decide(asking, NOW + 599).changes == ()
    found = after(asking, NOW + 600)["train"]
    assert (found.phase, found.queue.nodes_requested_at, found.queue.request_again_at) == (
        Phase.PENDING,
        None,
        NOW + 900,
    )
    assert found.reason.code is Code.NODES_NOT_COMING
    assert found.reason.message == "Karpenter was asked for nodes and brought none within 10m"
    assert found.reason.remedy is not None
    assert "kubectl get nodepools" in found.reason.remedy


def test_one_that_says_why_it_cannot_is_given_up_sooner_and_quoted() -> None:
    asking = settled(world(run(gang()), growth=karpenter()))
    said = replace(
        asking, capacity_requests=(CapacityRequest(workload_uid="train", obstacle="no instance type has 8 GPUs"),)
    )
    assert decide(said, NOW + 59).changes == ()
    message = after(said, NOW + 60)["train"].reason.message
    assert message == "Karpenter was asked for nodes and brings none; it says: no instance type has 8 GPUs"


def test_a_gang_larger_than_the_bound_of_placeholders_asks_alone() -> None:
    large = run(gang("large", nodes=MOST_PLACEHOLDERS + 1), 0)
    snapshot = settled(world(large, run(gang("small"), 1), growth=karpenter()))
    assert [is_asking(each) for each in snapshot.workloads] == [True, False]


def test_it_is_asked_again_after_the_pause_and_says_nothing_new_before() -> None:
    asking = settled(world(run(gang()), growth=karpenter(patience_s=600, pause_s=300)))
    tired = settled(asking, NOW + 600)
    assert decide(tired, NOW + 899).changes == ()
    assert after(tired, NOW + 900)["train"].queue.nodes_requested_at == NOW + 900


def test_nodes_that_come_one_by_one_keep_the_hope_up() -> None:
    asking = settled(world(run(gang()), growth=karpenter(patience_s=600)))
    half = replace(asking, capacity_requests=(CapacityRequest(workload_uid="train", bound_at=NOW + 500),))
    assert decide(half, NOW + 1099).changes == ()
    assert after(half, NOW + 1100)["train"].reason.code is Code.NODES_NOT_COMING


def test_what_the_quota_refuses_is_not_asked_for() -> None:
    asking = settled(world(run(gang()), growth=karpenter()))
    refused = replace(
        asking,
        capacity_requests=(CapacityRequest(workload_uid="train", refused="the quota of namespace a is used up"),),
    )
    found = after(refused, NOW + 1)["train"]
    assert found.queue.nodes_requested_at is None
    assert "placeholders are refused as its pods would be: the quota of namespace a is used up" in found.reason.message


def test_limits_that_never_hold_the_gang_fail_it_with_both_numbers() -> None:
    pool = Source(name="NodePool gpu", most=Amount(gpus=8), left=Amount(gpus=8))
    found = after(world(run(gang()), growth=karpenter(pool)))["train"]
    assert found.phase is Phase.FAILED
    assert "the limits of NodePool gpu allow 8 GPUs in all" in found.reason.message
    assert "the gang needs 16 GPUs" in found.reason.message
    assert found.reason.remedy == ("Raise the limit of GPUs of NodePool gpu, or ask for less (`nodes` or `resources`).")


def test_limits_that_others_use_up_are_told_and_waited_for() -> None:
    pool = Source(name="NodePool gpu", most=Amount(gpus=32), left=Amount(gpus=0))
    snapshot = settled(world(run(gang()), growth=karpenter(pool)))
    found = snapshot.workloads[0].status
    assert (found.phase, found.queue.nodes_requested_at) == (Phase.PENDING, None)
    assert "more nodes cannot come: the limits of NodePool gpu allow 0 GPUs more" in found.reason.message
    assert decide(snapshot, NOW + 60).changes == ()


def test_a_model_that_no_pool_brings_fails_at_once() -> None:
    pool = Source(name="NodePool gpu", models=("NVIDIA-A100",))
    found = after(world(run(gang(model="H100")), growth=karpenter(pool)))["train"]
    assert found.phase is Phase.FAILED
    assert "Karpenter brings no H100 (NodePool gpu brings NVIDIA-A100)" in found.reason.message
    assert is_asking(settled(world(run(gang(model="A100")), growth=karpenter(pool))).workloads[0])


def test_those_behind_ask_too_while_all_before_them_do() -> None:
    runs = tuple(run(gang(f"run-{number}"), number) for number in range(3))
    snapshot = settled(world(*runs, growth=karpenter()))
    assert [is_asking(each) for each in snapshot.workloads] == [True, True, True]
    assert snapshot.workloads[1].status.reason.code is Code.WAITING_FOR_TURN
    assert decide(snapshot, NOW + 60).changes == ()


def test_nobody_asks_behind_one_that_waits_for_the_nodes_that_are_there() -> None:
    nodes, pool = (node("a", gpus=GPUS),), Source(name="gpu", most=Amount(gpus=0), left=Amount(gpus=0))
    first, second = run(gang("first", nodes=1), 0), run(training("second", resources=Resources(cpu_milli=9000)), 1)
    snapshot = settled(world(first, second, growth=karpenter(pool), nodes=nodes, pods=(holder("a"),)))
    assert [is_asking(each) for each in snapshot.workloads] == [False, False]


def test_one_that_only_nodes_could_hold_that_do_not_come_holds_nobody_up() -> None:
    small = run(training("small", resources=Resources(cpu_milli=1000)), 1)
    asking = settled(world(run(gang()), small, growth=karpenter(patience_s=600)))
    assert asking.workloads[1].status.phase is Phase.PENDING
    tired = after(asking, NOW + 600)
    assert tired["train"].reason.code is Code.NODES_NOT_COMING
    assert tired["small"].phase is Phase.STARTING


def test_placeholders_of_all_runs_together_are_bounded() -> None:
    many = MOST_PLACEHOLDERS // 100
    runs = tuple(run(gang(f"run-{number:02}", nodes=100), number) for number in range(many + 2))
    assert [is_asking(each) for each in settled(world(*runs, growth=karpenter())).workloads].count(True) == many


def test_a_suspended_run_asks_for_nothing_and_at_once_again_when_resumed() -> None:
    asking = settled(world(run(gang()), growth=karpenter(patience_s=600)))
    tired = settled(asking, NOW + 600)
    suspended = settled(replace(tired, workloads=(replace(tired.workloads[0], intent=Intent.SUSPEND),)), NOW + 601)
    assert suspended.workloads[0].status.queue.request_again_at is None
    resumed = replace(suspended, workloads=(replace(suspended.workloads[0], intent=Intent.RUN),))
    assert is_asking(settled(settled(resumed, NOW + 602), NOW + 603).workloads[0])


def test_nodes_to_come_that_are_too_dear_or_of_unknown_price_are_not_asked_for() -> None:
    bounded = gang(capacity=Capacity(max_price=2.0))
    sources = (Source(name="NodePool a", price_per_hour=3.5), Source(name="NodePool b"))
    found = after(world(run(bounded), growth=karpenter(*sources)))["train"]
    assert found.queue.nodes_requested_at is None
    assert (
        "none that Karpenter brings is within its `max_price` of $2.00 an hour: those of NodePool a cost $3.50; "
        "those of NodePool b have no known price" in found.reason.message
    )
    cheap = Source(name="NodePool c", price_per_hour=1.5)
    assert after(world(run(bounded), growth=karpenter(*sources, cheap)))["train"].queue.nodes_requested_at == NOW
