"""Runs of declared lengths on one node of four GPUs, played through the real decisions, and what must hold of that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy.decide import decide
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.scheduling_policy import POLICIES, SchedulingPolicy
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import node, training

NUM_GPUS = 4
GRACE_S = 5.0
# What a restart costs beside the work that is lost.
RESTART_S = 60.0
PREEMPTING = POLICIES["preempting"]
MOST_STEPS = 5_000


@dataclass(frozen=True, slots=True)
class Line:
    """A run: when it comes, how long it takes and says so, what it holds, and how urgent it is."""

    at_s: float
    duration_s: float
    num_gpus: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision and what it was made on."""

    snapshot: Snapshot
    now: float
    plan: Plan


LINES = st.lists(
    st.builds(
        Line,
        st.integers(0, 20).map(lambda n: 100.0 * n),
        st.integers(1, 60).map(lambda n: 50.0 * n),
        st.sampled_from((1, 2, 4)),
        st.sampled_from((0, 0, 0, 3)),
    ),
    min_size=2,
    max_size=9,
)


def spec_of(line: Line, name: str) -> Training:
    return training(
        name,
        run=str(line.duration_s),
        resources=Resources(gpu=GpuRequest(milli=1000 * line.num_gpus)),
        expected_duration_s=line.duration_s,
        priority=line.priority,
        grace_s=GRACE_S,
    )


def play(lines: Sequence[Line], rules: SchedulingPolicy = PREEMPTING, num_nodes: int = 1) -> list[Decided]:
    """All decisions until every run is over; runs report checkpoints where there is more than one node."""
    nodes = tuple(node(f"n{number}", gpus=NUM_GPUS, cpu_milli=64_000) for number in range(num_nodes))
    cluster = SimulatedCluster(nodes, _behave if num_nodes == 1 else _report, rules=rules)
    began, decided = cluster.clock.now(), list[Decided]()
    coming = sorted(enumerate(lines), key=lambda each: (each[1].at_s, each[0]))
    for _ in range(MOST_STEPS):
        now = cluster.clock.now()
        while coming and began + coming[0][1].at_s <= now:
            number, line = coming.pop(0)
            cluster.submit(spec_of(line, f"job-{chr(97 + number % 26) * (1 + number // 26)}"))
        snapshot = cluster.snapshot()
        plan = decide(snapshot, now)
        decided.append(Decided(snapshot, now, plan))
        if any(cluster.apply(plan)):
            continue
        if not coming and not cluster.snapshot().workloads:
            return decided
        cluster.wait(min(began + coming[0][1].at_s - now if coming else 3600.0, 3600.0))
    raise AssertionError("it came to no end")


def the_shorter_starts_first(decided: Sequence[Decided]) -> Iterator[str]:
    """Of two that wait and differ in nothing but what is left of them, the longer never starts alone."""
    for each in decided:
        starting = _starting(each)
        fresh = [run for run in each.snapshot.workloads if run.status.phase is Phase.PENDING and not run.status.attempt]
        for longer in (run for run in fresh if run.uid in starting):
            for shorter in fresh:
                alike = _all_but_length(shorter) == _all_but_length(longer)
                if alike and declared_s(shorter) < declared_s(longer) and shorter.uid not in starting:
                    yield f"{longer.spec.name} started before {shorter.spec.name} at {each.now}"


def less_is_waited_in_all(decided: Sequence[Decided]) -> Iterator[str]:
    """Whoever is stopped for a shorter run has more work left, all of them together, than they wait for."""
    for each in decided:
        for name, stopped in _replaced(each).items():
            wanting = next(run for run in each.snapshot.workloads if run.spec.name == name)
            left = sum(_left_s(run, each) * _num_gpus(run) for run in stopped)
            cost = sum(
                _left_s(wanting, each) * _num_gpus(wanting) + _back_s(run, each) * _num_gpus(run) for run in stopped
            )
            if left <= cost:
                yield f"{name} costs {cost} GPU seconds of {[run.spec.name for run in stopped]}, which have {left} left"


def nobody_is_put_back_by_more_than_is_left(decided: Sequence[Decided]) -> Iterator[str]:
    """Whoever is stopped for a shorter run could be where it was by the time at which it would have ended."""
    for each in decided:
        for name, stopped in _replaced(each).items():
            wanting = next(run for run in each.snapshot.workloads if run.spec.name == name)
            for run in stopped:
                if _left_s(run, each) <= _left_s(wanting, each) + _back_s(run, each):
                    yield f"{run.spec.name} with {_left_s(run, each)} s left gives way to {name}"


def nobody_is_stopped_for_what_comes_soon(decided: Sequence[Decided]) -> Iterator[str]:
    """A run that would start within the time of a restart, as far as those that run are concerned, stops nobody."""
    for each in decided:
        for name in _replaced(each):
            wanting = next(run for run in each.snapshot.workloads if run.spec.name == name)
            if _ends_enough_s(wanting, each) - GRACE_S <= RESTART_S:
                yield f"{name} would start in {_ends_enough_s(wanting, each)} s"


