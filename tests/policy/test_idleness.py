"""Runs that leave idle what they hold: when that is so, what is said of it and its cause, and what follows."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.kinds.idleness import UsageSample, cause, coarsened, idleness, reason
from fairlead.policy.pass_cache import PassCache
from fairlead.policy.scaling.elastic import may_grow
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Idle, Training, WhenIdle
from fairlead.state.idleness import Idleness
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Phase, Pod, PodPhase, Progress, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
IDLE = Idleness(busy=0.2, steps=40)
PRICED = node(gpus=4, price_per_hour=8.0)


def samples(*busy: float, every_s: float = 60.0, **facts: object) -> list[UsageSample]:
    """One after the other, the last one now."""
    first = NOW - every_s * (len(busy) - 1)
    return [
        UsageSample(at=first + every_s * index, span_s=every_s, busy=each, **facts)  # type: ignore[arg-type]
        for index, each in enumerate(busy)
    ]


def running(idle: Idleness | None = IDLE, *, num_nodes: int = 1, spec: Training | None = None) -> Workload:
    spec = spec or training("net", resources=Resources(gpu=GpuRequest(milli=2000)))
    nodes = None if spec.most_nodes is None else num_nodes
    return Workload(
        uid="net", spec=spec, intent=Intent.RUN, version=1, created_at=NOW, idle=idle,
        progress=Progress(step=100, checkpoint_step=90, updated_at=NOW),
        status=status(Phase.RUNNING, since=NOW - 7200.0, nodes=nodes),
    )  # fmt: skip


def elastic(**changes: object) -> Training:
    return training("net", nodes=1, most_nodes=4, resources=Resources(gpu=GpuRequest(milli=1000)), **changes)


def seen(run: Workload) -> Snapshot:
    pods = tuple(
        Pod(
            uid=f"net-0-{index}", workload_uid="net", attempt=0, index=index, node="node-0",
            grant=Grant(gpu_uuids=(f"node-0-gpu-{index}",), gpu_milli=1000), phase=PodPhase.RUNNING,
            created_at=NOW - 7200.0, started_at=NOW - 7200.0, active_at=NOW,
        )
        for index in range(run.gang.nodes)
    )  # fmt: skip
    return Snapshot(nodes=(PRICED,), workloads=(run,), pods=pods)


def test_a_run_is_idle_once_the_mean_of_its_time_is_below_its_threshold() -> None:
    wish = Idle(for_s=600.0)
    assert idleness(samples(*[0.3] * 9), wish, NOW) == Idleness(busy=0.3, is_silent=True)
    assert idleness(samples(*[0.3] * 8), wish, NOW) is None, "so much was not measured"
    assert idleness(samples(*[0.0] * 9, *[0.3] * 5, *[0.8] * 5), wish, NOW) is None, "what is older does not count"
    assert idleness(samples(*[0.0, 1.0] * 8), wish, NOW) is None
    assert idleness(samples(*[0.3] * 9), Idle(for_s=600.0, below=0.25), NOW) is None
    assert idleness([], wish, NOW) is None


def test_a_gap_is_neither_busy_nor_idle() -> None:
    found = samples(0.1, every_s=60.0)
    assert idleness(found, Idle(for_s=600.0), NOW) is None


def test_samples_that_are_joined_tell_the_same_mean() -> None:
    found = samples(*[0.1, 0.5, 0.3] * 7, every_s=10.0)
    few = coarsened(found, 10)
    assert len(few) <= 10
    assert sum(each.span_s for each in few) == sum(each.span_s for each in found)
    wish = Idle(for_s=210.0)
    before, after = idleness(found, wish, NOW), idleness(few, wish, NOW)
    assert before is not None
    assert after is not None
    assert before.busy == after.busy == 0.3


def with_facts(**last: float) -> list[UsageSample]:
    """Ten minutes at a tenth, at whose end the program has told this."""
    found = samples(*[0.1] * 10, active_at=NOW, step=0, saving_s=0.0)
    return [*found[:-1], replace(found[-1], **last)]  # type: ignore[arg-type] # what Sample takes


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (with_facts(step=50, saving_s=400.0), "it waits for its checkpoints 67% of the time"),
        (with_facts(step=50, loading_s=480.0), "it waits for data 80% of the time"),
        (with_facts(step=0), "it has made no progress in all that time, so it hangs or waits for something outside"),
        (samples(*[0.1] * 10), "it has made no progress in all that time, so it hangs or waits for something outside"),
        (
            samples(*[0.1] * 10, active_at=NOW, cores=0.97),
            "its processor cores are 97% busy, so that what prepares its data is short of them",
        ),
        (with_facts(step=50, loading_s=20.0), "it continues, with 50 steps, and is idle between or within them"),
    ],
)
def test_the_cause_is_named_where_it_is_known(found: list[UsageSample], said: str) -> None:
    idle = idleness(found, Idle(for_s=600.0), NOW)
    assert idle is not None
    assert cause(idle) == said


def test_no_cause_is_made_up() -> None:
    idle = idleness(samples(*[0.1] * 10, active_at=NOW, cores=0.2), Idle(for_s=600.0), NOW)
    assert idle is not None
    assert cause(idle) is None


def test_it_is_told_with_the_dollars_of_what_is_idle() -> None:
    found = reason(running(), (PRICED,))
    assert found is not None
    assert found.code is Code.IDLE
    # Two GPUs of four, 80 % idle, of a node for $8 an hour.
    assert found.message == (
        "its GPUs were 20% busy in the last 15m: it continues, with 40 steps, and is idle between or within them; "
        "what is idle costs $3.20 an hour"
    )
    assert reason(running(None), (PRICED,)) is None


def test_an_event_tells_it_once_and_again_when_it_has_lasted_twice_as_long() -> None:
    (change,) = decide(seen(running()), NOW).changes
    assert change.event is not None
    assert change.event.type == "Idle"
    assert change.terminate == ()
    assert change.status is not None
    told = replace(running(), status=change.status)
    assert decide(seen(told), NOW + 60.0).changes == ()
    assert decide(seen(told), NOW + 7200.0).changes != ()
    (over,) = decide(seen(replace(told, idle=None)), NOW + 60.0).changes
    assert over.event is None
    assert over.status is not None
    assert over.status.warning.reason is None


def test_a_cache_of_passes_sees_that_a_run_has_become_idle() -> None:
    cache = PassCache()
    calm = seen(running(None))
    assert decide(calm, NOW, cache).changes == ()
    idle = replace(calm, workloads=(running(),))
    assert decide(idle, NOW + 1.0, cache) == decide(idle, NOW + 1.0) != decide(calm, NOW)


def test_it_is_suspended_where_its_spec_says_so_and_stays_so() -> None:
    spec = training("net", idle=Idle(then=WhenIdle.SUSPEND))
    (change,) = decide(seen(running(spec=spec)), NOW).changes
    assert change.intent is Intent.SUSPEND
    assert change.status is not None
    assert (change.status.phase, change.status.after_stop.phase) == (Phase.STOPPING, Phase.SUSPENDED)
    assert [order.grace_s for order in change.terminate] == [spec.grace_s]
    stopping = replace(running(None, spec=spec), status=change.status, intent=Intent.SUSPEND)
    (settled,) = decide(replace(seen(stopping), pods=()), NOW + 5.0).changes
    assert settled.status is not None
    assert settled.status.phase is Phase.SUSPENDED
    assert settled.status.reason.message.startswith("suspended by `idle`: its GPUs were 20% busy in the last 15m")
    at_rest = replace(stopping, status=settled.status)
    assert decide(replace(seen(at_rest), pods=()), NOW + 6.0).changes == ()


def test_an_elastic_gang_shrinks_to_its_fewest_nodes_and_grows_no_more() -> None:
    run = running(spec=elastic(idle=Idle(then=WhenIdle.SHRINK)), num_nodes=3)
    (change,) = decide(seen(run), NOW).changes
    assert change.status is not None
    assert change.status.after_stop.reason is not None
    assert change.status.after_stop.reason.code is Code.RESIZED
    stopped = replace(run, status=change.status, idle=None)
    (placed,) = decide(replace(seen(stopped), pods=()), NOW + 5.0).changes
    assert len(placed.create) == 1, "three more are free"
    assert placed.status is not None
    again = replace(stopped, status=replace(placed.status, phase=Phase.RUNNING, since=NOW - 7200.0, attempt=0))
    assert not may_grow(again, NOW)
    # With its fewest nodes there is nothing left to shrink: it is told.
    small = replace(again, idle=IDLE)
    (told,) = decide(seen(small), NOW).changes
    assert told.event is not None
    assert told.event.type == "Idle"


def test_only_an_elastic_gang_may_ask_to_shrink() -> None:
    with pytest.raises(BrokenRules, match="only an elastic gang can shrink"):
        training("net", idle=Idle(then=WhenIdle.SHRINK))
