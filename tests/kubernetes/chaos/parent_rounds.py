"""One round of parents, relays or sweeps: what their user does, faults of everything, then the reckoning."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import ClassVar

from fairlead.cluster.kubernetes.api.client import Object
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.sweep import Sampler, Sweep, Trial
from fairlead.specs.training import Retry, Training
from fairlead.state.snapshot import Intent
from tests.kubernetes.chaos.reckoning import LIVE, items, owner_of
from tests.kubernetes.chaos.rounds import FAULTS, GIB, Round, begin_in
from tests.kubernetes.chaos.world import World
from tests.relay import LEGS, Relay
from tests.rounds import parents_per_storm

NUM_TRIALS = 40


@dataclass(slots=True, kw_only=True)
class Parent:
    """A parent of the round.

    Attributes:
        intent: What was asked for last.
    """

    name: str
    uid: str
    intent: Intent = Intent.RUN


@dataclass(slots=True)
class RelayRound(Round):
    """A round of parents that begin one after another amid the faults, each with three runs one after another.

    Each is met by as many faults as if it were alone: what befalls the cluster befalls all, and what befalls a pod
    befalls one of each.

    Attributes:
        parents: Those that were submitted so far.
    """

    kind: ClassVar[str] = "Relay"
    names: ClassVar[tuple[str, ...]] = tuple(f"relay{number}" for number in range(5))
    parts: ClassVar[tuple[str, ...]] = LEGS
    num_deeds: ClassVar[tuple[int, int]] = (3, 6)
    faults: ClassVar[tuple[str, ...]] = FAULTS

    parents: list[Parent] = field(default_factory=list)

    def storm(self) -> None:
        """Parents, and then trouble; half of the time one is suspended in between, now and then it is deleted."""
        rng = self.rng
        num_deeds = rng.randint(*self.num_deeds)
        begins = [0, *(rng.randrange(num_deeds) for _ in self.names[1:])]
        for deed in range(num_deeds):
            for name, begin in zip(self.names, begins, strict=True):
                if begin == deed:
                    self._begin(name)
            time.sleep(rng.uniform(0.02, 0.8))
            chosen = rng.choice(self.faults if rng.random() < 0.7 else ("suspend_parent", "resume_parent"))
            self._tell(chosen)
            getattr(self, chosen)()
        self.world.repair()

    def _begin(self, name: str) -> None:
        rng = self.rng
        fakes = {"fake/start": f"{rng.choice((0, 100, 500))}ms", "fake/run": f"{rng.choice((300, 1000))}ms"}
        self._tell(f"submit {name}")
        self.parents.append(Parent(name=name, uid=self.submit_parent(name, fakes)))

    def submit_parent(self, name: str, fakes: dict[str, str]) -> str:
        """Submit a parent, of runs whose pods have these annotations; its uid."""
        leg = Training(
            name="leg",
            run="work",
            resources=Resources(cpu_milli=1000, memory_bytes=GIB),
            retry=Retry(infrastructure=1000, program=0, backoff_s=0.1, max_backoff_s=0.4),
            grace_s=2.0,
            kubernetes=overlay({"metadata": {"annotations": fakes}}),
        )
        return self.world.user.submit(self.spec(name, leg)).uid

    def spec(self, name: str, leg: Training) -> Relay | Sweep:
        """The parent of runs like this one."""
        return Relay(name=name, team=self.namespace, leg=leg)

    def suspend_parent(self) -> None:
        self._want(Intent.SUSPEND, self._some())

    def resume_parent(self) -> None:
        self._want(Intent.RUN, self._some())

    def settle(self) -> None:
        """Suspend some and see them stand still, if they are not over; let all go on to their ends; see what became."""
        found: list[str] = []
        held = [parent for parent in self.parents if self.rng.random() < 0.3]
        if held:
            self._want(Intent.SUSPEND, held)
            self._await(lambda: self._are_so(self._moving, held, found), found)
        self._want(Intent.RUN, self.parents)
        self._await(lambda: self._are_so(self._unfinished, self.parents, found), found)
        self._check_history()

    def clear(self) -> None:
        """Delete all, also one that is not over, and wait until nothing is left; an operator may die meanwhile."""
        self._want(Intent.DELETE, self.parents)
        if self.rng.random() < 0.5:
            self._tell("kill_operator")
            self.kill_operator()
        left: list[str] = []

        def is_empty() -> bool:
            self.world.keep_replicas()
            left[:] = [*self._left(), *(f"parent/{each['metadata']['name']}" for each in self._objects(self.kind))]
            return not left

        self._await(is_empty, left)
        self._check_history()
        self.world.client.delete(f"/api/v1/namespaces/{self.namespace}")

    def _pods(self) -> list[str]:
        """One pod at random of each parent that has any."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        names = sorted(pod["metadata"]["name"] for pod in self.world.client.items(path))
        own = ([name for name in names if name.startswith(f"{parent.name}-")] for parent in self.parents)
        return [self.rng.choice(each) for each in own if each]

    def _some(self) -> list[Parent]:
        """One parent at random, and each other one half of the time."""
        first = self.rng.choice(self.parents)
        return [each for each in self.parents if each is first or self.rng.random() < 0.5]

    def _want(self, intent: Intent, parents: list[Parent]) -> None:
        for parent in parents:
            self._tell(f"{intent.value} {parent.name}")
            self.world.user.set_intent(parent.uid, intent)
            parent.intent = intent

    def _objects(self, kind: str) -> list[Object]:
        return items(self.world.client, objects_path(kind, self.namespace))

    def _are_so(
        self, problem_of: Callable[[Parent, str | None, dict[str, Object]], str | None], parents: list[Parent],
        found: list[str],
    ) -> bool:  # fmt: skip
        """Return whether none of them has this problem; `found` are those that there are."""
        self.world.keep_replicas()
        phases = {each["metadata"]["uid"]: _phase(each) for each in self._objects(self.kind)}
        runs = self._objects("Training")
        found[:] = filter(None, (
            problem_of(parent, phases.get(parent.uid), {
                run["metadata"]["name"]: run for run in runs if run["metadata"]["name"].startswith(f"{parent.name}-")
            })
            for parent in parents
        ))  # fmt: skip
        return not found

    def _moving(self, parent: Parent, phase: str | None, runs: dict[str, Object]) -> str | None:
        """Return what of a suspended parent does not stand still."""
        pods = items(self.world.client, f"/api/v1/namespaces/{self.namespace}/pods")
        live = [
            pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"]["name"].startswith(f"{parent.name}-") and pod["status"].get("phase") in LIVE
        ]
        phases = {name: _phase(run) for name, run in runs.items()}
        still = set(phases.values()) <= {"Suspended", "Succeeded"} and not live
        if phase == "Succeeded" or (phase == "Suspended" and still):
            return None
        return f"{parent.name} is {phase} with {phases} and {live}, wanted Suspended"

    def _unfinished(self, parent: Parent, phase: str | None, runs: dict[str, Object]) -> str | None:
        """Return what of a parent that goes on to its end is not over; fails for what can become right no more."""
        phases = {name: _phase(run) for name, run in runs.items()}
        told = f"{parent.name} is {phase} with {phases}, wanted Succeeded"
        if phase != "Succeeded":
            assert phase != "Failed", self._story(told)
            return told
        wrong = []
        if sorted(runs) != sorted(f"{parent.name}-{part}" for part in self.parts):
            wrong.append(f"the runs of {parent.name} are {sorted(runs)}")
        wrong += [f"{name} is {child}" for name, child in phases.items() if child != "Succeeded"]
        wrong += [f"{name} is not of {parent.name}" for name, run in runs.items() if owner_of(run) != parent.uid]
        assert not wrong, self._story("\n".join(wrong))
        return None