def who_saves_nothing_is_stopped_once(decided: Sequence[Decided]) -> Iterator[str]:
    """A run of which nobody knows a checkpoint gives way to shorter ones in its first start at most."""
    for each in decided:
        for name, stopped in _replaced(each).items():
            yield from (f"{run.spec.name} gives way to {name} again" for run in stopped if run.status.attempt)


def nobody_restarts_in_vain(decided: Sequence[Decided]) -> Iterator[str]:
    """Check that one restarted elsewhere for a wider run goes on, and that run starts, both within two graces."""
    for number, each in enumerate(decided):
        names = {run.spec.name: run.uid for run in each.snapshot.workloads}
        for change in each.plan.changes:
            if change.status is None or not change.status.reason.message.startswith("makes room for "):
                continue
            wider = names[change.status.reason.message.removeprefix("makes room for ").split(",")[0]]
            soon = [after for after in decided[number:] if after.now <= each.now + 2 * GRACE_S + 2.0]
            if any({run.uid for run in after.snapshot.workloads} - set(names.values()) for after in soon):
                continue  # somebody has come, who may go before
            starting = {uid for after in soon for uid in _starting(after)}
            if not {wider, change.workload_uid} <= starting:
                yield f"{change.workload_uid} restarts for {wider} at {each.now}, and {starting} start"


def all_come_to_their_end(decided: Sequence[Decided]) -> Iterator[str]:
    """Whoever came is over in the end, and did all of its work."""
    done_s = {
        change.workload_uid: change.status.run_time.saved_s
        for each in decided
        for change in each.plan.changes
        if change.status is not None and change.status.phase is Phase.SUCCEEDED
    }
    for run in {run.uid: run for each in decided for run in each.snapshot.workloads}.values():
        if abs(done_s.get(run.uid, 0.0) - declared_s(run)) > 1e-3:
            yield f"{run.spec.name} ended after {done_s.get(run.uid)} s"


ORDER_PROPERTIES = (
    the_shorter_starts_first,
    less_is_waited_in_all,
    nobody_is_put_back_by_more_than_is_left,
    nobody_is_stopped_for_what_comes_soon,
    who_saves_nothing_is_stopped_once,
    all_come_to_their_end,
)


def declared_s(run: Workload) -> float:
    assert run.spec.expected_duration_s is not None
    return run.spec.expected_duration_s


def _left_s(run: Workload, decided: Decided) -> float:
    ran_s = decided.now - run.status.since if run.status.phase is Phase.RUNNING else 0.0
    return declared_s(run) - run.status.run_time.saved_s - ran_s


def _back_s(run: Workload, decided: Decided) -> float:
    """How far a run that has saved nothing since its start is thrown back."""
    return RESTART_S + decided.now - run.status.since


def _num_gpus(run: Workload) -> int:
    gpu = run.spec.resources.gpu
    assert gpu is not None
    return gpu.num_devices


def _behave(spec: Training, attempt: int) -> SimulatedProgram:
    return SimulatedProgram(duration_s=float(spec.run), on_term=OnTerm.CHECKPOINT)


def _report(spec: Training, attempt: int) -> SimulatedProgram:
    return replace(_behave(spec, attempt), step_s=10.0, checkpoint_s=50.0)


def _starting(decided: Decided) -> set[str]:
    return {change.workload_uid for change in decided.plan.changes if change.create}


def _all_but_length(run: Workload) -> tuple[object, ...]:
    return run.spec.team, run.spec.priority, run.spec.nodes, run.spec.resources, run.created_at, run.status.since


def _replaced(decided: Decided) -> dict[str, list[Workload]]:
    """Runs that are stopped for one that has less left to do, by its name; some may have a lower priority as well."""
    found: dict[str, list[Workload]] = {}
    for_less = set[str]()
    by_uid = {run.uid: run for run in decided.snapshot.workloads}
    for change in decided.plan.changes:
        status = change.status
        if status is None or status.phase is not Phase.STOPPING or status.reason.code is not Code.PREEMPTED:
            continue
        name = status.reason.message.split()[2].rstrip(",").rpartition("/")[2]
        found.setdefault(name, []).append(by_uid[change.workload_uid])
        if status.reason.message.endswith("has less left to do"):
            for_less.add(name)
    return {name: runs for name, runs in found.items() if name in for_less}


def _ends_enough_s(wanting: Workload, decided: Decided) -> float:
    """In how many seconds enough GPUs are free if everybody ends as declared and nobody is stopped."""
    live = {pod.workload_uid: len(pod.grant.gpu_uuids) for pod in decided.snapshot.pods if not pod.phase.is_final}
    ends = []
    for run in decided.snapshot.workloads:
        if run.uid in live:
            assert run.intent is Intent.RUN
            ends.append((max(0.0, _left_s(run, decided)), live[run.uid]))
    free = NUM_GPUS - sum(live.values())
    for left_s, num_gpus in sorted(ends):
        free += num_gpus
        if free >= _num_gpus(wanting):
            return left_s
    raise AssertionError("it fits on no empty node")
