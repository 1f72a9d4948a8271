"""Gangs whose nodes a test before the start has named."""

from typing import Any

import pytest

from fairlead.cluster.contract import environment
from fairlead.policy.decide import decide
from fairlead.policy.kinds.preflights import MOST_TESTS, SAYINGS
from fairlead.runtime import shim
from fairlead.specs.preflight import Preflight
from fairlead.specs.resources import Resources
from fairlead.specs.training import Retry, Training
from fairlead.state.node_health import FailureCause
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Snapshot, Status, Workload
from tests.builders import node, status, training

NOW = 2_000_000_000.0
SLOW, FAULTY = "preflight, slow: its network is slow", "preflight, faulty: its GPU 0 gave 3 wrong products of 99"
TESTED = Preflight(network_s=60.0)
NODES = "abcd"


def gang_to_test(**changes: Any) -> Training:
    return training("train", nodes=2, resources=Resources(cpu_milli=8000), preflight=TESTED, **changes)


def run_of(spec: Training, **changes: Any) -> Workload:
    changes = {"since": NOW - 10, **changes}
    return Workload(
        uid="u", spec=spec, intent=Intent.RUN, version=7, created_at=NOW - 60,
        status=status(changes.pop("phase", Phase.STARTING), **changes),
    )  # fmt: skip


def pod(index: int, on: str, message: str | None = None, attempt: int = 0) -> Pod:
    return Pod(
        uid=f"u-{attempt}-{index}", workload_uid="u", attempt=attempt, index=index, node=on,
        grant=Grant(cpu_milli=8000), phase=PodPhase.STARTING if message is None else PodPhase.FAILED,
        created_at=NOW - 10, message=message,
    )  # fmt: skip


def decided(run: Workload, *pods: Pod, num_nodes: int = 4) -> Change | None:
    nodes = tuple(node(name, cpu_milli=8000) for name in NODES[:num_nodes])
    changes = decide(Snapshot(nodes=nodes, workloads=(run,), pods=pods), NOW).changes
    return changes[0] if changes else None


def after(run: Workload, *pods: Pod, num_nodes: int = 4) -> tuple[Change, Status]:
    change = decided(run, *pods, num_nodes=num_nodes)
    assert change is not None
    assert change.status is not None
    return change, change.status


def restarting(code: Code, **changes: Any) -> Workload:
    because = Reason(code=code, message="its node was named")
    return run_of(
        gang_to_test(), phase=Phase.RESTARTING, attempt=1, avoids=("b",), preflights=1, last_failure=because,
        retry_at=NOW, **changes,
    )  # fmt: skip


def test_a_slow_node_is_avoided_and_charged_and_costs_the_run_no_retry() -> None:
    run = run_of(gang_to_test(retry=Retry(infrastructure=0)))
    change, new = after(run, pod(0, "a"), pod(1, "b", SLOW))
    assert (new.phase, new.attempt, new.failures.avoided_nodes, new.failures.preflights) == (
        Phase.RESTARTING,
        1,
        ("b",),
        1,
    )
    assert (new.failures.disruptions, new.failures.program, new.failures.is_tested) == (0, 0, False)
    assert new.reason.message == (
        "the test before the start names pod 1 of 2 on b: its network is slow; it restarts at once"
    )
    assert change.incident is not None
    assert (change.incident.cause, change.incident.nodes) == (FailureCause.PREFLIGHT, ("b",))
    assert change.incident.is_charged
    assert [notice.pod_uid for notice in change.terminate] == ["u-0-0"]


def test_the_gang_starts_on_other_nodes_and_tests_these() -> None:
    change, new = after(restarting(Code.NODE_SLOW), num_nodes=3)
    assert {placed.node for placed in change.create} == {"a", "c"}
    assert not new.failures.is_tested


