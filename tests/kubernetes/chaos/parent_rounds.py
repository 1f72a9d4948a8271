"""One round of a parent, a relay or a sweep: what its user does, faults of everything, then the reckoning."""

import random
import time
from dataclasses import dataclass, fields
from typing import ClassVar

from fairlead.cluster.kubernetes.api.client import Object
from fairlead.cluster.kubernetes.kinds import objects_path
from fairlead.specs.overlay import overlay
from fairlead.specs.resources import Resources
from fairlead.specs.sweep import Sampler, Sweep, Trial
from fairlead.specs.training import Retry, Training
from fairlead.state.snapshot import Intent
from tests.kubernetes.chaos.reckoning import items, owner_of
from tests.kubernetes.chaos.rounds import FAULTS, GIB, Round, begin_in
from tests.kubernetes.chaos.world import World
from tests.relay import LEGS, Relay

NUM_TRIALS = 40


@dataclass(slots=True)
class RelayRound(Round):
    """A round of three runs one after another.

    Attributes:
        uid: The parent's.
        intent: What was asked for last.
    """

    kind: ClassVar[str] = "Relay"
    children: ClassVar[tuple[str, ...]] = tuple(f"relay-{leg}" for leg in LEGS)
    num_deeds: ClassVar[tuple[int, int]] = (3, 6)
    faults: ClassVar[tuple[str, ...]] = FAULTS

    uid: str = ""
    intent: Intent = Intent.RUN

    def storm(self) -> None:
        """A parent, and then trouble; half of the time it is suspended in between, now and then it is deleted."""
        rng = self.rng
        fakes = {"fake/start": f"{rng.choice((0, 100, 500))}ms", "fake/run": f"{rng.choice((300, 1000))}ms"}
        self.uid = self.submit_parent(fakes)
        for _ in range(rng.randint(*self.num_deeds)):
            time.sleep(rng.uniform(0.02, 0.8))
            name = rng.choice(self.faults if rng.random() < 0.7 else ("suspend_parent", "resume_parent"))
            self._tell(name)
            getattr(self, name)()
        self.world.repair()

    def submit_parent(self, fakes: dict[str, str]) -> str:
        """Submit the parent, of runs whose pods have these annotations; its uid."""
        leg = Training(
            name="leg",
            run="work",
            resources=Resources(cpu_milli=1000, memory_bytes=GIB),
            retry=Retry(infrastructure=1000, program=0, backoff_s=0.1, max_backoff_s=0.4),
            grace_s=2.0,
            kubernetes=overlay({"metadata": {"annotations": fakes}}),
        )
        return self.world.user.submit(self.spec(leg)).uid

    def spec(self, leg: Training) -> Relay | Sweep:
        """The parent of runs like this one."""
        return Relay(name="relay", team=self.namespace, leg=leg)

    def suspend_parent(self) -> None:
        self._want(Intent.SUSPEND)

    def resume_parent(self) -> None:
        self._want(Intent.RUN)

    def settle(self) -> None:
        """Suspend it and see it stand still, if it is not over; let it go on to its end; see what became of it."""
        found: list[str] = []
        if self.rng.random() < 0.3:
            self._want(Intent.SUSPEND)
            self._await(lambda: self._is_still(found), found)
        self._want(Intent.RUN)
        self._await(lambda: self._is_over(found), found)
        self._check_history()

    def clear(self) -> None:
        """Delete it, also where it is not over, and wait until nothing of it is left; an operator may die meanwhile."""
        self._want(Intent.DELETE)
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

    def _want(self, intent: Intent) -> None:
        self._tell(f"{intent.value} the parent")
        self.world.user.set_intent(self.uid, intent)
        self.intent = intent

    def _objects(self, kind: str) -> list[Object]:
        return items(self.world.client, objects_path(kind, self.namespace))

    def _phases(self) -> tuple[str | None, dict[str, str | None]]:
        """The parent's, and its children's by their names."""
        (parent,) = self._objects(self.kind)
        children = {child["metadata"]["name"]: _phase(child) for child in self._objects("Training")}
        return _phase(parent), children

    def _is_still(self, found: list[str]) -> bool:
        self.world.keep_replicas()
        parent, children = self._phases()
        live = [
            pod["metadata"]["name"]
            for pod in items(self.world.client, f"/api/v1/namespaces/{self.namespace}/pods")
            if pod["status"].get("phase") in ("Pending", "Running")
        ]
        found[:] = [f"{parent} with {children} and {live}, wanted Suspended"]
        still = set(children.values()) <= {"Suspended", "Succeeded"} and not live
        return parent == "Succeeded" or (parent == "Suspended" and still)

    def _is_over(self, found: list[str]) -> bool:
        self.world.keep_replicas()
        parent, children = self._phases()
        found[:] = [f"{parent} with {children}, wanted Succeeded"]
        if parent != "Succeeded":
            assert parent != "Failed", self._story(found[0])
            return False
        runs = {run["metadata"]["name"]: run for run in self._objects("Training")}
        wrong = []
        if sorted(runs) != sorted(self.children):
            wrong.append(f"its runs are {sorted(runs)}")
        wrong += [f"{name} is {phase}" for name, phase in children.items() if phase != "Succeeded"]
        wrong += [f"{name} is not its own" for name, run in runs.items() if owner_of(run) != self.uid]
        assert not wrong, self._story("\n".join(wrong))
        return True


class SweepRound(RelayRound):
    """A round of forty trials, eight at once."""

    kind = "Sweep"
    children = tuple(f"grid-{number}" for number in range(NUM_TRIALS))
    num_deeds = (8, 16)
    settle_s = 300.0

    def spec(self, leg: Training) -> Sweep:
        trial = Trial(**{each.name: getattr(leg, each.name) for each in fields(leg) if each.name != "name"})
        values = " | ".join(str(number) for number in range(NUM_TRIALS))
        return Sweep(
            name="grid",
            team=self.namespace,
            parameters={"shard": values},
            sampler=Sampler.GRID,
            parallel=8,
            trial=trial,
        )

    def _is_over(self, found: list[str]) -> bool:
        if not super()._is_over(found):
            return False
        shards = sorted(int(run["spec"]["env"]["FAIRLEAD_PARAM_SHARD"]) for run in self._objects("Training"))
        assert shards == list(range(NUM_TRIALS)), self._story(f"the trials have {shards}")
        return True


def begin_sweep(seed: int, world: World) -> SweepRound:
    """A round of a sweep with a namespace of its own."""
    namespace = begin_in(f"sweep-{seed}", world)
    return SweepRound(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace))


def begin_relay(seed: int, world: World) -> RelayRound:
    """A round with a namespace of its own."""
    namespace = begin_in(f"relay-{seed}", world)
    return RelayRound(seed=seed, world=world, namespace=namespace, rng=random.Random(namespace))


def _phase(content: Object) -> str | None:
    return (content.get("status") or {}).get("phase")
