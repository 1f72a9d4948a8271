"""Scenarios drawn at random, small enough that runs meet each other."""

from dataclasses import replace

from hypothesis import strategies as st

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.team import Quota, Team
from fairlead.specs.training import Elastic, Retry, Training
from fairlead.state.snapshot import Intent, Node
from tests.builders import GIB, node
from tests.policy.world import Crash, Harm, Job, Jump, Move, Race, Scenario, Sleep, Submit, Suffer, Wait, Want

SECONDS = st.sampled_from((0.0, 0.1, 1.0, 5.0, 20.0, 70.0, 700.0))


@st.composite
def nodes(draw: st.DrawFn) -> tuple[Node, ...]:
    return tuple(
        node(f"node-{number}", gpus=draw(st.integers(0, 2)), memory_bytes=4 * GIB)
        for number in range(draw(st.integers(1, 3)))
    )


@st.composite
def specs(draw: st.DrawFn, name: str) -> Training:
    num_nodes = draw(st.integers(1, 3))
    gpu = draw(st.sampled_from((None, None, GpuRequest(milli=500), GpuRequest(), GpuRequest(milli=2000))))
    return Training(
        name=name,
        run=name,
        nodes=num_nodes,
        most_nodes=draw(st.sampled_from((None, None, num_nodes + 1, num_nodes + 3))),
        ranks_per_node=draw(st.integers(1, 2)),
        resources=Resources(
            gpu=gpu,
            cpu_milli=draw(st.sampled_from((500, 2000, 3000))),
            memory_bytes=draw(st.sampled_from((None, GIB, 3 * GIB))),
        ),
        retry=Retry(
            program=draw(st.integers(0, 2)), infrastructure=draw(st.integers(0, 3)), backoff_s=1.0, max_backoff_s=4.0
        ),
        priority=draw(st.sampled_from((0, 0, 5, -1))),
        team=draw(st.sampled_from(("default", "default", "vision"))),
        max_duration_s=draw(st.sampled_from((None, None, 30.0))),
        stall_timeout_s=draw(st.sampled_from((None, 15.0))),
        grace_s=draw(st.sampled_from((0.0, 2.0, 10.0))),
        elastic=draw(st.sampled_from((Elastic.RESTART, Elastic.IN_PLACE))) if num_nodes > 1 else Elastic.RESTART,
    )


# None works for a minute: what is lost after that is the first loss in its row, and may be lost for ever.
PROGRAMS = st.builds(
    SimulatedProgram,
    duration_s=st.sampled_from((0.0, 3.0, 25.0, 50.0)),
    exit_code=st.sampled_from((0, 0, 0, 1)),
    signal=st.sampled_from((None, None, None, 9, 11)),
    start_s=st.sampled_from((0.0, 0.5)),
    start_error=st.sampled_from((None, None, None, None, "no such image")),
    step_s=st.sampled_from((None, 1.0)),
    checkpoint_s=st.sampled_from((None, 5.0)),
    hangs_after_s=st.sampled_from((None, None, None, 2.0)),
    on_term=st.sampled_from(OnTerm),
    save_s=st.sampled_from((0.0, 1.0, 30.0)),
)
# Long enough to grow, and saving what they do.
STEADY = st.builds(
    SimulatedProgram,
    duration_s=st.sampled_from((900.0, 9000.0)),
    step_s=st.sampled_from((None, 1.0, 1.0, 1.0)),
    checkpoint_s=st.sampled_from((5.0, 120.0)),
    on_term=st.sampled_from((OnTerm.CHECKPOINT, OnTerm.CHECKPOINT, OnTerm.IGNORE)),
    save_s=st.sampled_from((0.5, 1.0)),
)
SUBMITS = st.builds(Submit, st.integers(0, 5))
WANTS = st.builds(Want, st.integers(0, 5), st.sampled_from(Intent))
SUFFERS = st.builds(Suffer, st.sampled_from(Harm), st.integers(0, 5))
WAITS = st.builds(Wait, SECONDS)
SLEEPS = st.builds(Sleep, SECONDS)
JUMPS = st.builds(Jump, st.sampled_from((-100.0, -1.0, 0.0, 1.0, 100.0)))
CRASHES = st.builds(Crash, st.integers(0, 3))
RACES = st.builds(Race, st.one_of(SUBMITS, WANTS, SUFFERS, SLEEPS))
MOVES: st.SearchStrategy[Move] = st.one_of(
    SUBMITS, SUBMITS, WAITS, WAITS, WAITS, WANTS, SUFFERS, SLEEPS, JUMPS, CRASHES, RACES
)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    return tuple(
        Job(spec=draw(specs(f"run-{number}")), programs=tuple(draw(st.lists(PROGRAMS, min_size=1, max_size=3))))
        for number in range(draw(st.integers(1, 4)))
    )


