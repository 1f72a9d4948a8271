"""What becomes of an endpoint: its replicas, its revisions, and how many of them there are."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fairlead.errors import InvalidSpec
from fairlead.policy.kinds.parents import families_at
from fairlead.policy.kinds.serving import judge, next_at, progress
from fairlead.policy.serving.rollout import DRAIN_S
from fairlead.policy.serving.routes import places_here, public_names, routes
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Replica, Serving
from fairlead.state.demand import CanaryTraffic, Demand, Interval, RevisionTraffic, Second
from fairlead.state.endpoint_detail import Going, detail_of
from fairlead.state.measurements import Measurement, Sample
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import AnyWorkload, Grant, Intent, Phase, Pod, PodPhase, Snapshot, Workload
from tests.builders import node, status
from tests.policy.carrying_out import carried_out

BROKEN = Reason(code=Code.PROGRAM_FAILED, message="rank 0 exited with code 1")


def spec(**changes: str) -> Serving:
    keys = {"run": "serve $PORT", **changes}
    (found,) = parse("\n".join(["kind: Serving", "name: chat", *(f"{key}: {value}" for key, value in keys.items())]))
    assert isinstance(found, Serving)
    return found


@dataclass
class World:
    """An endpoint whose replicas are ready a while after they were submitted; whatever is decided is done at once.

    Attributes:
        start_s: Seconds until a replica is ready; by its run's command, None for never.
        in_flight: Requests in flight at a time, as the gateway counts them; None where nobody counts.
        pairs: Of a canary and of the old revision, how many the gateway has compared of the trial that it was told.
        worse: Of them, those in which only the canary's request failed.
        gateway_began: When the gateway began to count.
        told_canaries: What gateways tell of a trial, in the place of ``pairs`` and ``worse``.
        answered: Requests that each revision answered, and failed of them, as the gateway counts them.
        service_s: How long a request has a place of a replica; None where no request ends.
        room: Replicas that the machine has room for.
        measure: What its query answers at a time, a number or why there is none; None where nobody asks.
    """

    spec: Serving
    start_s: Callable[[Replica], float | None] = lambda _: 2.0
    in_flight: Callable[[float], int] | None = None
    replicas: dict[str, Workload] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    now: float = 1_000_000_000.0
    most: int = 0
    fewest_ready: int = 0
    seconds: list[Second] = field(default_factory=list)
    last_request: float | None = None
    pairs: int = 0
    worse: int = 0
    gateway_began: float = 0.0
    told_canaries: tuple[CanaryTraffic, ...] = ()
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    service_s: float | None = None
    room: int = 100
    intervals: list[Interval] = field(default_factory=list)
    measure: Callable[[float], float | str] | None = None
    samples: list[Sample] = field(default_factory=list)
    problem: str | None = None

    def __post_init__(self) -> None:
        self.began = self.now
        self.serving: Workload[Serving] = Workload(
            uid="parent",
            spec=self.spec,
            intent=Intent.RUN,
            status=status(Phase.PENDING),
            version=1,
            created_at=self.now,
        )

    def change(self, spec: Serving) -> None:
        self.serving = replace(self.serving, spec=spec, version=self.serving.version + 1)

    def snapshot(self) -> Snapshot:
        demand = {} if self.in_flight is None else {"parent": self._demand()}
        pods = tuple(self._pod(each) for each in self.replicas.values() if each.status.phase is not Phase.PENDING)
        runs = tuple(self.replicas.values())
        here = node("here", cpu_milli=1_000 * self.room)
        known = Measurement(since=self.began, samples=tuple(self.samples), problem=self.problem)
        return Snapshot(
            nodes=(here,), workloads=runs, pods=pods, parents=(self.serving,), demand=demand,
            measurements={} if self.measure is None else {"parent": known},
        )  # fmt: skip

    def pass_once(self) -> Change | None:
        family = families_at(self.snapshot(), self.now)["parent"]
        change = judge(self.serving, family, self.now)
        if change is None:
            return None
        effect = carried_out(self.serving, change, self.now, self.replicas.values())
        assert effect.after is not None
        self.serving = effect.after
        if effect.event is not None:
            self.events.append(f"{effect.event.type}: {effect.event.reason.message}")
        for order in effect.submitted:
            assert order.name not in self.replicas, "a replica was submitted twice"
            assert isinstance(order.spec, Replica)
            self.replicas[order.name] = Workload(
                uid=order.uid, spec=order.spec, intent=Intent.RUN,
                status=status(Phase.STARTING if self._has_room() else Phase.PENDING), version=1,
                created_at=self.now, parent="parent",
            )  # fmt: skip
        for wish in effect.requested:
            (name,) = (name for name, each in self.replicas.items() if each.uid == wish.uid)
            assert not self._serves(name), "a replica was stopped that requests were sent to"
            if wish.intent is Intent.DELETE:
                del self.replicas[name]
            else:
                stopped = replace(self.replicas[name], status=status(Phase.STOPPED), intent=wish.intent)
                self.replicas[name] = stopped
        return change

    def run(self, seconds: float) -> None:
        """Let time pass, half a second at a time."""
        self.fewest_ready = 1_000
        until = self.now + seconds
        while self.now < until:
            self.now += 0.5
            if self.in_flight is not None and self.now % 1.0 == 0.0:
                self._count()
            if self.measure is not None and self.now % 5.0 == 0.0:
                self._ask(self.measure(self.now - self.began))
            self._start()
            while self.pass_once() is not None:
                pass
            unfinished = [each for each in self.replicas.values() if not each.status.phase.is_final]
            self.most = max(self.most, len(unfinished))
            self.fewest_ready = min(self.fewest_ready, len(self.ready))

    @property
    def ready(self) -> list[str]:
        """The replicas that requests are sent to, by revision and name."""
        urls = {self._pod(each).uid: name for name, each in self.replicas.items()}
        (service,) = routes(self.snapshot(), places_here(self.snapshot()), urls)["services"].values()
        return sorted({each["url"] for revision in service["revisions"] for each in revision["replicas"]})

    @property
    def shares(self) -> list[tuple[str, str, int, list[str]]]:
        """Where requests go: revision, side of a trial, weight, replicas."""
        return [
            (each["name"], each["arm"], each["weight"], [replica["url"] for replica in each["replicas"]])
            for each in self.told["revisions"]
        ]

    @property
    def told(self) -> dict[str, Any]:
        """Everything that the gateway is told of it."""
        urls = {self._pod(each).uid: name for name, each in self.replicas.items()}
        found: dict[str, Any]
        (found,) = routes(self.snapshot(), places_here(self.snapshot()), urls)["services"].values()
        return found

    @property
    def names(self) -> list[str]:
        return sorted(self.replicas)

    @property
    def said(self) -> str:
        return self.serving.status.reason.message

    def fail(self, name: str) -> None:
        failed = status(Phase.RESTARTING, reason=BROKEN, disruptions=3)
        self.replicas[name] = replace(self.replicas[name], status=failed)

    def _ask(self, answer: float | str) -> None:
        self.problem = answer if isinstance(answer, str) else None
        if not isinstance(answer, str):
            self.samples.append(Sample(at=self.now, value=answer, replicas=len(self.ready)))
        self.samples = [each for each in self.samples if each.at > self.now - 120]

    def _start(self) -> None:
        for name, each in self.replicas.items():
            assert isinstance(each.spec, Replica)
            if each.status.phase is Phase.PENDING and self._has_room():
                self.replicas[name] = replace(each, status=status(Phase.STARTING))
            start_s = self.start_s(each.spec)
            if start_s is not None and each.status.phase is Phase.STARTING and self.now >= each.created_at + start_s:
                self.replicas[name] = replace(each, status=status(Phase.RUNNING))

    def _has_room(self) -> bool:
        return self.room > sum(
            not each.status.phase.is_final and each.status.phase is not Phase.PENDING for each in self.replicas.values()
        )

    def _serves(self, name: str) -> bool:
        return name in self.ready

    def _pod(self, replica: AnyWorkload) -> Pod:
        return Pod(
            uid=f"{replica.uid}-0-0", workload_uid=replica.uid, attempt=0, index=0, node="here",
            grant=Grant(cpu_milli=1_000), phase=PodPhase.RUNNING, created_at=self.now,
            ready=replica.status.phase is Phase.RUNNING,
        )  # fmt: skip

    def _count(self) -> None:
        assert self.in_flight is not None
        number = self.in_flight(self.now - self.began)
        if number:
            self.last_request = self.now
            self.seconds.append(Second(at=int(self.now), arrivals=number, in_flight=number))
        self.seconds = [each for each in self.seconds if each.at > self.now - 120]
        at = int(self.now) // 10 * 10
        before = self.intervals.pop() if self.intervals and self.intervals[-1].at == at else Interval(at=at)
        took_s = self.service_s
        if took_s is None:
            self.intervals.append(replace(before, arrivals=before.arrivals + number))
        else:
            ended = before.ended + number
            self.intervals.append(
                Interval(
                    at=at, arrivals=ended, ended=ended, busy_s=ended * took_s, took_s=ended * took_s,
                    took_s2=ended * took_s**2,
                )
            )  # fmt: skip

    def _demand(self) -> Demand:
        assert self.in_flight is not None
        number = self.in_flight(self.now - self.began)
        trial = detail_of(self.serving).canary
        canary = None
        if trial is not None:
            by = f"local@{self.gateway_began}"
            canary = CanaryTraffic(trial=trial.name, gateway=by, pairs=self.pairs, worse={"failed": self.worse})
        return Demand(
            since=max(self.began, self.gateway_began), in_flight=number, last_request=self.last_request,
            seconds=tuple(self.seconds), intervals=tuple(self.intervals[-90:]),
            canaries=self.told_canaries or (() if canary is None else (canary,)),
            revisions=tuple(
                RevisionTraffic(name=name, requests=requests, errors=errors)
                for name, (requests, errors) in self.answered.items()
            ),
        )  # fmt: skip


def test_a_pass_over_many_unchanged_endpoints_reads_none_of_their_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [World(replace(spec(), name=f"chat-{number}")) for number in range(300)]
    for world in (*worlds, *worlds):
        world.pass_once()
    read: list[str] = []
    monkeypatch.setattr("fairlead.policy.kinds.serving.from_json", read.append)
    for world in worlds:
        world.pass_once()
    assert read == []


def test_replicas_are_submitted_and_serve_once_they_are_ready() -> None:
    world = World(spec(replicas="2"))
    world.run(1)
    assert world.names == ["r1-1", "r1-2"]
    assert world.ready == []
    assert world.said.startswith("0 of 2 replicas of r1 are ready; chat-r1-1 is Starting")
    world.run(3)
    assert world.ready == ["r1-1", "r1-2"]
    assert world.said == "2 of 2 replicas of r1 are ready"
    assert world.events == ["RolloutStarted: rolling out r1", "RevisionReady: r1 is ready and serves"]


def test_one_that_is_over_is_replaced_under_another_name() -> None:
    world = World(spec(replicas="2"))
    world.run(4)
    world.replicas["r1-1"] = replace(world.replicas["r1-1"], status=status(Phase.STOPPED), intent=Intent.STOP)
    world.run(4)
    assert world.ready == ["r1-2", "r1-3"]
    assert "r1-1" not in world.replicas


def test_fewer_replicas_are_told_to_nobody_before_they_are_stopped() -> None:
    world = World(spec(replicas="3"))
    world.run(4)
    world.change(spec(replicas="1"))
    world.now += 0.5
    world.pass_once()
    assert world.ready == ["r1-1"]
    assert world.names == ["r1-1", "r1-2", "r1-3"]
    assert next_at(world.serving, families_at(world.snapshot(), world.now)["parent"], world.now) == world.now + DRAIN_S
    world.run(2)
    assert world.names == ["r1-1"]
    assert detail_of(world.serving).going == ()
    assert len(detail_of(world.serving).revisions) == 1


def test_another_spec_takes_over_replica_by_replica_and_never_leaves_fewer() -> None:
    world = World(spec(replicas="3"))
    world.run(4)
    world.most = 0
    world.change(spec(replicas="3", run="better $PORT"))
    world.run(20)
    assert world.ready == ["r2-4", "r2-5", "r2-6"]
    assert world.most == 4
    assert world.fewest_ready == 3


def test_without_surge_there_are_never_more_than_wanted() -> None:
    world = World(spec(replicas="2", rollout="{max_surge: 0}"))
    world.run(4)
    world.most = 0
    world.change(spec(replicas="2", rollout="{max_surge: 0}", run="better $PORT"))
    world.run(20)
    assert world.ready == ["r2-3", "r2-4"]
    assert world.most == 2
    assert world.fewest_ready == 1


def broken_at_first(replica: Replica) -> float | None:
    return None if replica.run.startswith("broken") else 2.0


def test_a_revision_that_is_never_ready_takes_nothing_and_says_why() -> None:
    world = World(spec(replicas="2", ready_within="30s"), start_s=broken_at_first)
    world.run(4)
    world.change(spec(replicas="2", ready_within="30s", run="broken $PORT"))
    world.run(5)
    world.fail("r2-3")
    world.run(40)
    assert world.ready == ["r1-1", "r1-2"]
    assert world.fewest_ready == 2
    assert world.names == ["r1-1", "r1-2", "r2-3"], "its newest replica stays, stopped, for its output"
    assert world.replicas["r2-3"].status.phase is Phase.STOPPED
    why = "no replica of it was ready within 30s; chat-r2-3 is Restarting: rank 0 exited with code 1"
    assert world.events[-1] == f"RevisionFailed: the rollout of r2 failed and r1 keeps serving: {why}"
    assert world.said == f"2 of 2 replicas of r1 are ready; r2 was given up: {why}"


def test_a_revision_has_its_whole_time_again_after_its_endpoint_stood_still() -> None:
    world = World(spec(ready_within="30s"), start_s=lambda replica: 20.0 if replica.run.startswith("slow") else 2.0)
    world.run(4)
    world.change(spec(ready_within="30s", run="slow $PORT"))
    world.run(5)
    # As it is once it was suspended for an hour, and resumed.
    world.now += 3_600
    world.serving = replace(world.serving, status=replace(world.serving.status, phase=Phase.PENDING))
    slow = next(name for name in world.names if name.startswith("r2"))
    world.replicas[slow] = replace(world.replicas[slow], created_at=world.now)
    world.run(10)
    assert "RevisionFailed" not in " ".join(world.events)
    world.run(15)
    assert world.ready == [slow]


def test_a_corrected_revision_follows_one_that_was_given_up() -> None:
    world = World(spec(ready_within="5s"), start_s=broken_at_first)
    world.run(4)
    world.change(spec(ready_within="5s", run="broken $PORT"))
    world.run(20)
    world.change(spec(ready_within="5s", run="better $PORT"))
    world.run(20)
    assert world.names == ["r3-3"]
    assert world.said == "1 of 1 replica of r3 is ready"


def test_the_spec_of_before_is_the_revision_of_before() -> None:
    world = World(spec())
    world.run(4)
    world.change(spec(run="better $PORT"))
    world.run(6)
    world.change(spec())
    world.run(6)
    assert world.ready == ["r1-3"]
    assert [each.name for each in detail_of(world.serving).revisions] == ["r1", "r2"]


def test_going_back_while_the_old_one_still_serves_asks_nothing_of_it_anew() -> None:
    world = World(spec(replicas="2"), start_s=broken_at_first)
    world.run(4)
    world.change(spec(replicas="2", run="broken $PORT"))
    world.run(4)
    world.change(spec(replicas="2"))
    world.run(4)
    assert world.names == ["r1-1", "r1-2"]
    assert world.fewest_ready == 2


def test_the_first_revision_is_tried_for_as_long_as_it_takes() -> None:
    world = World(spec(ready_within="5s"), start_s=broken_at_first)
    world.change(spec(ready_within="5s", run="broken $PORT"))
    world.run(3)
    world.fail("r1-1")
    world.run(60)
    assert world.names == ["r1-1"]
    assert "chat-r1-1 is Restarting: rank 0 exited" in world.said
    (service,) = routes(world.snapshot(), places_here(world.snapshot()), {})["services"].values()
    assert service["failure"] == "chat-r1-1 is Restarting: rank 0 exited with code 1"


def test_replicas_follow_the_requests_in_flight() -> None:
    asked = spec(replicas="1..5", scale="{concurrency: 4, window: 30s}")
    world = World(asked, in_flight=lambda at: 12 if at > 60 else 1)
    world.run(60)
    assert len(world.ready) == 1
    world.run(10)
    assert len(world.ready) == 3
    assert world.most == 3


def test_no_replica_goes_before_the_window_is_over() -> None:
    world = World(spec(replicas="1..5", scale="{window: 30s}"), in_flight=lambda at: 16 if at < 40 else 1)
    world.run(40)
    assert len(world.ready) == 4
    world.run(25)
    assert len(world.ready) == 4
    world.run(15)
    assert len(world.ready) == 1


def test_a_load_that_comes_and_goes_moves_nothing() -> None:
    world = World(spec(replicas="1..8"), in_flight=lambda at: 16 if int(at / 10) % 2 else 3)
    world.run(300)
    scaled = [each for each in world.events if each.startswith("Scaled")]
    assert scaled == ["Scaled: from 1 to 2 replicas", "Scaled: from 2 to 3 replicas", "Scaled: from 3 to 4 replicas"]


def test_an_endpoint_without_requests_sleeps_and_wakes() -> None:
    def asked(at: float) -> int:
        return 1 if at < 20 or at > 200 else 0

    world = World(spec(replicas="0..2", scale="{idle: 60s, window: 10s}"), in_flight=asked)
    world.run(75)
    assert world.ready == ["r1-1"]
    world.run(20)
    assert world.names == []
    assert world.said == "asleep after 1m without a request; the next one wakes it"
    world.run(100)
    assert world.names == []
    world.run(10)
    assert world.ready == ["r1-2"]


def test_an_endpoint_that_sleeps_shows_a_new_revision_once() -> None:
    world = World(spec(replicas="0..2", scale="{idle: 20s}"), in_flight=lambda _: 0)
    world.run(40)
    assert world.names == []
    world.change(spec(replicas="0..2", scale="{idle: 20s}", run="better $PORT"))
    world.run(5)
    assert world.ready == ["r2-2"]
    world.run(30)
    assert world.names == []


@pytest.mark.parametrize(("intent", "phase"), [(Intent.STOP, Phase.STOPPED), (Intent.SUSPEND, Phase.SUSPENDED)])
def test_no_replica_of_an_endpoint_that_was_halted_counts_as_ready(intent: Intent, phase: Phase) -> None:
    world = World(spec(replicas="2"))
    world.run(4)
    assert progress(world.serving) == "2/2 ready"
    halted = replace(world.serving, intent=intent, status=replace(world.serving.status, phase=phase))
    assert progress(halted) == "0/0 ready"


def test_a_replica_that_goes_is_remembered_until_it_is_gone() -> None:
    world = World(spec(replicas="2"))
    world.run(4)
    world.change(spec(replicas="1"))
    world.pass_once()
    assert detail_of(world.serving).going == (Going(name="r1-2", since=world.now),)


def test_two_endpoints_never_have_one_address() -> None:
    def endpoint(name: str, team: str, at: float) -> Workload[Serving]:
        made = Serving(name=name, team=team, run="serve $PORT")
        return replace(World(made).serving, uid=f"{team}/{name}", created_at=at)

    first, asked = endpoint("chat", "vision", 1.0), endpoint("text-chat", "vision", 2.0)
    second = endpoint("chat", "text", 3.0)
    names = public_names(Snapshot(nodes=(), workloads=(), pods=(), parents=(first, asked, second)))
    assert names == {"vision/chat": "chat", "vision/text-chat": "text-chat", "text/chat": "text-text-chat"}


def with_canary(world: World | None = None, canary: str = "{steps: [10%, 50%]}", **changes: str) -> World:
    """An endpoint of which another revision is ready and on trial."""
    keys = {"replicas": "4", "canary": canary, **changes}
    world = world or World(spec(**keys), in_flight=lambda _: 1)
    world.run(5)
    world.change(spec(**keys, env="{VERSION: b}"))
    world.run(5)
    return world


def test_a_canary_gets_its_share_beside_an_equal_one_of_the_old_revision() -> None:
    world = with_canary()
    assert world.shares == [
        ("r1", "", 800, ["r1-2", "r1-3", "r1-4"]),
        ("r1", "control", 100, ["r1-1"]),
        ("r2", "canary", 100, ["r2-5"]),
    ]
    assert world.most == 5
    assert world.said == (
        "r2 is a canary with 10.0% of the requests; 0 pairs compared with r1, 0% of the evidence is there; "
        "1 of r2 and 4 of r1 are ready"
    )
    assert world.events[-1] == "CanaryStarted: r2 gets 10.0% of the requests beside as many of r1"


def test_a_shadow_gets_copies_of_its_share_and_the_old_revision_answers_and_keeps_all_its_replicas() -> None:
    world = with_canary(canary="{steps: [10%, 50%], shadow: true}", idempotent="true")
    old = ["r1-1", "r1-2", "r1-3", "r1-4"]
    assert world.shares == [("r1", "", 900, old), ("r1", "control", 100, old), ("r2", "canary", 100, ["r2-5"])]
    assert world.said.startswith("r2 is a canary with copies of 10.0% of the requests; 0 pairs compared with r1")
    assert world.events[-1] == "CanaryStarted: r2 gets copies of 10.0% of the requests, which r1 answers"
    world.pairs = 450
    world.run(5)
    assert world.shares == [("r1", "", 500, old), ("r1", "control", 500, old), ("r2", "canary", 500, ["r2-5"])]
    world.pairs = 600
    world.run(15)
    assert world.shares == [("r2", "", 4, world.ready)]
    assert world.fewest_ready >= 4


def test_a_shadow_is_refused_where_requests_may_not_be_answered_twice_or_it_has_no_room() -> None:
    with pytest.raises(InvalidSpec, match="say that they may be with `idempotent: true`"):
        spec(canary="{shadow: true}")
    with pytest.raises(InvalidSpec, match="the old revision answers all requests and keeps its replicas"):
        spec(replicas="3", idempotent="true", rollout="{max_surge: 0}", canary="{shadow: true}")


def test_a_canary_goes_on_as_its_evidence_grows_and_takes_over_once_it_is_there() -> None:
    world = with_canary()
    world.pairs = 450
    world.run(5)
    assert world.events[-1] == "CanaryStep: r2 gets 50.0% of the requests beside as many of r1"
    assert [(name, arm, weight, len(found)) for name, arm, weight, found in world.shares] == [
        ("r1", "control", 500, 3),
        ("r2", "canary", 500, 2),
    ]
    assert world.most == 5
    world.pairs = 600
    world.run(15)
    assert world.ready == ["r2-5", "r2-6", "r2-7", "r2-8"]
    assert world.shares == [("r2", "", 4, world.ready)]
    assert "CanaryPromoted: r2 is no worse than r1 by 600 pairs of requests (confidence 0.95) and takes over" in (
        world.events
    )
    assert world.fewest_ready >= 4


def test_a_canary_that_fails_more_often_gets_nothing_from_then_on_and_says_why() -> None:
    world = with_canary(replicas="1")
    world.pairs, world.worse = 40, 20
    world.run(1)
    assert world.ready == ["r1-1"]
    why = "of 40 pairs of requests only its own failed in 20, and only that of r1 in 0"
    assert world.events[-1] == f"CanaryRolledBack: r2 is rolled back and r1 serves: {why}"
    world.run(60)
    assert world.ready == ["r1-1"]
    assert world.said == f"1 of 1 replica of r1 is ready; r2 was given up: {why}"


def test_what_was_compared_outlives_the_gateway_that_counted_it() -> None:
    world = with_canary()
    world.pairs = 400
    world.run(2)
    world.gateway_began, world.pairs = world.now, 0
    world.run(2)
    assert "400 pairs compared" in world.said
    world.pairs = 200
    world.run(2)
    assert world.events[-1].startswith("CanaryPromoted: r2 is no worse than r1 by 600 pairs")


def test_the_old_revision_stays_where_nothing_is_known_in_time() -> None:
    world = with_canary(canary="{within: 1m}")
    world.pairs = 10
    world.run(70)
    assert world.ready == ["r1-1", "r1-2", "r1-3", "r1-4"]
    assert "after 1m with 10 pairs of requests it is not known whether it is as good as r1" in world.said


def test_one_that_was_rolled_back_is_tried_again_under_other_rules() -> None:
    world = with_canary(canary="{within: 1m}")
    world.run(70)
    world.change(spec(replicas="4", canary="{within: 1h}", env="{VERSION: b}"))
    world.run(5)
    assert world.shares[-1][:3] == ("r2", "canary", 50)


def test_a_canary_whose_replica_fails_again_and_again_is_rolled_back() -> None:
    world = with_canary()
    world.fail("r2-5")
    world.run(2)
    assert world.ready == ["r1-1", "r1-2", "r1-3", "r1-4"]
    assert "chat-r2-5 is Restarting: rank 0 exited with code 1" in world.events[-1]


def test_a_canary_that_is_never_ready_takes_nothing() -> None:
    world = World(spec(replicas="2", canary="{}", ready_within="30s"), start_s=broken_at_first, in_flight=lambda _: 1)
    world.run(5)
    world.change(spec(run="broken", replicas="2", canary="{}", ready_within="30s"))
    for _ in range(80):
        world.run(0.5)
        assert world.shares == [("r1", "", 2, ["r1-1", "r1-2"])]
    assert "no replica of it was ready within 30s" in world.said


def test_going_back_needs_no_canary() -> None:
    world = with_canary()
    world.pairs = 600
    world.run(15)
    first = spec(replicas="4", canary="{steps: [10%, 50%]}")
    world.change(first)
    world.run(15)
    assert world.ready == ["r1-10", "r1-11", "r1-12", "r1-9"]
    assert not any(event.startswith("CanaryStarted: r1") for event in world.events)


def test_going_back_during_a_trial_ends_it_at_once() -> None:
    world = with_canary()
    world.change(spec(replicas="4", canary="{steps: [10%, 50%]}"))
    world.run(0.5)
    assert world.shares == [("r1", "", 4, ["r1-1", "r1-2", "r1-3", "r1-4"])]


def test_another_revision_in_the_middle_of_a_trial_is_tried_beside_the_old_one() -> None:
    world = with_canary()
    world.change(spec(replicas="4", canary="{steps: [10%, 50%]}", env="{VERSION: c}"))
    world.run(10)
    assert [share[:3] for share in world.shares] == [("r1", "", 800), ("r1", "control", 100), ("r3", "canary", 100)]
    assert not any(name.startswith("r2") for name in world.names)


def test_without_a_surge_a_canary_takes_a_place_of_the_old_revision() -> None:
    world = with_canary(replicas="2", rollout="0")
    assert world.most == 2
    assert [share[:3] for share in world.shares] == [("r1", "", 800), ("r1", "control", 100), ("r2", "canary", 100)]


def test_a_first_revision_serves_without_a_canary() -> None:
    world = World(spec(canary="{}"), in_flight=lambda _: 1)
    world.run(5)
    assert world.shares == [("r1", "", 1, ["r1-1"])]
    assert world.events[-1] == "RevisionReady: r1 is ready and serves"


ASLEEP = {"replicas": "0..2", "scale": "{idle: 10s}", "canary": "{within: 5m}"}


def test_an_endpoint_sleeps_while_a_canary_is_on_trial_and_its_time_does_not_count() -> None:
    world = World(spec(**ASLEEP), in_flight=lambda at: 1 if at < 20 or 1_000 < at < 1_600 else 0)
    with_canary(world, **ASLEEP)
    assert [share[0] for share in world.shares] == ["r1", "r1", "r2"]
    world.run(60)
    assert (world.names, world.shares) == ([], [])
    assert world.said == (
        "asleep after 10s without a request; the next one wakes it; r2 is a canary, compared with r1 when requests come"
    )
    world.run(960)
    assert [share[0] for share in world.shares] == ["r1", "r1", "r2"]
    assert detail_of(world.serving).serving == 1
    world.run(300)
    assert "after 5m with 0 pairs of requests it is not known whether it is as good as r1" in world.said


def test_a_new_revision_of_an_endpoint_that_sleeps_is_compared_once_requests_come() -> None:
    world = World(spec(**ASLEEP), in_flight=lambda at: 1 if at < 5 or at > 100 else 0)
    world.run(40)
    assert world.names == []
    world.change(spec(**ASLEEP, env="{VERSION: b}"))
    world.run(20)
    assert (world.names, detail_of(world.serving).serving) == ([], 1)
    world.run(60)
    assert [share[:2] for share in world.shares] == [("r1", ""), ("r1", "control"), ("r2", "canary")]


def test_the_old_revision_of_an_endpoint_that_is_woken_comes_with_the_new_one_and_requests_wait_for_it() -> None:
    def start_s(replica: Replica) -> float:
        return 4.0 if replica.revision == "r1" else 2.0

    world = World(spec(**ASLEEP), in_flight=lambda at: 1 if at < 5 or at > 50 else 0, start_s=start_s)
    world.run(49)
    world.change(spec(**ASLEEP, env="{VERSION: b}"))
    world.run(2.5)
    assert world.names == ["r1-3", "r2-2"]
    world.run(2)
    assert world.shares == []
    assert world.said.endswith("; 1 of r2 and 0 of r1 are ready: requests wait for r1")
    world.run(3)
    assert [share[:2] for share in world.shares] == [("r1", ""), ("r1", "control"), ("r2", "canary")]
    assert (world.most, detail_of(world.serving).serving) == (2, 1)


def without_the_old_one(canary: str = "{within: 1h}") -> World:
    """An endpoint whose old revision was lost while another one was on trial, and does not come back."""
    world = with_canary(replicas="1", canary=canary, ready_within="2m")
    world.start_s = lambda replica: None if replica.revision == "r1" else 2.0
    world.replicas["r1-1"] = replace(world.replicas["r1-1"], status=status(Phase.STARTING), created_at=world.now)
    world.run(5)
    assert world.shares == []
    return world


def test_where_the_old_revision_does_not_come_the_new_one_answers_and_takes_over_after_a_while_and_says_so() -> None:
    world = without_the_old_one()
    world.run(20)
    assert world.shares == [("r2", "", 1, ["r2-2"])]
    assert world.said.endswith("1 of r2 and 0 of r1 are ready, and r2 answers all requests")
    assert world.events[-1] == "CanaryAlone: r2 answers all requests, as none of r1 is ready to compare it with"
    assert detail_of(world.serving).serving == 1
    world.answered = {"r2": (200, 20)}
    world.run(120)
    told = "none of r1 was ready within 2m to compare r2 with, which takes over uncompared"
    assert f"CanaryUncompared: {told}: it failed 20 of 200 requests alone" in world.events
    assert detail_of(world.serving).serving == 2


def test_one_that_fails_while_it_answers_alone_is_rolled_back() -> None:
    world = without_the_old_one()
    world.answered = {"r2": (50, 50)}  # before it answered alone
    world.run(20)
    assert world.shares == [("r2", "", 1, ["r2-2"])]
    world.answered = {"r2": (5, 5)}  # of a gateway that was restarted
    world.run(2)
    world.answered = {"r2": (14, 14)}
    world.run(2)
    why = "it failed 9 of 9 requests that it answered while none of r1 was ready"
    assert f"CanaryRolledBack: r2 is rolled back and r1 serves: {why}" in world.events
    assert detail_of(world.serving).target == 1


def test_where_the_old_revision_fails_again_and_again_nothing_waits_for_it() -> None:
    world = with_canary(replicas="1")
    world.fail("r1-1")
    world.run(2)
    assert world.shares == [("r2", "", 1, ["r2-2"])]


def test_where_the_old_revision_has_no_room_nothing_waits_for_it() -> None:
    world = with_canary(replicas="1")
    no_room = status(Phase.PENDING, reason=Reason(code=Code.WAITING_FOR_RESOURCES, message="no node has room"))
    world.room = 1
    world.replicas["r1-1"] = replace(world.replicas["r1-1"], status=no_room)
    world.run(2)
    assert world.shares == [("r2", "", 1, ["r2-2"])]


def test_a_revision_that_was_stored_before_a_key_was_added_stays_the_revision() -> None:
    world = World(spec(replicas="1"))
    world.run(5)
    detail = detail_of(world.serving)
    (first,) = detail.revisions
    stored = json.loads(first.replica)
    del stored["snapshot"]
    older = replace(detail, revisions=(replace(first, replica=json.dumps(stored)),))
    world.serving = replace(world.serving, status=replace(world.serving.status, detail=older))
    world.run(10)
    assert world.names == ["r1-1"]


def by_latency(rate: int, *, replicas: str = "1..8", room: int = 8, scale: str = "", **more: Any) -> World:
    """An endpoint whose replicas serve one request of 150 ms at a time, and is asked so often in a second."""
    keys = {"replicas": replicas, "scale": "{latency: 720ms, concurrency: 1" + scale + "}"}
    return World(spec(**keys), in_flight=lambda at: rate, service_s=0.15, room=room, **more)


def test_an_endpoint_gets_as_many_replicas_as_its_latency_needs() -> None:
    world = by_latency(13)
    world.run(100)
    assert len(world.ready) == 3
    assert world.told["places"] == 1


def test_replicas_that_go_are_followed_by_no_others() -> None:
    world = by_latency(13)
    world.run(300)
    submitted = detail_of(world.serving).count
    assert submitted <= 8
    world.run(300)
    assert world.names == ["r1-1", "r1-2", "r1-3"]
    assert detail_of(world.serving).count == submitted


@pytest.mark.parametrize("more", [{}, {"canary": "{steps: [10%, 50%]}"}])
def test_another_revision_brings_no_more_replicas_than_the_load_needs(more: dict[str, str]) -> None:
    keys = {"replicas": "1..8", "scale": "{latency: 720ms, concurrency: 1}", **more}
    world = World(spec(**keys), in_flight=lambda _: 13, service_s=0.15)
    world.run(100)
    assert len(world.ready) == 3
    world.most = 0
    world.change(spec(**keys, env="{VERSION: b}"))
    world.run(100)
    assert (world.most, world.fewest_ready) == (4, 3)


def test_an_endpoint_none_of_whose_requests_may_wait_gets_what_its_load_needs() -> None:
    world = World(spec(replicas="1..8", scale="{latency: 720ms, concurrency: 1}"), in_flight=lambda _: 1)
    world.service_s = 0.4
    world.run(60)
    few = len(world.ready)
    world.in_flight = lambda _: 4
    world.run(100)
    assert 1 <= few < len(world.ready) < 8


def test_no_more_replicas_are_wanted_than_there_is_room_for() -> None:
    world = by_latency(40, room=3)
    world.run(100)
    assert world.names == world.ready
    assert len(world.ready) == 3


def test_the_gateway_is_told_how_many_requests_end_in_time() -> None:
    told = [is_told(by_latency(3)) == 4 * 2, is_told(by_latency(3, scale=", shed: false")) is None]
    assert told == [True, True]


def is_told(world: World) -> object:
    world.run(30)
    return world.told["most_in_flight"]


def test_an_endpoint_of_which_nothing_ended_yet_goes_by_its_requests_in_flight() -> None:
    world = World(spec(replicas="1..8", scale="{latency: 720ms, concurrency: 2}"), in_flight=lambda _: 6)
    world.run(60)
    assert len(world.ready) == 3


def test_an_endpoint_that_goes_back_from_its_canary_says_that_the_old_revision_goes_on() -> None:
    world = with_canary()
    world.change(spec(replicas="4", canary="{steps: [10%, 50%]}"))
    world.run(5)
    assert "RolloutStarted: r1 keeps serving" in world.events


def by_query(answer: Callable[[float], float | str], replicas: str = "1..8", **keys: Any) -> World:
    given = {"url": "http://prometheus:9090", "query": "'sum(waiting)'", "target": 10, **keys}
    said = ", ".join(f"{key}: {value}" for key, value in given.items())
    return World(spec(replicas=replicas, scale=f"{{window: 30s, prometheus: {{{said}}}}}"), measure=answer)


def test_replicas_follow_the_answer_to_a_query_and_none_goes_within_the_window() -> None:
    world = by_query(lambda at: 35.0 if at < 60 else 5.0)
    world.run(60)
    assert len(world.ready) == 4
    world.run(25)
    assert len(world.ready) == 4
    world.run(15)
    assert len(world.ready) == 1


def test_the_mean_of_the_replicas_is_brought_to_its_target_and_stays_there() -> None:
    work = 240.0  # of one GPU in percent, which the replicas that are ready share
    world = by_query(lambda _: work / max(1, len(world.ready)), target=70, aggregation="mean")
    world.run(200)
    assert len(world.ready) == 4
    scaled = [each for each in world.events if each.startswith("Scaled")]
    world.run(300)
    assert [each for each in world.events if each.startswith("Scaled")] == scaled


def test_within_a_tenth_of_the_target_a_mean_moves_nothing() -> None:
    world = by_query(lambda at: 700.0 if at < 20 else 64.0 + at % 12, "1..8", target=70, aggregation="mean")
    world.run(30)
    before = list(world.events)
    world.run(300)
    assert world.events == before


def test_while_a_query_has_no_answer_the_replicas_stay_and_it_is_told_once() -> None:
    out = "http://prometheus:9090 does not answer: Connection refused"
    world = by_query(lambda at: 35.0 if at < 60 else out if at < 400 else 5.0)
    world.run(60)
    assert len(world.ready) == 4
    world.run(20)
    assert "has no answer" not in world.said, "an answer counts for half a minute"
    world.run(300)
    assert len(world.ready) == 4
    assert world.said == f"4 of 4 replicas of r1 are ready; its query has no answer: {out}"
    told = [each for each in world.events if each.startswith("Metric")]
    assert told == [f"MetricUnavailable: 4 replicas stay until its query has an answer: {out}"]
    world.run(100)
    assert len(world.ready) == 1
    told = [each.partition(":")[0] for each in world.events if each.startswith("Metric")]
    assert told == ["MetricUnavailable", "MetricAvailable"]


def test_a_query_that_never_had_an_answer_is_told_at_once() -> None:
    world = by_query(lambda _: "the query finds no series; where none means 0, end it with `or vector(0)`", "2..8")
    world.run(10)
    assert len(world.ready) == 2
    assert "MetricUnavailable: 2 replicas stay until its query has an answer: the query finds no series" in str(
        world.events
    )


def test_an_endpoint_that_scales_by_a_query_sleeps_at_nothing_and_wakes_by_its_answer() -> None:
    world = by_query(lambda at: 25.0 if at < 50 or at > 600 else 0.0, "0..8")
    world.in_flight = lambda _: 0
    world.run(60)
    assert len(world.ready) == 3
    world.run(400)
    assert world.names == []
    world.run(170)
    assert len(world.ready) == 3


def test_an_endpoint_that_scales_by_a_query_is_woken_by_a_request_while_its_server_is_out() -> None:
    world = by_query(lambda at: 0.0 if at < 400 else "it is out", "0..8")
    world.in_flight = lambda at: 1 if at > 500 else 0
    world.run(450)
    assert world.names == []
    world.run(60)
    assert len(world.ready) == 1
