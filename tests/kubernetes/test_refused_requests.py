"""A request about one team's object that fails or takes long delays that object alone: on a real API server."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import ClusterAccess
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
from fairlead.control.operator import Operator
from fairlead.errors import NotFound
from fairlead.specs.formats.reading import parse
from fairlead.specs.serving import Serving
from fairlead.specs.sweep import Sweep
from fairlead.state.snapshot import Intent, Phase
from tests.kubernetes.loopback import Fault, FaultyProxy, Refuse, Stall, serving
from tests.kubernetes.operating import comes_to, gang, operating
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.waiting import PATIENCE_S, until

STALL_S = 30.0
MOST_S = 15.0
"""Far below ``STALL_S`` and the time that a client would try again for; a start takes one second or two here."""
WEBHOOK = "failed calling webhook"
SWEEP = """
kind: Sweep
name: {name}
team: {team}
parameters: {{lr: 0.1 | 0.2}}
trial: {{run: train, resources: {{cpu: 100m, memory: 64Mi}}}}
"""
ENDPOINT = """
kind: Serving
name: {name}
team: {team}
model: runs/none
run: serve
replicas: 2
resources: {{cpu: 100m, memory: 64Mi}}
"""


class World:
    """An operator behind a proxy that fails at what a test says of the hostile namespace."""

    def __init__(self, access: ClusterAccess, hostile: str, other: str) -> None:
        self.hostile, self.other = hostile, other
        self.faults: dict[str, Fault] = {}
        self.kinds: set[str] = set()
        self.sent: Counter[str] = Counter()
        self.proxy = FaultyProxy(access.server, self._choose, ca=access.ca)
        self.theirs = WorkloadApi(Client(access), namespace=other)
        self.ours = WorkloadApi(Client(access), namespace=hostile)
        self.operator: Operator | None = None

    def _choose(self, method: str, path: str) -> Fault:
        place = path.partition("?")[0]
        if method == "GET" or f"/namespaces/{self.hostile}/" not in place or "leases" in place:
            return None
        kind = write_kind(method, place)
        self.kinds.add(kind)
        fault = self.faults.get(kind, self.faults.get("all"))
        if fault is not None:
            self.sent[kind] += 1
        return fault

    def plant(self, name: str) -> None:
        """A run, a sweep and an endpoint in the hostile namespace."""
        self.ours.submit(gang(self.hostile, f"{name}-run", nodes=2, gpus=0))
        for text in (SWEEP, ENDPOINT):
            (spec,) = parse(text.format(name=f"{name}-{text.split()[1].lower()}", team=self.hostile))
            assert isinstance(spec, Sweep | Serving)
            self.ours.submit(spec)

    def starts(self, name: str) -> float:
        """Run the other team's run; the seconds until it runs."""
        begun = time.monotonic()
        self.theirs.submit(gang(self.other, name, nodes=2, gpus=0, run="0.2s"))
        until(lambda: self.theirs.named(name, self.other).status.phase in (Phase.RUNNING, Phase.SUCCEEDED))
        return time.monotonic() - begun

    def remove(self) -> None:
        """Delete all that is in the hostile namespace."""
        for run in self.ours.workloads():
            if run.parent is None:
                with suppress(NotFound):  # it has gone meanwhile
                    self.ours.set_intent(run.uid, Intent.DELETE)


def write_kind(method: str, place: str) -> str:
    """A write, such as `PATCH trainings/status`, without the name of its object."""
    _, _, rest = place.partition("/namespaces/")
    parts = rest.split("/")[1:]
    return f"{method} {'/'.join(part for index, part in enumerate(parts) if index != 1)}"


@pytest.fixture
def world(access: ClusterAccess, cluster: WorkloadApi, plane: ControlPlane, namespace: str) -> Iterator[World]:
    other = f"b-{namespace}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": other}})
    plane.await_namespace(other)
    world = World(access, namespace, other)
    with serving(world.proxy.handler()) as url, acting(world, replace(access, context="proxy", server=url)):
        yield world
        world.faults.clear()
        for run in world.theirs.workloads():
            world.theirs.set_intent(run.uid, Intent.DELETE)
        world.remove()
        until(lambda: not world.theirs.workloads() and not world.ours.workloads())
    plane.request("DELETE", f"/api/v1/namespaces/{other}")


