"""A world of a few clusters in memory, with a fleet's real journal and controller over it, which fail when told to."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, cast

from fairlead.cluster.client import CheckPrograms, ClusterClient, Prepared
from fairlead.cluster.local.home import Home
from fairlead.cluster.selection import RunSelection
from fairlead.control.fleets.controller import LABEL, FleetController
from fairlead.control.fleets.journal import FleetJournal
from fairlead.errors import ClusterError, Conflict, NameTaken, NotAllowed, NotFound
from fairlead.specs.fleet import Fleet, Member
from fairlead.specs.team import Team
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.fleets import FleetRun, FleetStage
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Progress, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
STEP_S = 10.0
STORE = "s3://bucket/runs"


class Died(Exception):
    """The controller was killed at this point."""


@dataclass(slots=True)
class World:
    """All that outlives a controller: what each cluster has, what each program has done, and the time.

    Attributes:
        saved: The newest step in each place of checkpoints.
        done: The steps that each run has done, by its name, in their order.
        out_of_reach: Clusters that do not answer now.
        hidden: Clusters whose nodes the controller's account may not see.
        dies: Whether the controller dies at a call; asked before and after each one.
    """

    nodes: dict[str, tuple[Node, ...]]
    now: float = NOW
    runs: dict[str, list[Workload]] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    done: dict[str, list[int]] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    out_of_reach: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    refuses: dict[str, str] = field(default_factory=dict)
    dies: Callable[[], bool] = lambda: False
    uids: "itertools.count[int]" = field(default_factory=itertools.count)

    def tick(self, seconds: float = STEP_S) -> None:
        """Let each cluster, reached or not, go on for so long: start what fits, do steps, stop what is to stop."""
        self.now += seconds
        for cluster, runs in self.runs.items():
            for workload in list(runs):
                self._advance(cluster, workload)
            self._check(cluster)

    def _advance(self, cluster: str, workload: Workload) -> None:
        phase, place = workload.status.phase, self.place(workload)
        if workload.intent is Intent.DELETE and phase in (Phase.SUCCEEDED, Phase.STOPPED):
            self.runs[cluster].remove(workload)
        elif workload.intent is Intent.DELETE and phase in (Phase.SUSPENDED, Phase.PENDING):
            self._put(cluster, workload, Phase.STOPPED)  # every cluster says so before it forgets a run
        elif phase is Phase.RUNNING and workload.intent is not Intent.RUN:
            self.saved[place] = self.step(workload)
            self._put(cluster, workload, Phase.SUSPENDED if workload.intent is Intent.SUSPEND else Phase.STOPPED)
        elif phase is Phase.RUNNING:
            self._work(cluster, workload)
        elif phase is Phase.PENDING and workload.intent is Intent.SUSPEND:
            self._put(cluster, workload, Phase.SUSPENDED)
        elif phase in (Phase.PENDING, Phase.SUSPENDED) and workload.intent is Intent.STOP:
            self._put(cluster, workload, Phase.STOPPED)
        elif phase is Phase.PENDING and self._fits(cluster, workload):
            origin = workload.spec.checkpoint.origin
            self.resumed[workload.uid] = self.saved.get(place, self.saved.get(origin or "", 0))
            self._put(cluster, workload, Phase.RUNNING)

    def _work(self, cluster: str, workload: Workload) -> None:
        step = self.step(workload) + 1
        self.done.setdefault(workload.spec.name, []).append(step)
        self.resumed[workload.uid] = step
        if step >= int(workload.spec.env["STEPS"]):
            self.saved[self.place(workload)] = step
            self._put(cluster, workload, Phase.SUCCEEDED)

    def _put(self, cluster: str, workload: Workload, phase: Phase) -> None:
        runs = self.runs[cluster]
        started = self.now if phase is Phase.RUNNING else workload.status.started_at
        changed = replace(
            workload, status=status(phase, started_at=started, since=self.now), version=workload.version + 1
        )
        runs[runs.index(workload)] = changed

    def _fits(self, cluster: str, workload: Workload) -> bool:
        running = sum(each.status.phase is Phase.RUNNING for each in self.runs[cluster])
        return running < len(self.nodes[cluster])

    def _check(self, cluster: str) -> None:
        """No run may be alive in two clusters."""
        alive = [
            workload.spec.labels[LABEL]
            for runs in self.runs.values()
            for workload in runs
            if workload.status.phase is Phase.RUNNING and LABEL in workload.spec.labels
        ]
        assert len(alive) == len(set(alive)), f"a run is alive twice, seen in {cluster}"

    def step(self, workload: Workload) -> int:
        """The step that a copy has come to."""
        return self.resumed.get(workload.uid, 0)

    def place(self, workload: Workload) -> str:
        """The place of a copy's checkpoints."""
        return f"{STORE}/{workload.spec.name}-{workload.uid}"