@st.composite
def steady_jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    """Of which many are elastic and small, so that they grow and are made smaller."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        spec, num_nodes = draw(specs(f"run-{number}")), draw(st.integers(1, 2))
        spec = replace(
            spec,
            nodes=num_nodes,
            elastic=spec.elastic if num_nodes > 1 else Elastic.RESTART,
            most_nodes=draw(st.sampled_from((None, num_nodes + 1, num_nodes + 5))),
            resources=replace(spec.resources, gpu=None, memory_bytes=None),
            max_duration_s=None,
            stall_timeout_s=None,
        )
        found.append(Job(spec=spec, programs=(draw(STEADY),)))
    return tuple(found)


@st.composite
def in_place_jobs(draw: st.DrawFn) -> tuple[Job, ...]:
    """Of which the first goes on in place, and all report steps."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        spec = replace(
            draw(specs(f"run-{number}")),
            nodes=draw(st.integers(2, 3)),
            most_nodes=None,
            elastic=Elastic.RESTART if number else Elastic.IN_PLACE,
            resources=Resources(cpu_milli=draw(st.sampled_from((500, 1000, 2000)))),
            stall_timeout_s=None,
        )
        duration_s = draw(st.sampled_from((25.0, 900.0)))
        on_term = draw(st.sampled_from(OnTerm))
        found.append(Job(spec=spec, programs=(SimulatedProgram(duration_s=duration_s, step_s=1.0, on_term=on_term),)))
    return tuple(found)


AMOUNTS = st.builds(
    Quota, gpu_milli=st.sampled_from((None, 1000, 2000)), cpu_milli=st.sampled_from((None, 2000, 6000))
)  # fmt: skip
TEAMS = st.builds(
    Team,
    name=st.just("vision"),
    quota=st.one_of(st.just(Quota()), AMOUNTS),
    guaranteed=AMOUNTS,
    weight=st.sampled_from((1, 3)),
)
DEBTS = st.dictionaries(st.sampled_from(("default", "vision")), st.sampled_from((-600_000.0, -900.0, 900.0, 600_000.0)))
STEADY_SCENARIOS = st.builds(
    Scenario,
    nodes=nodes(),
    jobs=steady_jobs(),
    moves=st.lists(st.one_of(SUBMITS, SUBMITS, WAITS, WAITS, WANTS, SUFFERS), min_size=10, max_size=30).map(tuple),
    teams=st.one_of(st.just(()), st.tuples(TEAMS)),
    debts=DEBTS,
)
LOSSES = st.builds(
    Suffer,
    st.sampled_from((Harm.LOSE_POD, Harm.LOSE_POD, Harm.LOSE_POD, Harm.LOSE_NODE, Harm.RETURN_NODE)),
    st.sampled_from((1, 1, 2, 0, 4)),
)
# By then the first run trains, if it has room.
TRAINING: tuple[Move, ...] = (Submit(0), Wait(0.0), Wait(0.0), Wait(0.0), Sleep(1.0), Wait(0.0))
IN_PLACE_SCENARIOS = st.builds(
    Scenario,
    nodes=nodes(),
    jobs=in_place_jobs(),
    moves=st.lists(
        st.one_of(SUBMITS, WAITS, WAITS, WAITS, LOSSES, LOSSES, LOSSES, WANTS, CRASHES, st.builds(Race, LOSSES)),
        min_size=4, max_size=25,
    ).map(lambda moves: (*TRAINING, *moves)),
    teams=st.one_of(st.just(()), st.tuples(TEAMS)),
    debts=DEBTS,
)  # fmt: skip
SCENARIOS = st.builds(
    Scenario,
    nodes=nodes(),
    jobs=jobs(),
    moves=st.lists(MOVES, min_size=10, max_size=40).map(tuple),
    teams=st.one_of(st.just(()), st.tuples(TEAMS)),
    debts=DEBTS,
)
