"""Chooses the replica of a request: revisions by weight, least outstanding, broken ones left out, and who waits.

Nothing here reads a clock or a socket: `now` is given, in seconds of a clock that only goes forward.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from fairlead.gateway.access import TeamUse
from fairlead.gateway.canaries import Pairs
from fairlead.gateway.messages import Refused, Request, Response
from fairlead.gateway.routes import CONTROL, Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.tallies import ServiceTally
from fairlead.gateway.text_requests import TextRequests

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
"""A replica that refuses a connection is left out that long, doubling up to the longest; then one request tries it."""
BREAKS = 3
"""So many answers broken off, one after the other, count as a refusal."""

T = TypeVar("T")


class Replica(Generic[T]):
    """A replica and what it is doing for us.

    Attributes:
        outstanding: Requests that it has and has not answered.
        busy_s: Seconds for which its places were taken, since that was last asked.
        busy_since: How far these are counted.
        closed_until: Before this it gets no request.
        idle: Connections to it that are open and unused, the latest last.
    """

    __slots__ = (
        "_back_off_s", "_broken", "backend", "busy_s", "busy_since", "closed_until", "idle", "outstanding", "removed",
        "turn",
    )  # fmt: skip

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.outstanding = 0
        self.busy_s = self.busy_since = 0.0
        self.turn = 0
        self.removed = False
        self.idle: list[T] = []
        self.closed_until = 0.0
        self._back_off_s = 0.0
        self._broken = 0

    def count_busy(self, now: float, places: float) -> None:
        """Count how long its places were taken, before another request begins or ends there."""
        self.busy_s += min(float(self.outstanding), places) * max(0.0, now - self.busy_since)
        self.busy_since = now

    def refused(self, now: float) -> None:
        """It took no connection: leave it out for a while."""
        if self.closed_until <= now or self._back_off_s == 0.0:
            self._back_off_s = min(LONGEST_BACK_OFF_S, 2 * self._back_off_s or FIRST_BACK_OFF_S)
            self.closed_until = now + self._back_off_s

    def broke_off(self, now: float) -> None:
        """It took a request and ended without an answer."""
        self._broken += 1
        if self._broken >= BREAKS:
            self.refused(now)

    def answered(self) -> None:
        """It works."""
        self._broken = 0
        if self._back_off_s:
            self._back_off_s = self.closed_until = 0.0

    def try_again(self, now: float) -> None:
        """Let one request find out whether it is back: others wait until that is known."""
        if self._back_off_s:
            self.closed_until = now + self._back_off_s


class Revision(Generic[T]):
    """A revision's replicas, and how far its turn is; one side of a trial where it is that."""

    __slots__ = ("arm", "current", "name", "replicas", "shadow", "weight")

    def __init__(self, name: str, arm: str = "") -> None:
        self.name = name
        self.arm = arm
        self.weight = 0
        self.shadow = False
        self.current = 0
        self.replicas: list[Replica[T]] = []

    def least_outstanding(self, now: float, most: int | None) -> Replica[T] | None:
        """The replica with room that has least to do; of equal ones that whose last turn is longest ago."""
        best = None
        for replica in self.replicas:
            if replica.closed_until > now or (most is not None and replica.outstanding >= most):
                continue
            if best is None or (replica.outstanding, replica.turn) < (best.outstanding, best.turn):
                best = replica
        return best


class Given(NamedTuple, Generic[T]):
    """A replica given to a request: one of its places is taken until `Service.release`."""

    revision: Revision[T]
    replica: Replica[T]


