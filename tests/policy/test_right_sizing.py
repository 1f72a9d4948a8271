"""Runs with `memory: auto` and `cpu: auto`: what they ask for, and what follows a kill at the limit."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.right_sizing import LAST_RUNS, MIB, requests_of
from fairlead.policy.pass_cache import PassCache
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.resources import GpuRequest, Resources, parse_gpu
from fairlead.specs.serving import Serving
from fairlead.specs.training import Retry, Training
from fairlead.state.plan import Change
from fairlead.state.snapshot import (
    Completed,
    Grant,
    Intent,
    Phase,
    Pod,
    PodPhase,
    RankExit,
    Recommendation,
    Requests,
    Snapshot,
    Status,
    Usage,
    Workload,
    with_requests,
)
from tests.builders import GIB, node, status, training

NOW = 1_000_000_000.0


def asking(name: str = "train", **changes: Any) -> Training:
    return training(name, resources=Resources(memory_auto=True, cpu_auto=True, cpu_milli=1000), **changes)


def used(memory_bytes: int, *, at: float = 1.0, cpu_milli: int = 500, ranks: int = 1, name: str = "train") -> Completed:
    usage = Usage(memory_bytes=memory_bytes, cpu_milli=cpu_milli, ranks=ranks)
    return Completed(team="default", name=name, took_s=60.0, at=at, used=usage)


def run(spec: Training, told: Status) -> Workload:
    return Workload(
        uid="r",
        spec=with_requests(spec, told.measured.requests),
        intent=Intent.RUN,
        status=told,
        version=1,
        created_at=NOW,
    )


def decided(workload: Workload, *pods: Pod, completed: tuple[Completed, ...] = ()) -> Change:
    snapshot = Snapshot(nodes=(node(),), workloads=(workload,), pods=pods, completed=completed)
    (found,) = decide(snapshot, NOW).changes
    assert (found,) == decide(snapshot, NOW, PassCache()).changes
    return found


def killed(memory_bytes: int) -> Pod:
    ended = RankExit(rank=0, signal=9, at=NOW, out_of_memory=True)
    return Pod(
        uid="r-0-0", workload_uid="r", attempt=0, index=0, node="node-0", grant=Grant(cpu_milli=1000),
        phase=PodPhase.FAILED, created_at=NOW, started_at=NOW, exits=(ended,),
        usage=Usage(memory_bytes=memory_bytes, cpu_milli=100, ranks=1),
    )  # fmt: skip


def test_a_run_asks_for_the_most_that_its_last_runs_used_and_a_margin() -> None:
    history = (used(GIB, at=2.0), used(2 * GIB, at=1.0), used(GIB, at=3.0, name="train-7"))
    found = requests_of(asking(), history, (node(),))
    assert (found.memory_bytes, found.cpu_milli) == (2464 * MIB, 600)
    assert found.why == (
        "memory 2.41 GiB: 1.2 times what train used in its last 3 runs; "
        "0.6 CPU: 1.2 times its busiest minute in its last 3 runs, 0.5"
    )


def recommending(memory_bytes: int | None, cpu_milli: int | None, *, name: str = "train") -> Recommendation:
    return Recommendation(team="default", name=name, by="it", memory_bytes=memory_bytes, cpu_milli=cpu_milli)


def test_of_what_was_used_and_what_is_recommended_the_larger_counts_and_both_are_told() -> None:
    found = requests_of(asking("train-2"), (used(GIB),), (node(),), (recommending(2 * GIB, 100),))
    assert (found.memory_bytes, found.cpu_milli) == (2272 * MIB, 600)
    assert found.why == (
        "memory 2.22 GiB: 1.1 times what it recommends "
        "(rather than 1.2 GiB, 1.2 times what train used in its last run); "
        "0.6 CPU: 1.2 times its busiest minute in its last run, 0.5 (rather than 0.2 CPU, 1.1 times what it recommends)"
    )


def test_what_is_recommended_for_others_or_says_nothing_leaves_the_defaults() -> None:
    found = requests_of(asking(), (), (node(),), (recommending(GIB, 100, name="other"), recommending(None, None)))
    assert (found.memory_bytes, found.cpu_milli) == (None, None)
    assert found.why == "it says nothing of what train leaves open, so that it gets the defaults"


@pytest.mark.parametrize("amount", [0, 1, 2**50, 2**63 - 1])
def test_whatever_a_program_says_it_used_or_an_object_recommends_its_next_run_can_ask_for(amount: int) -> None:
    spec = training("train", resources=Resources(memory_auto=True, cpu_auto=True, gpu=parse_gpu("auto")))
    usage = Usage(memory_bytes=amount, cpu_milli=amount, gpu_memory_bytes=amount, ranks=1)
    done = replace(used(1), used=usage)
    for seen in (requests_of(spec, (done,), ()), requests_of(spec, (), (node(),), (recommending(amount, amount),))):
        assert with_requests(spec, seen).resources.is_auto
    change = decided(run(spec, status(Phase.PENDING)), completed=(done,))
    assert change.status is not None
    assert change.status.measured.requests is not None


def test_what_is_long_ago_or_of_others_does_not_count() -> None:
    old = tuple(used(20 * GIB, at=float(n)) for n in range(3))
    new = tuple(used(GIB, at=10.0 + n) for n in range(LAST_RUNS))
    others = (used(9 * GIB, at=99.0, name="other"), used(9 * GIB, at=99.0, ranks=8))
    assert requests_of(asking(), (*new, *others, *old), (node(),)).memory_bytes == 1232 * MIB


def test_the_margin_ends_at_the_largest_node() -> None:
    assert requests_of(asking(), (used(30 * GIB),), (node(),)).memory_bytes == 32 * GIB
    assert requests_of(asking(), (used(40 * GIB),), (node(),)).memory_bytes == 48 * GIB


def test_only_what_is_auto_is_chosen() -> None:
    spec = training(resources=Resources(memory_bytes=GIB, cpu_auto=True))
    assert requests_of(spec, (used(2 * GIB),), (node(),)).memory_bytes is None


def test_it_is_decided_once_before_the_run_is_placed() -> None:
    change = decided(run(asking(), status(since=NOW)), completed=(used(GIB),))
    assert change.event is not None
    assert change.event.type == "Sized"
    assert change.status is not None
    assert change.status.phase is Phase.PENDING
    placed = decided(run(asking(), change.status), completed=(used(8 * GIB),))
    assert [each.grant.memory_bytes for each in placed.create] == [1232 * MIB]


def test_the_first_of_its_kind_starts_with_the_defaults() -> None:
    change = decided(run(asking(), status(since=NOW)))
    assert change.event is not None
    assert "gets the defaults" in change.event.reason.message
    assert change.status is not None
    assert [each.grant.memory_bytes for each in decided(run(asking(), change.status)).create] == [0]


def test_a_kill_at_the_limit_raises_it_and_counts_as_no_failure() -> None:
    told = status(Phase.RUNNING, since=NOW, started_at=NOW, requests=Requests(memory_bytes=GIB, why="so"))
    change = decided(run(asking(retry=Retry(infrastructure=0)), told), killed(GIB))
    after = change.status
    assert after is not None
    assert after.phase is Phase.RESTARTING
    assert after.measured.requests is not None
    assert after.measured.requests.memory_bytes == 1.5 * GIB
    assert (after.failures.program, after.failures.disruptions) == (0, 0)
    assert after.measured.usage is not None
    assert after.measured.usage.memory_bytes == GIB
    assert "restarts at once with memory 1.5 GiB: 1 GiB was not enough" in after.reason.message


def test_a_kill_at_all_that_a_node_has_is_a_failure() -> None:
    told = status(Phase.RUNNING, since=NOW, started_at=NOW, requests=Requests(memory_bytes=32 * GIB, why="so"))
    after = decided(run(asking(retry=Retry(infrastructure=0)), told), killed(32 * GIB)).status
    assert after is not None
    assert after.phase is Phase.FAILED


def test_a_kill_at_an_amount_that_was_given_raises_nothing() -> None:
    told = status(Phase.RUNNING, since=NOW, started_at=NOW)
    after = decided(run(training(resources=Resources(memory_bytes=GIB)), told), killed(GIB)).status
    assert after is not None
    assert after.measured.requests is None
    assert after.failures.disruptions == 1


def test_a_run_keeps_the_most_that_any_of_its_starts_used() -> None:
    before = Usage(memory_bytes=3 * GIB, cpu_milli=10, ranks=1)
    told = status(Phase.RUNNING, since=NOW, started_at=NOW, used=before)
    pod = replace(killed(GIB), phase=PodPhase.SUCCEEDED, exits=(RankExit(rank=0, exit_code=0, at=NOW),))
    after = decided(
        run(asking(), replace(told, measured=replace(told.measured, requests=Requests(why="so")))), pod
    ).status
    assert after is not None
    assert after.phase is Phase.SUCCEEDED
    assert after.measured.usage == Usage(memory_bytes=3 * GIB, cpu_milli=100, ranks=1)


def on_gpu(gpu: str = "auto") -> Training:
    return training("train", resources=Resources(gpu=parse_gpu(gpu), cpu_milli=1000))


def used_gpu(gpu_memory_bytes: int | None, *, at: float = 1.0) -> Completed:
    usage = Usage(memory_bytes=GIB, cpu_milli=500, ranks=1, gpu_memory_bytes=gpu_memory_bytes)
    return Completed(team="default", name="train", took_s=60.0, at=at, used=usage)


def test_gpu_memory_follows_what_runs_used_of_one_device() -> None:
    history = (used_gpu(10 * GIB), used_gpu(5 * GIB, at=2.0), used_gpu(None, at=3.0))
    found = requests_of(on_gpu("A100:auto"), history, (node(gpus=1),))
    assert found == Requests(
        gpu_memory_bytes=12 * GIB, why="GPUs with 12 GiB: 1.2 times what train used of one in its last 3 runs"
    )
    spec = with_requests(on_gpu("A100:auto"), found)
    assert spec.resources.gpu == GpuRequest(model="A100", min_memory_bytes=12 * GIB, memory_auto=True)
    assert requests_of(on_gpu("24GB"), history, (node(gpus=1),)).gpu_memory_bytes is None
    unknown = requests_of(on_gpu(), (used_gpu(None),), (node(gpus=1),))
    assert unknown.why == "its earlier runs have told nothing of what train leaves open, so that it gets the defaults"


def test_a_gpu_with_too_little_memory_raises_what_was_chosen_and_counts_as_no_failure() -> None:
    requests = Requests(gpu_memory_bytes=12 * GIB, why="")
    told = status(phase=Phase.RUNNING, requests=requests, started_at=NOW)
    ended = RankExit(rank=0, exit_code=1, at=NOW, tail=("torch.OutOfMemoryError: CUDA out of memory.",))
    pod = replace(killed(GIB), exits=(ended,))
    workload = run(on_gpu(), told)
    snapshot = Snapshot(nodes=(node(gpus=1),), workloads=(workload,), pods=(pod,))
    (found,) = decide(snapshot, NOW).changes
    assert found.status is not None
    assert found.status.measured.requests == Requests(
        gpu_memory_bytes=18 * GIB, why="GPUs with 18 GiB: 12 GiB was not enough"
    )
    assert found.status.failures.program == 0
    fixed = replace(workload, spec=replace(workload.spec, resources=Resources(gpu=parse_gpu("12Gi"), cpu_milli=1000)))
    (found,) = decide(replace(snapshot, workloads=(fixed,)), NOW).changes
    assert found.status is not None
    assert found.status.failures.program == 1


def test_amounts_are_round() -> None:
    found = requests_of(asking(), (used(100 * MIB + 1),), (node(),)).memory_bytes
    assert found == 121 * MIB


def test_replicas_are_given_amounts() -> None:
    with pytest.raises(BrokenRules, match="`auto` is for runs that end"):
        Serving(name="s", run="serve", resources=Resources(memory_auto=True))