class SweepRound(RelayRound):
    """A round of sweeps of forty trials, eight of each at once."""

    kind = "Sweep"
    names = tuple(f"grid{number}" for number in range(parents_per_storm()))
    parts = tuple(str(number) for number in range(NUM_TRIALS))
    num_deeds = (8, 16)
    settle_s = 300.0

    def spec(self, name: str, leg: Training) -> Sweep:
        trial = Trial(**{each.name: getattr(leg, each.name) for each in fields(leg) if each.name != "name"})
        values = " | ".join(str(number) for number in range(NUM_TRIALS))
        return Sweep(
            name=name,
            team=self.namespace,
            parameters={"shard": values},
            sampler=Sampler.GRID,
            parallel=8,
            trial=trial,
        )

    def _unfinished(self, parent: Parent, phase: str | None, runs: dict[str, Object]) -> str | None:
        told = super()._unfinished(parent, phase, runs)
        if told is None:
            shards = sorted(int(run["spec"]["env"]["FAIRLEAD_PARAM_SHARD"]) for run in runs.values())
            assert shards == list(range(NUM_TRIALS)), self._story(f"the trials have {shards}")
        return told


def begin_sweep(seed: int, world: World) -> SweepRound:
    """A round of sweeps with a namespace of its own."""
    namespace = begin_in(f"sweep-{seed}", world)
    return SweepRound(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace))


def begin_relay(seed: int, world: World) -> RelayRound:
    """A round with a namespace of its own."""
    namespace = begin_in(f"relay-{seed}", world)
    return RelayRound(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace))


def _phase(content: Object) -> str | None:
    return (content.get("status") or {}).get("phase")
