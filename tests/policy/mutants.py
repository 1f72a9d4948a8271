"""Wrong versions of the decisions, at least one for each property, as patches of the modules that make them.

A property that no mutant breaks would hold of anything.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.policy import decide as deciding
from fairlead.policy.kinds import training
from fairlead.policy.kinds.retries import Again
from fairlead.policy.placement import free_capacity, placement
from fairlead.policy.placement.placement import Placement
from fairlead.policy.queue import changes
from fairlead.policy.queue.replacements import replaced
from fairlead.specs.resources import Resources
from fairlead.specs.training import Elastic, Retry, Training
from fairlead.state import phase_transitions
from fairlead.state.plan import Change, Plan
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Pod, Snapshot, Status, Workload
from tests.builders import node
from tests.builders import training as training_of
from tests.policy import properties
from tests.policy.elastic_mutants import ELASTIC_MUTANTS
from tests.policy.move_mutants import MOVE_MUTANTS
from tests.policy.properties import Property
from tests.policy.queue_mutants import QUEUE_MUTANTS
from tests.policy.world import Harm, Job, Move, Scenario, Sleep, Submit, Suffer, Wait, Want


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One wrong idea.

    Attributes:
        breaks: The property that catches it.
        what: Name that is replaced wherever a module of the decision knows it.
        by: The replacement.
        story: What has to happen for it to show.
    """

    breaks: Property
    what: str
    by: Any
    story: Scenario

    def __str__(self) -> str:
        return f"{self.by.__name__} breaks {self.breaks.__name__}"


decide, place, rooms, move = deciding.decide, placement.place, free_capacity.rooms, phase_transitions.move
current_pods, notices = deciding._current_pods, changes.notices
change_of, requeue, wait_for = changes.change_to, changes.requeue, changes.wait
started = changes.started
counter = itertools.count()


def place_what_fits(spec: Training, free: Any, *more: Any) -> tuple[Placement, ...] | None:
    for members in range(spec.nodes, 0, -1):
        placed = place(replace(spec, nodes=members), free)
        if placed is not None:
            return placed
    return None


def leave_the_peers_of_a_failed_pod(live: tuple[Pod, ...], grace_s: float) -> tuple[object, ...]:
    return () if grace_s == training.TEARDOWN_GRACE_S else notices(live, grace_s)


def take_stopping_pods_for_ended(snapshot: Snapshot) -> dict[str, list[Pod]]:
    return current_pods(replace(snapshot, pods=tuple(p for p in snapshot.pods if p.terminating_since is None)))


def forget_what_stopping_pods_hold(nodes: Any, pods: Iterable[Pod], *more: Any) -> Any:
    return rooms(nodes, [pod for pod in pods if pod.terminating_since is None], *more)


def send_pods_to_nodes_that_are_away(nodes: Any, pods: Iterable[Pod], *more: Any) -> Any:
    return rooms([replace(node, ready=True) for node in nodes], pods, *more)


def delete_what_ended(workload: Workload, status: Status) -> Change:
    change = change_of(workload, status)
    return replace(change, intent=Intent.DELETE) if status.phase.is_final else change


def wait_in_silence(workload: Workload, reason: object, now: float, **asks: Any) -> list[Change]:
    return []


def tell_nobody(workload: Workload, status: Status) -> Change:
    return replace(change_of(workload, status), event=None)


def skip_the_table(status: Status, to: Phase, reason: Any, now: float, **changes: Any) -> Status:
    if to is Phase.RUNNING:
        return replace(status, phase=Phase.PENDING, reason=reason, since=now)
    return move(status, to, reason, now, **changes)


def retry_for_ever(spec: Training, status: Status, failure: object, progress: object, now: float) -> Again:
    return Again(at=now, program_failures=0, disruptions=0)


def start_at_once(workload: Workload, now: float) -> bool:
    return workload.intent is Intent.RUN and workload.status.phase in (Phase.PENDING, Phase.RESTARTING)


def give_twice_the_grace(live: tuple[Pod, ...], grace_s: float) -> tuple[object, ...]:
    return notices(live, 2 * grace_s + 1.0)


def ignore_wishes(workload: Workload, live: tuple[Pod, ...], snapshot: Snapshot, now: float) -> Change | None:
    return None


def start_by_chance(workload: Workload, placed: Any, now: float, nodes: Any, beside: Any = ()) -> Change:
    change = started(workload, placed, now, nodes, beside)
    return change if next(counter) % 2 else replace(change, event=None)


def describe_it_again(workload: Workload, reason: Any, now: float, **asks: Any) -> list[Change]:
    return wait_for(workload, replace(reason, message=f"{reason.message}; asked {next(counter)} times"), now, **asks)


def describe_it_twice(snapshot: Snapshot, now: float) -> Plan:
    changes = decide(snapshot, now).changes
    return Plan(changes=(*changes, *changes[:1]))


def resume_at_once(workload: Workload, code: Code, message: str, now: float, *, remedy: str | None = None) -> Change:
    return requeue(workload, Code.RESUMED if code is Code.SUSPENDED else code, message, now, remedy=remedy)


def go_on_in_any_case(workload: Workload, own: Any) -> bool:
    return workload.spec.elastic is Elastic.IN_PLACE and workload.status.phase is Phase.RUNNING


