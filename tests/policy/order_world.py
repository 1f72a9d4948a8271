"""Runs of declared lengths on one node of four GPUs, played through the real decisions, and what must hold of that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import OnTerm, Program
from fairlead.policy.training import decide
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.rules import NAMED, Rules
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import node, training

NUM_GPUS = 4
GRACE_S = 5.0
# What a restart costs beside the work that is lost.
RESTART_S = 60.0
PREEMPTING = NAMED["preempting"]
MOST_STEPS = 2_000


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


def play(lines: Sequence[Line], rules: Rules = PREEMPTING) -> list[Decided]:
    """All decisions until every run is over."""
    cluster = SimulatedCluster((node(gpus=NUM_GPUS, cpu_milli=64_000),), _behave, rules=rules)
    began, decided = cluster.clock.now(), list[Decided]()
    coming = sorted(enumerate(lines), key=lambda each: (each[1].at_s, each[0]))
    for _ in range(MOST_STEPS):
        now = cluster.clock.now()
        while coming and began + coming[0][1].at_s <= now:
            number, line = coming.pop(0)
            cluster.submit(spec_of(line, f"job-{chr(97 + number)}"))
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
    """Who is stopped for a shorter run waits no longer, all of them together, than that run is spared.

    Where nobody else waits, to whom room may be promised.
    """
    for each in decided:
        for name, stopped in _replaced(each).items():
            if sum(run.status.phase is Phase.PENDING for run in each.snapshot.workloads) > 1:
                continue
            wanting = next(run for run in each.snapshot.workloads if run.spec.name == name)
            waits_s = declared_s(wanting) - wanting.status.ran_s + RESTART_S
            cost_s = sum(waits_s + each.now - run.status.since for run in stopped)
            spared_s = _ends_enough_s(wanting, each) - GRACE_S
            if spared_s <= cost_s:
                yield f"{name} is spared {spared_s} s for {cost_s} s of {[run.spec.name for run in stopped]}"


def all_come_to_their_end(decided: Sequence[Decided]) -> Iterator[str]:
    """Whoever came is over in the end, and did all of its work."""
    done_s = {
        change.workload_uid: change.status.ran_s
        for each in decided
        for change in each.plan.changes
        if change.status is not None and change.status.phase is Phase.SUCCEEDED
    }
    for run in {run.uid: run for each in decided for run in each.snapshot.workloads}.values():
        if abs(done_s.get(run.uid, 0.0) - declared_s(run)) > 1e-3:
            yield f"{run.spec.name} ended after {done_s.get(run.uid)} s"


ORDER_PROPERTIES = (the_shorter_starts_first, less_is_waited_in_all, all_come_to_their_end)


def declared_s(run: Workload) -> float:
    assert run.spec.expected_duration_s is not None
    return run.spec.expected_duration_s


def _behave(spec: Training, attempt: int) -> Program:
    return Program(duration_s=float(spec.run), on_term=OnTerm.CHECKPOINT)


def _starting(decided: Decided) -> set[str]:
    return {change.workload_uid for change in decided.plan.changes if change.create}


def _all_but_length(run: Workload) -> tuple[object, ...]:
    return run.spec.team, run.spec.priority, run.spec.nodes, run.spec.resources, run.created_at, run.status.since


def _replaced(decided: Decided) -> dict[str, list[Workload]]:
    """Runs that are stopped for a shorter one, by its name."""
    found: dict[str, list[Workload]] = {}
    by_uid = {run.uid: run for run in decided.snapshot.workloads}
    for change in decided.plan.changes:
        status = change.status
        if status is None or status.phase is not Phase.STOPPING or status.reason.code is not Code.PREEMPTED:
            continue
        if status.reason.message.endswith("has less left to do"):
            found.setdefault(status.reason.message.split()[2].rstrip(","), []).append(by_uid[change.workload_uid])
    return found


def _ends_enough_s(wanting: Workload, decided: Decided) -> float:
    """In how many seconds enough GPUs are free if everybody ends as declared and nobody is stopped."""
    live = {pod.workload_uid: len(pod.grant.gpu_uuids) for pod in decided.snapshot.pods if not pod.phase.is_final}
    ends = []
    for run in decided.snapshot.workloads:
        if run.uid in live:
            assert run.intent is Intent.RUN
            is_running = run.status.phase is Phase.RUNNING
            done_s = run.status.ran_s + (decided.now - run.status.since if is_running else 0.0)
            ends.append((max(0.0, declared_s(run) - done_s), live[run.uid]))
    gpu = wanting.spec.resources.gpu
    assert gpu is not None
    free = NUM_GPUS - sum(live.values())
    for left_s, num_gpus in sorted(ends):
        free += num_gpus
        if free >= gpu.num_devices:
            return left_s
    raise AssertionError("it fits on no empty node")