def test_where_only_slow_nodes_are_free_it_starts_there_without_another_test_and_says_so() -> None:
    change, new = after(restarting(Code.NODE_SLOW), num_nodes=2)
    assert {placed.node for placed in change.create} == {"a", "b"}
    assert new.failures.is_tested
    assert new.reason.message.endswith("nothing else is free, so it starts on b although a test named it slow")


def test_a_gang_waits_for_another_node_rather_than_for_a_gpu_that_computes_wrongly() -> None:
    change, new = after(restarting(Code.GPU_FAULTY), num_nodes=2)
    assert change.create == ()
    assert new.phase in (Phase.RESTARTING, Phase.PENDING)
    change, _ = after(restarting(Code.GPU_FAULTY), num_nodes=3)
    assert {placed.node for placed in change.create} == {"a", "c"}


def test_a_faulty_gpu_outweighs_a_slow_node_of_the_same_test() -> None:
    change, new = after(run_of(gang_to_test()), pod(0, "a", SLOW), pod(1, "b", FAULTY))
    assert (new.reason.code, new.failures.avoided_nodes) == (Code.GPU_FAULTY, ("b",))
    assert change.incident is not None
    assert change.incident.nodes == ("b",)


def test_after_several_tests_that_name_slow_nodes_the_gang_starts_as_it_is() -> None:
    run = run_of(gang_to_test(), attempt=2, preflights=MOST_TESTS - 1)
    _, new = after(run, pod(0, "a", attempt=2), pod(1, "b", SLOW, attempt=2))
    assert new.failures.is_tested
    _, new = after(run, pod(0, "a", attempt=2), pod(1, "b", FAULTY, attempt=2))
    assert not new.failures.is_tested


def test_a_program_that_has_started_cannot_have_its_node_avoided_by_such_a_message() -> None:
    run = run_of(gang_to_test(), phase=Phase.RUNNING, is_tested=True)
    _, new = after(run, pod(0, "a"), pod(1, "b", SLOW))
    assert new.failures.disruptions == 1


def test_a_run_without_a_test_fails_to_start_whatever_its_pod_says() -> None:
    run = run_of(training("train", nodes=2))
    _, new = after(run, pod(0, "a"), pod(1, "b", SLOW))
    assert new.failures.last is not None
    assert new.failures.last.code is Code.START_FAILED


def test_a_placed_gang_says_what_is_tested_once() -> None:
    run = run_of(gang_to_test(), reason=Reason(code=Code.PLACED, message="placed"))
    change, new = after(run, pod(0, "a"), pod(1, "b"))
    assert new.reason.code is Code.PREPARING
    assert new.reason.message == ("its nodes are tested before the program starts: the network for at most 1m")
    assert change.event is not None
    assert change.event.type == "Preparing"
    assert decided(run_of(gang_to_test(), reason=new.reason), pod(0, "a"), pod(1, "b")) is None


def test_pods_test_until_the_program_has_started_once() -> None:
    def variables(run: Workload) -> dict[str, str]:
        return environment(
            run, attempt=0, index=0, pod_uid="p", pod_dir="/p", run_dir="/r", checkpoint_to=None, master=("m", 1),
            hosts="m", key_file="/k", data_dir="/d", secrets_dir="/s",
        )  # fmt: skip

    assert variables(run_of(gang_to_test()))["FAIRLEAD_PREFLIGHT"] == '{"network_s": 60.0}'
    assert "FAIRLEAD_PREFLIGHT" not in variables(run_of(gang_to_test(), is_tested=True))


def test_the_loop_reads_what_supervising_processes_say() -> None:
    assert set(SAYINGS) == set(shim.PREFLIGHT.values())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"nodes": 1, "preflight": TESTED}, "measures between nodes; give `nodes: 2` or more"),
        ({"nodes": 2, "preflight": Preflight(gpu_s=60.0)}, "multiplies matrices on GPUs"),
    ],
)
def test_a_test_of_what_a_gang_has_not_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        training("train", **changes)
