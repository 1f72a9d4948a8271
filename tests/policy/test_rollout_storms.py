"""Rollouts of endpoints that sleep, wake and lose replicas meanwhile: requests go where routes say, and decide."""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from fairlead.state.demand import CanaryTraffic, Demand, RevisionTraffic
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.snapshot import Phase
from tests.builders import status
from tests.policy.test_serving import World, spec
from tests.rounds import rounds

CONFIDENCE = 0.95
KEYS = {"replicas": "0..2", "scale": "{idle: 10s, window: 5s}", "canary": "{steps: [25%, 50%], errors: 20%}"}


@dataclass
class Stormy(World):
    """An endpoint that gets requests now and then, whose replicas are lost now and then.

    Attributes:
        rng: Of everything that happens by chance.
        failing: The part of requests that a revision fails, by name.
        loses: The probability that a replica is lost in a second.
        rate: Requests in a second.
        held: Requests that wait for a replica.
        better: Pairs in which only the old revision's request failed.
        answers: Requests answered, by revision and whether they failed.
    """

    rng: random.Random = field(default_factory=random.Random)
    failing: dict[str, float] = field(default_factory=dict)
    loses: float = 0.0
    rate: int = 0
    held: int = 0
    better: int = 0
    answers: Counter[tuple[str, bool]] = field(default_factory=Counter)
    _ahead: dict[str, list[bool]] = field(default_factory=lambda: {"canary": [], "control": []})
    _trial: str = ""

    def second(self) -> None:
        for name, each in self.replicas.items():
            if each.status.phase is Phase.RUNNING and self.rng.random() < self.loses:
                self.replicas[name] = replace(each, status=status(Phase.STARTING), created_at=self.now)
        trial = detail_of(self.serving).canary
        if trial is not None and trial.name != self._trial:
            self._trial, self.pairs, self.worse, self.better = trial.name, 0, 0, 0
            self._ahead = {"canary": [], "control": []}
        self._answer()
        self.run(1.0)

    def _answer(self) -> None:
        if self.rate:
            self.last_request = self.now
        self.held += self.rate
        shares = self.shares if self.replicas else []
        if not shares:
            return
        for _ in range(self.held):
            ((name, arm, _, _),) = self.rng.choices(shares, weights=[weight for _, _, weight, _ in shares])
            failed = self.rng.random() < self.failing[name]
            self.answers[name, failed] += 1
            if arm:
                self._ahead[arm].append(failed)
        self.held = 0
        while self._ahead["canary"] and self._ahead["control"]:
            new, old = self._ahead["canary"].pop(0), self._ahead["control"].pop(0)
            self.pairs += 1
            self.worse += int(new and not old)
            self.better += int(old and not new)

    def _demand(self) -> Demand:
        trial = detail_of(self.serving).canary
        worse, better = {"failed": self.worse}, {"failed": self.better}
        counts = CanaryTraffic(
            trial=self._trial, gateway="local@0", pairs=self.pairs, worse=worse, better=better,
        )  # fmt: skip
        names = {name for name, _ in self.answers}
        traffic = (
            RevisionTraffic(
                name=name, requests=self.answers[name, True] + self.answers[name, False],
                errors=self.answers[name, True],
            )
            for name in sorted(names)
        )  # fmt: skip
        return Demand(
            since=self.began, in_flight=self.held, queued=self.held, wake=self.now if self.held else None,
            last_request=self.last_request, revisions=tuple(traffic),
            canaries=() if trial is None or trial.name != self._trial else (counts,),
        )  # fmt: skip


def rolled_out(seed: int, failing: float, *, old: float = 0.01, seconds: int = 240) -> Stormy:
    """An endpoint to which another revision came at some moment of its sleep or its work."""
    rng = random.Random(seed)
    world = Stormy(spec(**KEYS), in_flight=lambda _: 0, rng=rng, failing={"r1": old, "r2": failing})
    starts = {name: rng.choice((1.0, 2.0, 6.0)) for name in ("r1", "r2")}
    world.start_s = lambda replica: starts[replica.revision]
    world.rate = 5
    for _ in range(6):
        world.second()
    world.loses = rng.choice((0.0, 0.02))
    begins, turn = rng.randrange(2, 40), 0
    decided: int | None = None
    for second in range(seconds):
        if second == begins:
            world.change(spec(**KEYS, env="{VERSION: b}"))
        if not turn:
            busy = not world.rate
            world.rate, turn = (rng.choice((3, 10)), rng.randrange(10, 60)) if busy else (0, rng.randrange(3, 25))
        turn -= 1
        world.second()
        if decided is None and is_decided(world):
            decided = second
        if decided is not None and second > decided + 20:
            break
    return world


def is_decided(world: Stormy) -> bool:
    return kinds(world)[-1:] in (["CanaryPromoted"], ["CanaryRolledBack"])


@pytest.mark.parametrize("seed", rounds(6, 60))
def test_a_revision_that_fails_is_never_promoted_whatever_becomes_of_the_old_one(seed: int) -> None:
    world = rolled_out(seed, failing=(1.0, 0.7)[seed % 2])
    assert detail_of(world.serving).serving == 1, world.events
    assert [each for each in kinds(world) if each != "CanaryStep"] == ["CanaryStarted", "CanaryRolledBack"]
    assert world.answers["r2", True] < 100


@pytest.mark.parametrize("most", [4, pytest.param(60, marks=pytest.mark.long)])
def test_of_revisions_that_are_no_worse_few_are_rolled_back_and_the_others_take_over(most: int) -> None:
    ends = Counter(kinds(rolled_out(1_000 + seed, failing=0.01))[-1] for seed in range(most))
    assert ends["CanaryRolledBack"] <= (1 - CONFIDENCE) * most
    assert ends["CanaryPromoted"] + ends["CanaryRolledBack"] == most, ends


def kinds(world: Stormy) -> list[str]:
    """The types of events about its canary."""
    return [event.split(":")[0] for event in world.events if event.startswith("Canary")]