def forget_the_replacement(workload: Workload, create: tuple[Any, ...], now: float) -> Change:
    return replace(replaced(workload, create, now), status=workload.status)


def _story(
    *moves: Move, programs: tuple[SimulatedProgram, ...] = (SimulatedProgram(),), num_nodes: int = 1, **spec: Any
) -> Scenario:
    """Three runs of these programs, any one of which leaves no room for the next on one node."""
    values = {"resources": Resources(cpu_milli=3000), "grace_s": 10.0, **spec}
    jobs = tuple(Job(spec=training_of(f"run-{n}", run=f"run-{n}", **values), programs=programs) for n in range(3))
    return Scenario(nodes=tuple(node(f"node-{n}") for n in range(num_nodes)), jobs=jobs, moves=moves)


DEAF = (SimulatedProgram(duration_s=90.0, on_term=OnTerm.IGNORE),)
FAILING = (SimulatedProgram(duration_s=5.0, exit_code=1),)
ONE = _story(Submit(0), Wait(1.0))
QUEUE = _story(Submit(0), Wait(1.0), Submit(1), Submit(2), Wait(1.0))
HALF_FITS = _story(Submit(0), Submit(1), Wait(1.0), nodes=2, resources=Resources(cpu_milli=1300))
AWAY = _story(Suffer(Harm.LOSE_NODE, 0), Submit(0), Wait(1.0))
BEGUN: tuple[Move, ...] = (Submit(0), Wait(0.0), Sleep(1.0), Wait(0.0))
LOST_PEER = _story(*BEGUN, Suffer(Harm.LOSE_POD, 0), Wait(0.0), programs=DEAF, nodes=2, num_nodes=2)
LOST_ONE: tuple[Move, ...] = (*BEGUN, Sleep(1.0), Wait(0.0), Suffer(Harm.LOSE_POD, 1), Wait(0.0), Wait(0.0), Wait(0.0))
SILENT_PLACE = _story(
    *LOST_ONE, programs=(SimulatedProgram(duration_s=90.0),), nodes=2, num_nodes=2, elastic=Elastic.IN_PLACE
)
IN_PLACE = _story(*LOST_ONE, programs=(SimulatedProgram(duration_s=90.0, step_s=1.0),), nodes=2, num_nodes=2,
                  elastic=Elastic.IN_PLACE)  # fmt: skip
STOPPED = _story(*BEGUN, Want(0, Intent.STOP), Wait(0.0), Submit(1), Wait(0.0), programs=DEAF)
SUSPENDED = _story(Submit(0), Want(0, Intent.SUSPEND), Wait(0.0))
AGAIN: tuple[Move, ...] = (Want(0, Intent.SUSPEND), Wait(0.0), Want(0, Intent.RUN), Wait(0.0))
RESUMED = _story(*BEGUN, *AGAIN, programs=DEAF, num_nodes=2)
RETRIED = _story(Submit(0), Wait(1.0), programs=FAILING, retry=Retry(program=2))

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(breaks=breaks, what=what, by=by, story=story)
    for breaks, what, by, story in (
        (properties.gangs_are_whole, "place", place_what_fits, HALF_FITS),
        (properties.gangs_are_whole, "notices", leave_the_peers_of_a_failed_pod, LOST_PEER),
        (properties.lost_pods_alone_are_replaced, "can_go_on", go_on_in_any_case, SILENT_PLACE),
        (properties.lost_pods_alone_are_replaced, "replaced", forget_the_replacement, IN_PLACE),
        (properties.no_rank_lives_twice, "_current_pods", take_stopping_pods_for_ended, RESUMED),
        (properties.nothing_is_over_committed, "rooms", forget_what_stopping_pods_hold, STOPPED),
        (properties.nothing_is_over_committed, "rooms", send_pods_to_nodes_that_are_away, AWAY),
        (properties.nothing_is_lost, "change_to", delete_what_ended, ONE),
        (properties.nothing_is_lost, "wait", wait_in_silence, QUEUE),
        (properties.nothing_is_lost, "_obey", ignore_wishes, SUSPENDED),
        (properties.moves_are_legal_and_told, "change_to", tell_nobody, ONE),
        (properties.moves_are_legal_and_told, "move", skip_the_table, ONE),
        (properties.retries_are_bounded, "retry", retry_for_ever, RETRIED),
        (properties.retries_are_bounded, "_wants_to_start", start_at_once, RETRIED),
        (properties.a_stop_is_obeyed_within_its_grace, "notices", give_twice_the_grace, STOPPED),
        (properties.a_stop_is_obeyed_within_its_grace, "_obey", ignore_wishes, STOPPED),
        (properties.a_stop_is_obeyed_within_its_grace, "_obey", ignore_wishes, SUSPENDED),
        (properties.decisions_are_deterministic, "started", start_by_chance, ONE),
        (properties.decisions_settle, "wait", describe_it_again, QUEUE),
        (properties.decisions_settle, "requeue", resume_at_once, SUSPENDED),
        (properties.plans_say_all_once, "decide", describe_it_twice, ONE),
        *QUEUE_MUTANTS,
        *MOVE_MUTANTS,
        *ELASTIC_MUTANTS,
    )
)
