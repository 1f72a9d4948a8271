"""Wrong elastic gangs, at least one for each property of them: what is replaced, and the story in which it shows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy.disruption.preemption import Victim
from fairlead.policy.placement.placement import Placement
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import node, training
from tests.policy import elastic_properties as properties
from tests.policy.world import Job, Move, Scenario, Submit, Wait

STEADY = SimulatedProgram(duration_s=20_000.0, step_s=1.0, checkpoint_s=5.0, on_term=OnTerm.CHECKPOINT, save_s=1.0)
SHORT = SimulatedProgram(duration_s=100.0)
NOW = Wait(0.0)


Take = Callable[[Workload], tuple[Placement, ...] | None]


def give_all_that_is_free(gangs: Iterable[tuple[Workload, int]], take: Take, share: Any) -> dict[str, list[Placement]]:
    found: dict[str, list[Placement]] = {}
    for workload, _ in gangs:
        while taken := take(workload):
            found.setdefault(workload.uid, []).extend(taken)
    return found


def give_nothing(gangs: Iterable[tuple[Workload, int]], take: Take, share: Any) -> dict[str, list[Placement]]:
    return {}


def grow_at_any_time(workload: Workload, now: float) -> bool:
    return workload.status.phase is Phase.RUNNING and (workload.spec.most_nodes or 0) > workload.gang.nodes


def take_from_those_that_wait(waiting: Iterable[Any], free: Any, ledger: Any) -> bool:
    return False


def place_none_that_changed_its_size(workload: Workload, now: float) -> bool:
    return workload.intent is Intent.RUN and workload.status.phase is Phase.PENDING


def ask_all_to_give_nodes_up(shape: Any, count: int, offered: Sequence[Victim], rooms: Any) -> tuple[Victim, ...]:
    return tuple(offered)


def _job(name: str, *programs: SimulatedProgram, gpus: int = 0, **changes: Any) -> Job:
    """Each member has a node to itself."""
    gpu = GpuRequest(milli=1000 * gpus) if gpus else None
    spec = training(name, run=name, resources=Resources(cpu_milli=3000, gpu=gpu), grace_s=5.0, **changes)
    return Job(spec=spec, programs=programs or (STEADY,))


def _story(*moves: Move, jobs: Sequence[Job], gpus: Sequence[int] = (0, 0, 0)) -> Scenario:
    nodes = tuple(node(f"node-{number}", gpus=of_node) for number, of_node in enumerate(gpus))
    return Scenario(nodes=nodes, jobs=tuple(jobs), moves=moves)


ALONE = _story(Submit(0), NOW, jobs=(_job("elastic", nodes=1, most_nodes=2),))
LATER = _story(
    *(Submit(0), NOW, Submit(1), NOW),
    jobs=(_job("short", SHORT, nodes=2), _job("elastic", nodes=1, most_nodes=2, max_duration_s=30_000.0)),
)
# The first that waits is promised its start and keeps what it needs; the gang behind it has only its patience.
WANTED = _story(
    *(Submit(0), Submit(1), NOW, Submit(2), NOW, Submit(3), NOW, Submit(4), NOW),
    jobs=(
        _job("holder", gpus=1),
        _job("short", SHORT),
        _job("elastic", nodes=1, most_nodes=2),
        _job("first", gpus=1),
        _job("gang", nodes=2),
    ),
    gpus=(1, 0, 0),
)
TOO_LARGE = _story(
    *(Submit(0), NOW, NOW, Submit(1), NOW),
    jobs=(_job("elastic", nodes=1, most_nodes=2), _job("large", nodes=3, priority=5)),
)

ELASTIC_MUTANTS = (
    (properties.gangs_keep_their_bounds, "share_out", give_all_that_is_free, ALONE),
    (properties.starts_take_what_is_free, "share_out", give_nothing, ALONE),
    (properties.growth_is_rare_and_takes_from_nobody, "may_grow", grow_at_any_time, LATER),
    (properties.growth_is_rare_and_takes_from_nobody, "is_wanted", take_from_those_that_wait, WANTED),
    (properties.changes_of_size_go_on, "_wants_to_start", place_none_that_changed_its_size, LATER),
    (properties.giving_nodes_up_lets_somebody_in, "enough", ask_all_to_give_nodes_up, TOO_LARGE),
)
