"""Wrong queues, at least one for each property of them: what is replaced, and what has to happen for it to show."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.policy.disruption.preemption import Victim
from fairlead.policy.queue import fair_order as turns
from fairlead.policy.queue.dominant_shares import ClusterCapacity
from fairlead.policy.queue.queue_score import Standing
from fairlead.policy.queue.quotas import Ledger
from fairlead.specs.gang import GangSpec
from fairlead.specs.resources import Resources
from fairlead.specs.team import Quota, Team
from fairlead.state.snapshot import Phase, Workload
from tests.builders import node, training
from tests.policy import queue_properties as properties
from tests.policy.world import Job, Move, Scenario, Sleep, Submit, Wait

fairly = turns.fairly
LONG = (SimulatedProgram(duration_s=100_000.0),)
NOW = Wait(0.0)


def keep_nothing(name: str, before: Any, after: Any) -> tuple[()]:
    return ()


def never_age(workload: Workload, now: float) -> int:
    return 0


def scavengers_first(
    waiting: Iterable[Workload], ledger: Ledger, standing: Standing, traits: Any = None, debts: Any = None
) -> Any:
    order, owed = fairly(waiting, ledger, standing, traits, debts)
    return order[::-1], owed


def compare_any_priorities(spec: GangSpec, team: Team | None) -> int:
    return spec.priority


class OrderedByPriority(turns.Filling):
    """Lets the number that a team chooses decide among teams, and every team replace its own runs."""

    def rank(self, spec: GangSpec, asks: Any, status: Any) -> tuple[int, int, float, float]:
        return -spec.priority, 0, 0.0, 0.0

    def is_within_share(self, team: str) -> bool:
        return True


class OrderedByDebts(turns.Filling):
    """Lets debts decide also among teams that ask for no more than their shares."""

    def rank(self, spec: GangSpec, asks: Any, status: Any) -> tuple[int, int, float, float]:
        return -self.ledger.class_of(spec), 1, self.debts.get(spec.team, 0.0), self.ledger.share(spec.team)


class OverdueBeyondTheShare(turns.Filling):
    """Gives a wide run its turn after a day also where its team holds more than its share."""

    def _is_overdue(self, spec: GangSpec, asks: Any, status: Any) -> bool:
        return status.phase is Phase.PENDING and self.now - status.since >= turns.OVERDUE_S


class UnlimitedLedger(Ledger):
    """Lets teams hold what they like."""

    def exceeds(self, spec: GangSpec) -> str | None:
        return None


def protect_everybody(
    holders: Sequence[Workload], teams: Iterable[Team], whole: ClusterCapacity, now: float
) -> dict[str, int]:
    return {workload.uid: workload.gang.nodes for workload in holders}


def gain_without_end(wanting: Workload, spared_s: float, whole: Any) -> float:
    return math.inf


def stop_all_that_may_be_stopped(shape: Any, count: int, offered: Sequence[Victim], rooms: Any) -> tuple[Victim, ...]:
    return tuple(offered)


def stop_one_that_may_be_stopped(shape: Any, count: int, offered: Sequence[Victim], rooms: Any) -> tuple[Victim, ...]:
    return tuple(offered[:1])


def _job(name: str, cpu_milli: int, *, programs: tuple[SimulatedProgram, ...] = LONG, **changes: Any) -> Job:
    spec = training(name, run=name, resources=Resources(cpu_milli=cpu_milli), grace_s=5.0, **changes)
    return Job(spec=spec, programs=programs)


def _story(
    *moves: Move, jobs: Sequence[Job], teams: tuple[Team, ...] = (), debts: Mapping[str, float] | None = None
) -> Scenario:
    """On one node of 4000 thousandths of a core."""
    return Scenario(nodes=(node(),), jobs=tuple(jobs), moves=moves, teams=teams, debts=debts or {})


VISION = Team(name="vision", guaranteed=Quota(cpu_milli=3000), quota=Quota(cpu_milli=3500))

HELD_UP = _story(
    *(Submit(0), NOW, Submit(1), NOW, Submit(2), NOW),
    jobs=(_job("long", 3000), _job("whole", 4000), _job("small", 500)),
)
AGED = _story(
    *(Submit(0), NOW, Submit(1), NOW, Sleep(700.0), Submit(2), NOW, Sleep(200.0), NOW),
    jobs=(
        _job("first", 4000, programs=(SimulatedProgram(duration_s=800.0),), priority=9),
        _job("patient", 4000),
        _job("hurried", 4000, priority=1),
    ),
)
IDLE = _story(Submit(0), Submit(1), NOW, jobs=(_job("scavenger", 3000, priority=-1), _job("worker", 3000)))
GREEDY = _story(Submit(0), Submit(1), NOW, jobs=(_job("one", 2000, team="vision"), _job("two", 2000, team="vision")),
                teams=(VISION,))  # fmt: skip
LENT = _story(Submit(0), NOW, Submit(1), NOW, jobs=(_job("lent", 3000), _job("owed", 3000, team="vision")),
              teams=(VISION,))  # fmt: skip
NEARLY_DONE = _story(
    *(Submit(0), NOW, Sleep(60.0), Submit(1), NOW),
    jobs=(_job("low", 4000, max_duration_s=130.0), _job("high", 4000, priority=5)),
)
TWO_LOW = _story(
    *(Submit(0), Submit(1), NOW, Sleep(5.0), Submit(2), NOW),
    jobs=(_job("low", 1000), _job("lower", 2000), _job("high", 3000, priority=5)),
)
BOTH_LOW = _story(
    *(Submit(0), Submit(1), NOW, Sleep(5.0), Submit(2), NOW),
    jobs=(_job("low", 1000), _job("lower", 3000), _job("high", 4000, priority=5)),
)

FULL = _story(
    *(Submit(0), NOW, Submit(1), Submit(2), NOW),
    jobs=(
        _job("held", 3000, team="rich"),
        _job("urgent", 1000, team="rich", priority=1000),
        _job("fair", 1000, team="poor"),
    ),
)
SWAPPED = _story(
    *(Submit(0), Submit(1), NOW, Submit(2), NOW, Submit(3), NOW),
    jobs=(
        _job("half", 2000, team="rich"),
        _job("half-too", 2000, team="rich"),
        _job("fair", 2000, team="poor"),
        _job("greedy", 2000, team="rich", priority=1000),
    ),
)

IN_DEBT = replace(FULL, debts={"poor": 1000.0})
SAVED = _story(
    *(Submit(0), Submit(1), Submit(2), NOW, Submit(3), NOW, Sleep(89_000.0), Submit(4), NOW, Sleep(1000.0), NOW),
    jobs=(
        _job("held", 1400, team="rich"),
        _job("little", 100, team="third"),
        _job("ends", 2500, team="fourth", programs=(SimulatedProgram(duration_s=90_000.0),)),
        _job("wide", 1700, team="rich"),
        _job("fair", 900, team="poor"),
    ),
    debts={"rich": -600_000.0},
)

QUEUE_MUTANTS = (
    (properties.nobody_within_its_share_waits_for_more, "Filling", OrderedByDebts, IN_DEBT),
    (properties.nobody_within_its_share_waits_for_more, "Filling", OverdueBeyondTheShare, SAVED),
    (properties.nobody_within_its_share_waits_for_more, "class_of", compare_any_priorities, FULL),
    (properties.nobody_keeps_room_by_replacing_its_own, "Filling", OrderedByPriority, SWAPPED),
    (properties.nobody_delays_the_first, "_lost_capacity", keep_nothing, HELD_UP),
    (properties.nobody_delays_the_first, "raised", never_age, AGED),
    (properties.scavengers_take_only_what_is_idle, "fairly", scavengers_first, IDLE),
    (properties.nobody_holds_more_than_its_quota, "Ledger", UnlimitedLedger, GREEDY),
    (properties.guarantees_are_honoured, "protected", protect_everybody, LENT),
    (properties.preemption_pays, "gain", gain_without_end, NEARLY_DONE),
    (properties.preemption_pays, "enough", stop_all_that_may_be_stopped, TWO_LOW),
    (properties.preemption_pays, "enough", stop_one_that_may_be_stopped, BOTH_LOW),
)
