"""Which split of several a run tries next, what rules one out, and which one it keeps."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.training import judge
from fairlead.policy.next_decision import decision_times
from fairlead.policy.strategy.probing import MOST_S, describe_probing
from fairlead.specs.parallel import Parallel, Shard, SplitCandidate
from fairlead.specs.training import Retry, Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import (
    Grant,
    Intent,
    Phase,
    Pod,
    PodPhase,
    Progress,
    RankExit,
    Snapshot,
    Status,
    Workload,
)
from fairlead.state.split_probing import Probed, in_force, untried
from tests.builders import node, status, training

NOW = 1_000_000_100.0
PARALLEL = Parallel(
    batch=16,
    data=4,
    micro_batch=4,
    candidates={
        "whole": SplitCandidate(shard=Shard.NONE, estimate_s=0.5),
        "sharded": SplitCandidate(shard=Shard.GRADIENTS, estimate_s=0.4),
        "halves": SplitCandidate(data=2, tensor=2, shard=Shard.GRADIENTS),
    },
)
SHARDED, WHOLE, HALVES = "sharded", "whole", "halves"


class Probing:
    """A run of four ranks in one pod, whose starts end as a test says."""

    def __init__(self, spec: Training) -> None:
        self.now = NOW
        running = status(Phase.RUNNING, since=NOW, started_at=NOW)
        self.run: Workload = Workload(uid="u", spec=spec, intent=Intent.RUN, status=running, version=1, created_at=NOW)
        self.told: list[str] = []

    @property
    def status(self) -> Status:
        return self.run.status

    @property
    def split(self) -> Parallel | None:
        return self.run.gang.parallel

    def shard(self) -> Shard | None:
        return None if self.split is None else self.split.shard

    def pod(self, phase: PodPhase = PodPhase.RUNNING, *exits: RankExit) -> Pod:
        return Pod(
            uid=f"u-{self.status.attempt}-0", workload_uid="u", attempt=self.status.attempt, index=0, node="node-0",
            grant=Grant(), phase=phase, created_at=self.now, started_at=self.now, exits=exits,
        )  # fmt: skip

    def see(self, *pods: Pod) -> Change | None:
        """Judge what there is, and start the run again where that is the answer."""
        change = judge(self.run, pods, Snapshot(nodes=(node(),), workloads=(self.run,), pods=pods), self.now)
        if change is None or change.status is None:
            return change
        if change.event is not None:
            self.told.append(f"{change.event.type}: {change.event.reason.message}")
        after = change.status
        if after.phase is Phase.RESTARTING:
            after = replace(after, phase=Phase.RUNNING, since=self.now)
        self.run = replace(self.run, status=after)
        return change

    def takes(self, seconds: float) -> Change | None:
        progress = Progress(probe_attempt=self.status.attempt, probe_step_s=seconds)
        self.run = replace(self.run, progress=progress)
        return self.see(self.pod())

    def fails(self, *, signal: int | None = None, tail: str = "", phase: PodPhase = PodPhase.FAILED) -> Change | None:
        code = None if signal else 1
        exits = (RankExit(rank=0, exit_code=code, signal=signal, at=self.now, tail=(tail,)),)
        return self.see(self.pod(phase, *(exits if phase is PodPhase.FAILED else ())))


@pytest.fixture
def probing() -> Probing:
    return Probing(training(parallel=PARALLEL, ranks_per_node=4))


def test_splits_are_tried_in_the_order_of_their_estimates_and_the_fastest_is_kept(probing: Probing) -> None:
    assert probing.split == Parallel(batch=16, data=4, micro_batch=4, shard=Shard.GRADIENTS)
    probing.takes(0.45)
    assert probing.split == Parallel(batch=16, data=4, micro_batch=4, shard=Shard.NONE)
    probing.takes(0.3)
    assert probing.split == Parallel(batch=16, data=2, tensor=2, micro_batch=4, shard=Shard.GRADIENTS)
    probing.takes(0.9)
    assert probing.status.measured.probing is not None
    assert probing.status.measured.probing.chosen == WHOLE
    assert probing.split == Parallel(batch=16, data=4, micro_batch=4, shard=Shard.NONE)
    assert untried(probing.run.spec, probing.status.measured.probing) == ()
    assert probing.told == [
        "SplitProbed: sharded (data 4 with gradients sharded, micro-batch 4) takes 450 ms a step, 400 ms by estimate; "
        "next is whole (data 4 with whole copies, micro-batch 4)",
        "SplitProbed: whole (data 4 with whole copies, micro-batch 4) takes 300 ms a step, 500 ms by estimate; "
        "next is halves (data 2 with gradients sharded, tensor 2, micro-batch 2 x 4)",
        "SplitChosen: whole (data 4 with whole copies, micro-batch 4) is kept: it takes 300 ms a step, 500 ms by "
        "estimate; sharded takes 450 ms a step, 400 ms by estimate; halves takes 900 ms a step",
    ]
    assert describe_probing(probing.run.spec, probing.status.measured.probing)[0].startswith(
        "whole (data 4 with whole copies"
    )


def test_a_split_that_fails_is_ruled_out_and_counts_as_no_failure(probing: Probing) -> None:
    probing.fails(tail="torch.OutOfMemoryError: CUDA out of memory.")
    probing.fails(tail="Misuse: run.parallelize() copies no tensor parallel layers")
    probing.takes(2.0)
    found = probing.status.measured.probing
    assert found is not None
    assert found.chosen == HALVES
    assert found.tried[0] == Probed(name=SHARDED, problem="rank 0 of 4 ran out of GPU memory")
    assert "copies no tensor parallel layers" in (found.tried[1].problem or "")
    assert (probing.status.failures.program, probing.status.failures.disruptions, probing.status.failures.last) == (
        0,
        0,
        None,
    )
    assert "sharded is ruled out: rank 0 of 4 ran out of GPU memory" in probing.told[-1]


def test_a_run_fails_when_no_split_comes_to_a_step(probing: Probing) -> None:
    for _ in range(3):
        change = probing.fails(tail="ValueError: no data")
    assert change is not None
    assert probing.status.phase is Phase.FAILED
    assert probing.status.reason.code is Code.PROGRAM_FAILED
    assert probing.status.reason.message.startswith(
        "none of 3 splits could be run: halves (data 2 with gradients sharded, tensor 2, micro-batch 2 x 4) is ruled "
        "out: rank 0 of 4 failed with exit code 1: ValueError: no data; sharded: rank 0 of 4 failed"
    )


def test_a_kill_has_the_same_split_tried_again_and_a_second_one_rules_it_out(probing: Probing) -> None:
    probing.fails(signal=9)
    assert probing.shard() is Shard.GRADIENTS
    assert probing.told[-1].startswith(
        "SplitProbed: sharded (data 4 with gradients sharded, micro-batch 4) is tried ag"
    )
    probing.fails(signal=9)
    assert probing.shard() is Shard.NONE
    probing.fails(signal=9)  # each has its own second try
    assert probing.shard() is Shard.NONE


def test_a_lost_pod_is_a_failure_as_ever_and_the_same_split_is_tried_again(probing: Probing) -> None:
    probing.takes(0.5)
    probing.fails(phase=PodPhase.LOST)
    assert probing.status.failures.disruptions == 1
    assert untried(probing.run.spec, probing.status.measured.probing) == (WHOLE, HALVES)


def test_a_figure_of_another_start_says_nothing_of_this_one(probing: Probing) -> None:
    probing.takes(0.5)
    assert probing.see(probing.pod()) is None
    assert untried(probing.run.spec, probing.status.measured.probing) == (WHOLE, HALVES)


def test_a_program_that_tells_of_no_step_is_ruled_out(probing: Probing) -> None:
    probing.see(probing.pod(PodPhase.SUCCEEDED))
    assert "ended before a step was over" in probing.told[-1]
    seen = Snapshot(nodes=(node(),), workloads=(probing.run,), pods=(probing.pod(),))
    assert NOW + MOST_S in set(decision_times(seen, NOW))
    probing.now += MOST_S
    probing.see(probing.pod())
    assert "told of too few steps within 30m" in probing.told[-1]


def test_another_number_of_ranks_has_them_tried_anew(probing: Probing) -> None:
    for seconds in (0.4, 0.5, 0.6):
        probing.takes(seconds)
    spec, found = probing.run.spec, probing.status.measured.probing
    assert in_force(spec, found).shard is Shard.GRADIENTS
    assert untried(spec, found) == ()
    assert untried(replace(spec, nodes=2), found) == (SHARDED, WHOLE, HALVES)
    # An estimate that is another now, or another order of names, changes nothing.
    assert spec.parallel is not None
    again = {name: replace(each, estimate_s=1.0) for name, each in reversed([*spec.parallel.candidates.items()])}
    assert untried(replace(spec, parallel=replace(spec.parallel, candidates=again)), found) == ()


def test_a_kept_split_fails_as_any_other_run(probing: Probing) -> None:
    for seconds in (0.4, 0.5, 0.6):
        probing.takes(seconds)
    probing.fails(tail="ValueError: later")
    assert probing.status.phase is Phase.FAILED
    assert probing.status.failures.program == 1


def test_a_run_stops_between_two_splits_when_asked_to(probing: Probing) -> None:
    probing.run = replace(probing.run, intent=Intent.STOP)
    probing.takes(0.4)
    assert probing.status.phase is Phase.STOPPING
    assert probing.status.measured.probing is None


def test_a_start_is_placed_again_at_once() -> None:
    spec = training(parallel=PARALLEL, ranks_per_node=4, retry=Retry(backoff_s=60))
    probing = Probing(spec)
    change = probing.takes(0.4)
    assert change is not None
    assert change.status is not None
    restarting = replace(probing.run, status=change.status)
    plan = decide(Snapshot(nodes=(node(),), workloads=(restarting,), pods=()), NOW)
    (started,) = plan.changes
    assert started.status is not None
    assert (started.status.phase, started.status.attempt) == (Phase.STARTING, 1)
