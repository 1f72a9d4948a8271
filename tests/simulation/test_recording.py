"""A history becomes a trace: what was held is the work, and what is not over yet is estimated, never dropped."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster.port import EventRecord
from fairlead.control.recording import FALLBACK_S, HeldTime, expected_s, pools_of, record
from fairlead.policy.gpu.stage_interleaving import StageProfile
from fairlead.specs.pool import CapacityType, Taint
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Capacity, Checkpoint, Training
from fairlead.state import snapshot as state
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Gpu, Intent, Node, Phase, Status, Workload
from fairlead.traces.arrivals import Arrival
from fairlead.traces.reading import read_trace
from fairlead.traces.writing import write_trace

WHY = Reason(code=Code.SUBMITTED, message="because")
T0 = 1_700_000_000.0


def workload(
    name: str, *, created: float, started: float | None, finished: float | None, phase: Phase, nodes: int = 1
) -> Workload:
    status = Status(
        phase=phase,
        reason=WHY,
        since=T0 + created,
        started_at=None if started is None else T0 + started,
        finished_at=None if finished is None else T0 + finished,
    )
    spec = Training(name=name, run="x", nodes=nodes, resources=Resources(gpu=GpuRequest(model="A100", milli=4000)))
    return Workload(uid=name, spec=spec, intent=Intent.RUN, status=status, version=1, created_at=T0 + created)


def told(uid: str, *phases: tuple[float, str]) -> list[EventRecord]:
    return [
        EventRecord(id=number + 1, at=T0 + at, workload_uid=uid, run=uid, type=type_, reason=WHY)
        for number, (at, type_) in enumerate(phases)
    ]


def test_work_is_the_time_that_nodes_were_held_without_waiting_between() -> None:
    run = workload("a", created=5, started=10, finished=130, phase=Phase.SUCCEEDED)
    events = told(
        "a", (5, "Submitted"), (10, "Starting"), (12, "Running"), (50, "Pending"), (100, "Starting"), (130, "Succeeded")
    )
    later = workload("b", created=25, started=30, finished=40, phase=Phase.STOPPED, nodes=2)
    found = record([later, run], events, (), T0 + 500)
    assert [(each.spec.name, each.at_s, each.duration_s) for each in found.arrivals] == [("a", 0, 70), ("b", 20, 10)]
    assert (found.began_at, found.num_censored, found.num_left_out) == (T0 + 5, 0, 0)
    assert found.arrivals[1].num_gpus == 8


def test_events_that_do_not_go_back_to_the_start_are_not_believed() -> None:
    run = workload("a", created=0, started=10, finished=130, phase=Phase.SUCCEEDED)
    (arrival,) = record([run], told("a", (100, "Starting"), (130, "Succeeded")), (), T0 + 500).arrivals
    assert arrival.duration_s == 120


def test_what_ended_before_it_started_is_left_out_and_what_waits_is_not() -> None:
    never = workload("never", created=0, started=None, finished=3, phase=Phase.FAILED)
    waits = workload("waits", created=1, started=None, finished=None, phase=Phase.PENDING)
    done = workload("done", created=2, started=2, finished=102, phase=Phase.SUCCEEDED)
    found = record([never, waits, done], (), (), T0 + 200)
    assert [(each.spec.name, each.duration_s) for each in found.arrivals] == [("waits", 100), ("done", 100)]
    assert (found.num_censored, found.num_left_out) == (1, 1)


def over(*lengths: float) -> list[HeldTime]:
    return [HeldTime(lasted_s=length, is_over=True) for length in lengths]


def test_what_is_not_over_takes_the_median_of_those_that_lasted_as_long() -> None:
    history = over(10, 20, 30, 40, 50)
    running = HeldTime(lasted_s=25, is_over=False)
    # Of 30, 40 and 50 two thirds are left after 30, one third after 40.
    assert expected_s(running, [*history, running]) == 40
    assert expected_s(HeldTime(lasted_s=25, is_over=True), history) == 25
    assert expected_s(HeldTime(lasted_s=60, is_over=False), history) == 120
    assert expected_s(HeldTime(lasted_s=0, is_over=False), []) == FALLBACK_S


def test_runs_that_are_not_over_count_for_as_long_as_they_were_seen() -> None:
    young = HeldTime(lasted_s=5, is_over=False)
    # Without the three that go on beyond 30, half of the ends would be at 20: by Kaplan and Meier, after 10: 5/6,
    # after 20: 4/6, and after 40, where one of one ends, none.
    history = [*over(10, 20, 40), *(HeldTime(lasted_s=30, is_over=False) for _ in range(3))]
    assert expected_s(young, over(10, 20, 40)) == 20
    assert expected_s(young, history) == 40


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=30), st.floats(0, 1e6))
@settings(max_examples=200, deadline=None)
def test_an_estimate_is_never_shorter_than_what_was_seen(history: list[tuple[float, bool]], lasted_s: float) -> None:
    seen = [HeldTime(lasted_s=length, is_over=is_over) for length, is_over in history]
    assert expected_s(HeldTime(lasted_s=lasted_s, is_over=False), seen) >= lasted_s


def gpus(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(uuid=f"g{number}", model="A100", memory_bytes=80 * 10**9) for number in range(count))


def test_nodes_of_one_kind_are_one_pool() -> None:
    spot = state.Taint(key="cloud.google.com/gke-spot", value="true")
    nodes = [
        Node(name="n1", cpu_milli=96_000, memory_bytes=2**40, gpus=gpus(8)),
        Node(name="n2", cpu_milli=96_000, memory_bytes=2**40, gpus=gpus(8)),
        Node(name="n3", cpu_milli=96_000, memory_bytes=2**40, gpus=gpus(8), taints=(spot,)),
        Node(name="n4", cpu_milli=8_000, memory_bytes=2**34, labels={"karpenter.sh/nodepool": "Small_Ones"}),
        Node(name="n5", cpu_milli=96_000, memory_bytes=2**40, gpus=gpus(8), labels={spot.key: "true"}),
    ]
    found = {pool.name: pool for pool in pools_of(nodes)}
    assert {name: pool.nodes for name, pool in found.items()} == {"a100x8": 2, "a100x8-kind2": 2, "small-ones": 1}
    assert found["a100x8-kind2"].capacity_type is CapacityType.SPOT
    assert found["a100x8-kind2"].taints == (Taint(key=spot.key, value="true"),)
    assert found["small-ones"].hardware.gpu is None


GPUS = st.builds(GpuRequest, milli=st.sampled_from((500, 1000, 8000)), model=st.sampled_from((None, "A100|H100")))
ARRIVALS = st.builds(
    Arrival,
    at_s=st.floats(0, 1e8),
    duration_s=st.floats(0, 1e8),
    spec=st.builds(
        Training,
        name=st.sampled_from(("a", "train-llama")),
        team=st.sampled_from(("default", "vision")),
        run=st.just("simulated"),
        nodes=st.integers(1, 9),
        resources=st.builds(
            Resources,
            gpu=st.none()
            | st.builds(
                GpuRequest, milli=st.sampled_from((500, 1000, 8000)), model=st.sampled_from((None, "A100|H100"))
            ),
            cpu_milli=st.none() | st.integers(1, 10**6),
            memory_bytes=st.none() | st.integers(1, 2**45),
        ),
        priority=st.integers(-1, 1000),
        max_duration_s=st.sampled_from((None, 0.5, 7200.0)),
        capacity=st.builds(Capacity, spot=st.booleans()),
        checkpoint=st.builds(Checkpoint, every_s=st.sampled_from((None, 90.0))),
    ),
    start_up_s=st.none() | st.floats(0, 1e4),
    checkpoint_s=st.none() | st.floats(0, 1e4),
    save_s=st.none() | st.floats(0, 1e4),
    profile=st.none() | st.just(StageProfile(iteration_s=0.49, stages_s=(0.446, 0.008, 0.0))),
)


@given(ARRIVALS)
@settings(max_examples=150, deadline=None)
def test_what_is_written_reads_back_the_same(arrival: Arrival) -> None:
    path = FOLDER / "trace.csv"
    path.write_text(write_trace([arrival], ["a comment"]))
    assert read_trace(path) == (arrival,)


FOLDER: Path


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("traces")
