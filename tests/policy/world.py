"""A small world in which the real decisions are made while everything goes wrong, and a record of all that happened.

``play`` takes a scenario, plain data that can be drawn and shrunk, and returns the world with its record. What must
hold of any record is in ``tests.policy.properties``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.faults import Fault, KillRank, LoseNode, LosePod, RefusePod, ReturnNode
from fairlead.cluster.simulated.programs import SimulatedProgram
from fairlead.errors import NameTaken, NotFound
from fairlead.policy import decide as deciding
from fairlead.policy.next_decision import decision_times
from fairlead.specs.team import Team
from fairlead.specs.training import Training
from fairlead.state.plan import Change, Plan
from fairlead.state.snapshot import Intent, Node, Pod, Snapshot, Workload

MOST_PASSES = 24
"""At one instant. A resumed run whose pods still live takes five, and so does one that is preempted without grace."""
MOST_INSTANTS = 1_000
MOMENT_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run and what its starts do; the last program is that of all further starts."""

    spec: Training
    programs: tuple[SimulatedProgram, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """The job is handed in (again)."""

    job: int


@dataclass(frozen=True, slots=True)
class Want:
    """The user wants something of a workload, counted from the oldest."""

    which: int
    intent: Intent


class Harm(StrEnum):
    """What can go wrong outside of programs."""

    KILL_RANK = "kill rank"
    OUT_OF_MEMORY = "out of memory"
    LOSE_POD = "lose pod"
    REFUSE_POD = "refuse pod"
    LOSE_NODE = "lose node"
    RETURN_NODE = "return node"


@dataclass(frozen=True, slots=True)
class Suffer:
    """Something goes wrong with a live pod or a node, counted around."""

    harm: Harm
    which: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Time goes by until something happens, at most so long; then the loop passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Sleep:
    """Time goes by and nobody looks."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Jump:
    """The clock of the loop is set to so much before or after that of the cluster."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The loop decides, dies after so many changes, and the cluster's own process with it."""

    num_applied: int


@dataclass(frozen=True, slots=True)
class Race:
    """Something happens between the decision and its application."""

    move: "Submit | Want | Suffer | Sleep"


Move = Submit | Want | Suffer | Wait | Sleep | Jump | Crash | Race


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that is made up.

    Attributes:
        debts: What teams have had beyond their shares, in seconds of the cluster; the same all the time.
    """

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    moves: tuple[Move, ...]
    teams: tuple[Team, ...] = ()
    debts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One pass.

    Attributes:
        at: The cluster's time.
        now: What the loop took for the time.
        whole: Nothing came between the look and the last change.
        num_seen: How often the cluster had been seen before; much happens at one instant.
    """

    at: float
    now: float
    before: Snapshot
    plan: Plan
    applied: tuple[bool, ...]
    whole: bool
    num_seen: int

    def done(self) -> Iterator[tuple[Workload, Change]]:
        """Changes that were carried out, with the workload as it was decided on."""
        by_uid = {workload.uid: workload for workload in self.before.workloads}
        for change, applied in zip(self.plan.changes, self.applied, strict=True):
            if applied:
                yield by_uid[change.workload_uid], change


@dataclass(slots=True)
class World:
    """The cluster, the loop, and what was seen.

    Attributes:
        skew_s: How far the loop's clock is ahead of the cluster's.
        seen: (time, snapshot) after every move and every pass.
        unsettled: Times at which passes came to no end.
        deleted: Uids of workloads that somebody wanted deleted.
        submitted: Uids in order of submission.
        quiet: Snapshots for which there was nothing left to do at that time.
    """

    scenario: Scenario
    cluster: SimulatedCluster
    skew_s: float = 0.0
    decisions: list[Decision] = field(default_factory=list)
    seen: list[tuple[float, Snapshot]] = field(default_factory=list)
    unsettled: list[float] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    submitted: list[str] = field(default_factory=list)
    quiet: list[tuple[float, Snapshot]] = field(default_factory=list)

    @property
    def now(self) -> float:
        """What the loop takes for the time."""
        return self.cluster.clock.now() + self.skew_s

    def programs_of(self, spec: Training) -> tuple[SimulatedProgram, ...]:
        return next(job.programs for job in self.scenario.jobs if job.spec == spec)

    def make(self, move: Move) -> None:
        """One move."""
        if isinstance(move, Race):
            before, now = self._snapshot(), self.now
            plan = deciding.decide(before, now)
            self.make(move.move)
            self._apply(before, now, plan, whole=False)
        elif isinstance(move, Crash):
            before, now = self._snapshot(), self.now
            plan = deciding.decide(before, now)
            self._apply(before, now, Plan(changes=plan.changes[: move.num_applied]), whole=False)
            self.cluster = SimulatedCluster.load(self.cluster.save(), self.behave)
        elif isinstance(move, Wait):
            self.cluster.wait(move.seconds)
            self.look()
            self.run_pass()
        elif isinstance(move, Sleep):
            self.cluster.advance(move.seconds)
        elif isinstance(move, Jump):
            self.skew_s = move.seconds
        elif isinstance(move, Submit):
            self._submit(move)
        elif isinstance(move, Want):
            self._want(move)
        else:
            for fault in self._faults(move):
                self.cluster.inject(fault)
        self.look()

    def run_pass(self) -> bool:
        """Look, decide, apply; whether anything was done."""
        before, now = self._snapshot(), self.now
        plan = deciding.decide(before, now)
        self._apply(before, now, plan, whole=True)
        return any(self.decisions[-1].applied)

    def settle(self) -> None:
        """Pass until there is nothing to do at this instant."""
        for _ in range(MOST_PASSES):
            if not self.run_pass():
                self.quiet.append((self.now, self.cluster.snapshot()))
                return
            self.look()
        self.unsettled.append(self.cluster.clock.now())

    def calm_down(self) -> None:
        """No more harm, a right clock, and time until nothing moves."""
        self.skew_s = 0.0
        for node in self.scenario.nodes:
            self.cluster.inject(ReturnNode(node=node.name))
        for _ in range(MOST_INSTANTS):
            self.settle()
            until = min((self.cluster.next_at, *self._deadlines()))
            if until == math.inf or self.unsettled:
                return
            self.cluster.wait(max(0.0, until - self.cluster.clock.now()))
            self.look()

    def look(self) -> None:
        self.seen.append((self.cluster.clock.now(), self.cluster.snapshot()))

    def behave(self, spec: Training, attempt: int) -> SimulatedProgram:
        programs = self.programs_of(spec)
        return programs[min(attempt, len(programs) - 1)]

    def live(self) -> list[Pod]:
        return [pod for pod in self.cluster.snapshot().pods if not pod.phase.is_final]

    def _snapshot(self) -> Snapshot:
        return replace(self.cluster.snapshot(), debts=self.scenario.debts)

    def _apply(self, before: Snapshot, now: float, plan: Plan, *, whole: bool) -> None:
        at = self.cluster.clock.now()
        applied = self.cluster.apply(plan)
        num_seen = len(self.seen)
        self.decisions.append(
            Decision(at=at, now=now, before=before, plan=plan, applied=applied, whole=whole, num_seen=num_seen)
        )

    def _submit(self, move: Submit) -> None:
        try:
            run = self.cluster.submit(self.scenario.jobs[move.job % len(self.scenario.jobs)].spec)
        except NameTaken:
            return
        self.submitted.append(run.uid)

    def _want(self, move: Want) -> None:
        if not self.submitted:
            return
        uid = self.submitted[move.which % len(self.submitted)]
        try:
            self.cluster.set_intent(uid, move.intent)
        except (NotFound, NameTaken):
            return
        if move.intent is Intent.DELETE:
            self.deleted.add(uid)

    def _faults(self, move: Suffer) -> Iterator[Fault]:
        nodes = self.scenario.nodes
        if move.harm is Harm.LOSE_NODE:
            yield LoseNode(node=nodes[move.which % len(nodes)].name)
        elif move.harm is Harm.RETURN_NODE:
            yield ReturnNode(node=nodes[move.which % len(nodes)].name)
        elif live := self.live():
            pod = live[move.which % len(live)]
            spec = next(w.spec for w in self.cluster.workloads() if w.uid == pod.workload_uid)
            rank = pod.index * spec.ranks_on_each_node
            if move.harm is Harm.LOSE_POD:
                yield LosePod(pod_uid=pod.uid)
            elif move.harm is Harm.REFUSE_POD:
                yield RefusePod(pod_uid=pod.uid)
            else:
                yield KillRank(pod_uid=pod.uid, rank=rank, out_of_memory=move.harm is Harm.OUT_OF_MEMORY)

    def _deadlines(self) -> Iterator[float]:
        """Times to come at which the decision may change although nothing happens."""
        now = self.cluster.clock.now()
        times = decision_times(self.cluster.snapshot(), now)
        # A moment later, as the difference of two times may be rounded down.
        return (at + MOMENT_S for at in times if now < at + MOMENT_S < math.inf)


def play(scenario: Scenario) -> World:
    """All moves, then calm."""
    world = World(scenario, SimulatedCluster((), lambda spec, attempt: SimulatedProgram()))
    world.cluster = SimulatedCluster(scenario.nodes, world.behave, teams=scenario.teams)
    for move in scenario.moves:
        world.make(move)
    world.calm_down()
    return world