class FakeClient:
    """A client of one of the clusters; only what a fleet's controller calls."""

    has_containers = True

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._runs = world.runs.setdefault(name, [])

    def trouble(self) -> str | None:
        return "nobody answers" if self._name in self._world.out_of_reach else None

    def teams(self) -> tuple[Team, ...]:
        """Return no team: none of these clusters limits any."""
        return ()

    def select(self, selection: RunSelection) -> tuple[Workload, ...]:
        self._call()
        return tuple(self._seen(each) for each in reversed(self._runs) if selection.matches(each))

    def pods(self, uid: str) -> tuple[Pod, ...]:
        for each in tuple(self._runs):
            # Of those that are about to go, every other one does between the list and this question.
            if each.uid == uid and _is_going(each) and int(uid[1:]) % 2:
                self._runs.remove(each)
                raise NotFound(f"The run {each.spec.name} is not there any more.")
        return tuple(pod for pod in self._pods() if pod.workload_uid == uid)

    def snapshot(self) -> Snapshot:
        self._call()
        if self._name in self._world.hidden:
            raise NotAllowed("your account may not read the whole cluster")
        return Snapshot(nodes=self._world.nodes[self._name], workloads=tuple(self._runs), pods=tuple(self._pods()))

    def set_intent(self, uid: str, intent: Intent) -> None:
        self._call()
        (found,) = [each for each in self._runs if each.uid == uid]
        self._runs[self._runs.index(found)] = replace(found, intent=intent, version=found.version + 1)
        self._call()

    def prepare(
        self, spec: Training, directory: Path | None, *, probing: CheckPrograms = CheckPrograms.ANY
    ) -> Prepared:
        return Prepared(spec=spec)

    def finished_names(self, team: str) -> frozenset[str]:
        return frozenset()

    def launch(self, spec: Training, *, directory: Path | None = None) -> None:
        self._call()
        if self._name in self._world.refuses:
            raise Conflict(self._world.refuses[self._name])
        if any(each.spec.name == spec.name and not each.status.phase.is_final for each in self._runs):
            raise NameTaken(f"{spec.name} is taken")
        uid = f"u{next(self._world.uids)}"
        self._runs.append(
            Workload(uid=uid, spec=spec, intent=Intent.RUN, status=status(), version=1, created_at=self._world.now)
        )
        self._call()

    def nudge(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _call(self) -> None:
        if self._name in self._world.out_of_reach:
            raise ClusterError("nobody answers")
        if self._world.dies():
            raise Died

    def _seen(self, workload: Workload) -> Workload:
        step, place = self._world.step(workload), self._world.place(workload)
        if not step:
            return workload
        saved = self._world.saved.get(place)
        progress = Progress(
            step=step,
            total_steps=int(workload.spec.env["STEPS"]),
            checkpoint_step=saved or self._world.saved.get(workload.spec.checkpoint.origin or ""),
            checkpoint_at=None if saved is None else self._world.now,
        )
        return replace(workload, progress=progress)

    def _pods(self) -> list[Pod]:
        running = [each for each in self._runs if each.status.phase is Phase.RUNNING]
        nodes = self._world.nodes[self._name]
        return [
            Pod(
                uid=f"{each.uid}-0-0", workload_uid=each.uid, attempt=0, index=0, node=nodes[place].name,
                grant=Grant(cpu_milli=4000), phase=PodPhase.RUNNING, created_at=NOW,
            )
            for place, each in enumerate(running)
        ]  # fmt: skip


def _is_going(workload: Workload) -> bool:
    return workload.intent is Intent.DELETE and workload.status.phase is Phase.STOPPED


@dataclass(slots=True)
class FleetWorld:
    """A fleet over such a world."""

    world: World
    journal: FleetJournal
    controller: FleetController | None = None

    def round(self) -> None:
        """Make one round of the controller, a new one where the last has died, and let the world go on."""
        if self.controller is None:
            self.controller = FleetController(
                self.journal,
                open_cluster=lambda member: cast(ClusterClient, FakeClient(self.world, member.context or "home")),
                visit_s=60.0,
            )
        try:
            self.controller.act(self.world.now)
        except Died:
            self.kill()
        self.world.tick()

    def kill(self) -> None:
        """Kill the controller."""
        if self.controller is not None:
            self.controller.close()
        self.controller = None

    def until(self, done: Callable[[], bool], rounds: int = 400) -> None:
        """Go on until it is done."""
        for _ in range(rounds):
            if done():
                return
            self.round()
        raise AssertionError([(run.spec.name, run.stage, run.cluster, run.reason) for run in self.journal.runs()])

    def run(self, name: str) -> FleetRun:
        return self.journal.find(name)

    def is_over(self) -> bool:
        return all(run.stage is FleetStage.ENDED for run in self.journal.runs())

    def submit(self, name: str, files: Path, *, steps: int = 5, **changes: Any) -> FleetRun:
        """Submit a run that does so many steps of ten seconds on one whole node."""
        spec = training(name, **{"env": {"STEPS": str(steps)}, "checkpoint": Checkpoint(to=STORE), **changes})
        spec = replace(spec, resources=replace(spec.resources, cpu_milli=4000))
        return self.journal.submit(spec, files, self.world.now)


def make_fleet(place: Path, *, home: int = 1, cloud: int = 20, wait_s: float = 60.0, **member: Any) -> FleetWorld:
    """A fleet of an own cluster with so many nodes, and a rented one."""
    world = World(
        nodes={
            "home": tuple(node(f"home-{index}") for index in range(home)),
            "cloud": tuple(node(f"cloud-{index}") for index in range(cloud)),
        }
    )
    fleet = Fleet(
        name="research",
        clusters={"home": Member(), "cloud": Member(context="cloud", cpu_price=1.0, **member)},
        wait_s=wait_s,
    )
    place.mkdir(parents=True, exist_ok=True)
    return FleetWorld(world, FleetJournal.create(Home.open(place), fleet))


def random_deaths(seed: int, often: float) -> Callable[[], bool]:
    """Let the controller die at so many of its calls."""
    random = Random(seed)
    return lambda: random.random() < often