class Service(Generic[T]):
    """A service while the gateway runs; routes change under it, counts and connections stay.

    Attributes:
        touched: Where it puts itself when it is asked for, and `warm` when a replica of it is free again: whoever looks
            after all services looks at these only.
    """

    def __init__(
        self, route: ServiceRoute, *, touched: "set[Service[T]] | None" = None, warm: "set[Service[T]] | None" = None
    ) -> None:
        self._touched = touched if touched is not None else set()
        self._warm = warm if warm is not None else set()
        self.route = route
        self.name = route.name
        self.tally = ServiceTally()
        self.uses: dict[str, TeamUse] = {}
        self.texts: TextRequests | None = None
        self.revisions: list[Revision[T]] = []
        self.waiting: deque[asyncio.Future[Given[T]]] = deque()
        self._turns = 0
        self.pairs: Pairs | None = None
        self.prefix = (route.path or "").encode()

    def update(self, route: ServiceRoute) -> list[Replica[T]]:
        """Take over what routes.json says now. The replicas that are gone: they finish what they have."""
        before = {replica.backend: replica for revision in self.revisions for replica in revision.replicas}
        known = {(revision.name, revision.arm): revision for revision in self.revisions}
        if [_share(each) for each in route.revisions] != [_share(each) for each in self.route.revisions]:
            for revision in self.revisions:
                revision.current = 0
        self.route = route
        self.prefix = (route.path or "").encode()
        self.revisions = []
        if route.canary is None:
            self.pairs = None
        elif self.pairs is None or self.pairs.route != route.canary:
            self.pairs = Pairs(route.canary)
        there: dict[Backend, Replica[T]] = {}
        for told in route.revisions:
            revision = known.get((told.name, told.arm)) or Revision(told.name, told.arm)
            revision.weight, revision.shadow = told.weight, told.shadow
            for backend in told.replicas:
                # One may be on a side of a trial and beside it: it is one replica all the same.
                if backend not in there:
                    there[backend] = before.pop(backend) if backend in before else Replica(backend)
            revision.replicas = [there[backend] for backend in told.replicas]
            self.revisions.append(revision)
        for replica in before.values():
            replica.removed = True
        if not route.counts_tokens:
            self.texts = None
        else:
            self.texts = self.texts or TextRequests()
            self.texts.follow(route.revisions)
        if self.has_replicas():
            self.tally.wake = None
        return list(before.values())

    def use_of(self, team: str) -> TeamUse:
        """Return the latest use of one team that has a key."""
        use = self.uses.get(team)
        if use is None:
            use = self.uses[team] = TeamUse()
        return use

    def arrive(self, epoch: float) -> None:
        """Count a request that has come."""
        self.tally.arrive(epoch)
        self._touched.add(self)

    def shed(self) -> None:
        """Let a request go that has come, where it would be late.

        Raises:
            Refused: as many are here as end in time.
        """
        most = self.route.most_in_flight
        if most is not None and self.tally.in_flight > most and self.has_replicas():
            raise Refused(503, f"{self.name}: {most} requests are here already, more would be late", retry_after_s=1)

    def has_replicas(self) -> bool:
        """Return whether any replica is there to serve: none means asleep, starting or failed."""
        return any(revision.replicas and revision.weight and not revision.shadow for revision in self.revisions)

    def take(self, now: float) -> Given[T] | None:
        """A place at a replica, or None when all are full or left out.

        Among revisions that have room, shares follow the weights evenly (smooth weighted round robin, as nginx's
        `ngx_http_upstream_round_robin`).
        """
        best: Revision[T] | None = None
        chosen: Replica[T] | None = None
        total = 0
        for revision in self.revisions:
            if revision.weight == 0 or revision.shadow:
                continue
            replica = revision.least_outstanding(now, self.route.max_concurrency)
            if replica is None:
                continue
            total += revision.weight
            revision.current += revision.weight
            if best is None or revision.current > best.current:
                best, chosen = revision, replica
        if best is None or chosen is None:
            return None
        best.current -= total
        return self._occupy(best, chosen, now)

    def copies(self, given: Given[T]) -> bool:
        """Return whether a request that goes there is copied: in a trial those of its other side are."""
        return any(each.shadow and (not each.arm or given.revision.arm == CONTROL) for each in self.revisions)

    def take_shadows(self, now: float) -> list[Given[T]]:
        """A place at a replica of each revision that gets copies and has room."""
        given = []
        for revision in self.revisions:
            if revision.shadow:
                replica = revision.least_outstanding(now, self.route.max_concurrency)
                if replica is not None:
                    given.append(self._occupy(revision, replica, now))
        return given

    def release(self, given: Given[T], now: float) -> None:
        """The request is over: who waits longest comes next."""
        given.replica.count_busy(now, self.route.places)
        given.replica.outstanding -= 1
        self._touched.add(self)
        self._warm.add(self)
        if self.waiting:
            self.admit_waiting(now)

    def admit_waiting(self, now: float) -> None:
        """Give free places to those who wait, in their order; when the service has failed, the reason to all."""
        if self.route.failure is not None and not self.has_replicas():
            while self.waiting:
                waiter = self.waiting.popleft()
                if not waiter.done():
                    waiter.set_exception(self.failed())
            return
        while self.waiting:
            if self.waiting[0].done():
                self.waiting.popleft()
                continue
            given = self.take(now)
            if given is None:
                return
            self.waiting.popleft().set_result(given)

    def count(
        self, given: Given[T], *, failed: bool, duration_s: float, response: Response | None, now: float, epoch: float,
        abandoned: bool = False, copied: bool = False,
    ) -> None:  # fmt: skip
        """Count a request that its replica has had; of one that its client has abandoned only that it was slow.

        Beside a shadow those are compared that it got too, `copied`.
        """
        given.replica.count_busy(now, self.route.places)
        self.tally.end(epoch, busy_s=given.replica.busy_s, took_s=duration_s)
        given.replica.busy_s = 0.0
        if not abandoned:
            self.tally.revision(given.revision.name).add(failed=failed, duration_ms=duration_s * 1e3)
        if not copied and self.copies(given):
            return
        if self.pairs is not None and given.revision.arm and (not abandoned or self.pairs.is_slow(duration_s)):
            self.pairs.add(
                given.revision.arm, failed=failed and not abandoned, duration_s=duration_s, response=response
            )

    def queued(self) -> int:
        """Requests that wait for a replica."""
        return sum(not waiter.done() for waiter in self.waiting)

    def join_queue(self, waiter: "asyncio.Future[Given[T]]") -> None:
        """Wait for a place.

        Raises:
            Refused: the service has failed, or as many wait as may.
        """
        if self.route.failure is not None and not self.has_replicas():
            raise self.failed()
        if len(self.waiting) >= self.route.max_queue and self.queued() >= self.route.max_queue:
            how = "every replica is busy" if self.has_replicas() else "no replica is ready yet"
            raise Refused(429, f"{self.name}: {how} and {self.route.max_queue} requests wait already", retry_after_s=1)
        self.waiting.append(waiter)

    def leave_queue(self, waiter: "asyncio.Future[Given[T]]", now: float) -> None:
        """Stop waiting; a place that was given meanwhile goes to the next."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(waiter.result(), now)

    def failed(self) -> Refused:
        """Make the answer while no revision can serve."""
        return Refused(503, f"{self.name}: {self.route.failure}", retry_after_s=10)

    def _occupy(self, revision: Revision[T], replica: Replica[T], now: float) -> Given[T]:
        self._turns += 1
        replica.turn = self._turns
        replica.count_busy(now, self.route.places)
        replica.outstanding += 1
        replica.try_again(now)
        return Given(revision, replica)


class Table(Generic[T]):
    """All services, by the hosts and paths under which they are found.

    Attributes:
        touched: Services with requests, or that were asked for since demand was written.
        warm: Services whose replicas may have unused connections.
    """

    def __init__(self) -> None:
        self.touched: set[Service[T]] = set()
        self.warm: set[Service[T]] = set()
        self.services: dict[str, Service[T]] = {}
        self._hosts: dict[bytes, Service[T]] = {}
        self._paths: dict[bytes, Service[T]] = {}
        self._depth = 0

    def update(self, routes: Mapping[str, ServiceRoute]) -> list[Replica[T]]:
        """Take over new routes. Services that are gone answer whom they have; their waiting ones are told. The replicas
        that are gone.
        """
        gone: list[Replica[T]] = []
        for name in [name for name in self.services if name not in routes]:
            service = self.services.pop(name)
            for waiter in service.waiting:
                if not waiter.done():
                    waiter.set_exception(Refused(404, f"{name} is no longer served"))
            gone += [replica for revision in service.revisions for replica in revision.replicas]
        for replica in gone:
            replica.removed = True
        for name, route in routes.items():
            known = self.services.get(name)
            if known is None:
                known = self.services[name] = Service(route, touched=self.touched, warm=self.warm)
            gone += known.update(route)
        self._hosts = {host.encode(): self.services[name] for name, route in routes.items() for host in route.hosts}
        self._paths = {
            route.path.encode(): self.services[name] for name, route in routes.items() if route.path is not None
        }
        self._depth = max((path.count(b"/") for path in self._paths), default=0)
        return gone

    def find(self, request: Request) -> tuple[Service[T], bytes] | None:
        """The service that a request is for, with the path as its replicas know it; a host comes before a path."""
        service = self._hosts.get(request.host)
        if service is not None:
            return service, request.path
        parts = request.path.split(b"/", self._depth + 1)
        for depth in range(min(self._depth, len(parts) - 1), 0, -1):
            prefix = b"/".join(parts[: depth + 1])
            service = self._paths.get(prefix)
            if service is not None:
                return service, request.path[len(prefix) :] or b"/"
        return None


def _share(route: RevisionRoute) -> tuple[str, str, int, bool]:
    return route.name, route.arm, route.weight, route.shadow
