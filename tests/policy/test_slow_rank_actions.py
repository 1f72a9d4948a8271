"""A slow rank is reported with its price, from the steps that all ranks have reported."""

from dataclasses import replace

from fairlead.policy.health.gang_times import GangTimes, OwnTimes
from fairlead.policy.kinds import slow_rank
from fairlead.state.reasons import Code
from fairlead.state.slow_ranks import SlowRankReport
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, Workload
from tests.builders import node, status, training

SLOW = SlowRankReport(rank=3, factor=1.3, since=100, step_s=1.0, lost_s=0.2)
NODES = tuple(replace(node(name), price_per_hour=2.0) for name in ("a", "b", "c"))


def running() -> tuple[Workload, tuple[Pod, ...]]:
    run = Workload(
        uid="u", spec=training(nodes=2, ranks_per_node=2), intent=Intent.RUN, version=1, created_at=0.0,
        status=status(Phase.RUNNING, since=0.0),
        progress=Progress(step=200, checkpoint_step=190, slow_rank=SLOW),
    )  # fmt: skip
    pods = tuple(
        Pod(uid=f"u-0-{index}", workload_uid="u", attempt=0, index=index, node="ab"[index], grant=Grant(),
            phase=PodPhase.RUNNING, created_at=0.0)
        for index in range(2)
    )  # fmt: skip
    return run, pods


def test_the_reason_names_rank_node_factor_and_what_a_step_would_take() -> None:
    run, pods = running()
    why = slow_rank.reason(run, pods, NODES)
    assert why is not None
    assert why.code is Code.SLOW_RANK
    assert why.message.startswith(
        "rank 3 on b takes 1.30 times as long as its peers since step 100; without it a step would take 0.8 s, not 1: $"
    )


def test_steps_count_once_all_ranks_have_reported_them() -> None:
    times, last = GangTimes(3), None
    for step in range(10, 400, 7):  # reports overlap, and those of rank 1 are late
        reports = {}
        for rank in range(3):
            end = step - (3 if rank == 1 else 0)
            own = [10_000 + 37 * (number * (rank + 1) % 7) for number in range(end - 9, end + 1)]
            if rank == 2:
                own = [round(us * 1.3) if end - 9 + place > 200 else us for place, us in enumerate(own)]
            reports[rank] = OwnTimes(step=end, own_us=tuple(own), step_s=0.02)
        last = times.observe(reports)
        if step < 200:
            assert last is None
    assert last is not None
    assert last.rank == 2
    assert 199 <= last.since <= 203
    assert abs(last.factor - 1.3) < 0.02
    assert times.observe({0: reports[0]}) is None  # a rank that does not report leaves no one to judge