@contextmanager
def acting(world: World, access: ClusterAccess) -> Iterator[None]:
    with operating(access, world.hostile, watch_namespace=None) as operator:
        until(lambda: operator.election.is_leader)
        world.operator = operator
        yield


def told(world: World) -> Counter[tuple[str, str]]:
    """The Events about refusals, by the object and the reason."""
    found = world.ours.client.items(f"/api/v1/namespaces/{world.hostile}/events")
    reasons = ("StatusRefused", "ChildRefused", "RequestRefused")
    return Counter((each["involvedObject"]["name"], each["reason"]) for each in found if each["reason"] in reasons)


@pytest.mark.slow
def test_a_failure_at_any_write_about_a_teams_objects_delays_these_alone(world: World) -> None:
    world.plant("healthy")
    comes_to(world.ours, "healthy-run", Phase.RUNNING)
    until(lambda: any("poddisruptionbudgets" in kind for kind in world.kinds))
    world.remove()
    until(lambda: not world.ours.workloads())
    kinds = sorted(world.kinds)
    assert {"PATCH trainings/status", "PATCH sweeps/status", "POST pods", "POST trainings", "POST events"} <= set(kinds)
    assert len(kinds) >= 12, kinds
    base_s = world.starts("before")
    took = {}
    for number, kind in enumerate(kinds):
        world.faults = {kind: Refuse(500, WEBHOOK)}
        world.plant(f"h{number}")
        if kind.startswith("DELETE"):
            comes_to(world.ours, f"h{number}-run", Phase.RUNNING)
            world.remove()
        took[kind] = world.starts(f"other-{number}")
        world.faults = {}
        world.remove()
        until(lambda: not world.ours.workloads(), f"end of what {kind} was refused for")
    # Some are sent in some rounds only, such as an adopted spec's.
    assert {"PATCH trainings/status", "PATCH sweeps/status", "POST pods", "POST trainings"} <= set(world.sent)
    print("a start without a fault", round(base_s, 2), {kind: round(seconds, 2) for kind, seconds in took.items()})
    assert max(took.values()) < PATIENCE_S / 4, took
    assert world.operator is not None
    assert not world.operator.view.isolation.failing


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 409, 422])
def test_what_is_refused_at_every_write_is_told_once_and_goes_on_when_it_is_not(world: World, status: int) -> None:
    world.faults = {"all": Refuse(status, WEBHOOK), **dict.fromkeys(["POST events", "PATCH events"])}
    world.plant("bad")
    until(lambda: sum(world.sent.values()) > 3)
    assert world.starts("other") < PATIENCE_S / 4
    assert world.operator is not None
    if status != 409:  # another write intervened: it is tried again without a word
        until(lambda: told(world)["bad-run", "StatusRefused"], lambda: told(world))
        assert "fairlead_refused_objects" in world.operator.health.numbers()
        until(lambda: world.operator is not None and world.operator.health.numbers()["fairlead_refused_objects"] > 0)
    num_sent = sum(world.sent.values())
    until(lambda: sum(world.sent.values()) > num_sent + 3)
    assert max(told(world).values(), default=1) == 1, told(world)
    world.faults = {}
    comes_to(world.ours, "bad-run", Phase.RUNNING)
    until(lambda: world.operator is not None and not world.operator.cluster.refused)


@pytest.mark.slow
def test_a_write_that_takes_long_delays_its_own_object_alone(world: World) -> None:
    base_s = world.starts("before")
    world.faults = {"PATCH trainings/status": Stall(STALL_S), "PATCH sweeps/status": Stall(STALL_S)}
    for number in range(12):  # more than there are threads
        world.ours.submit(gang(world.hostile, f"slow-{number}", nodes=1, gpus=0))
    until(lambda: world.sent["PATCH trainings/status"] > 0)
    took = [world.starts(f"other-{number}") for number in range(3)]
    print("a start without a fault", round(base_s, 2), "beside slow writes", [round(seconds, 2) for seconds in took])
    assert max(took) < base_s + MOST_S
    world.faults = {}
    comes_to(world.ours, "slow-0", Phase.RUNNING)
