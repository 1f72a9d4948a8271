"""Chooses the replica of a request: revisions by weight, least outstanding requests, back-off, and queueing.

Nothing here reads a clock or a socket: `now` is an argument, in seconds of a monotonic clock.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Generic, NamedTuple, TypeVar

from fairlead.gateway.access import TeamUse
from fairlead.gateway.canaries import Pairs
from fairlead.gateway.messages import HttpError, RequestHead, ResponseHead
from fairlead.gateway.prefix_affinity import PrefixAffinity, Prompt
from fairlead.gateway.request_metrics import ServiceMetrics
from fairlead.gateway.routes import CONTROL, Backend, RevisionRoute, ServiceRoute
from fairlead.gateway.text_requests import TextRequests

FIRST_BACK_OFF_S = 0.1
LONGEST_BACK_OFF_S = 5.0
"""Back-off in seconds of a replica that refuses a connection, doubling up to the longest; then one request tries it."""
BREAKS = 3
"""Number of consecutive broken-off responses that count as a refused connection."""

T = TypeVar("T")


class UpstreamReplica(Generic[T]):
    """A replica and its current load from this gateway.

    Attributes:
        outstanding: Requests that it has not answered yet.
        prompt_load: The part of `load` for parts of prompts that it did not have yet.
        busy_s: Seconds for which its slots were occupied, since this was last read.
        busy_since: Time up to which `busy_s` is counted.
        closed_until: Time before which it gets no requests.
        idle: Open unused connections to it, the latest last.
    """

    __slots__ = (
        "_back_off_s", "_broken", "backend", "busy_s", "busy_since", "closed_until", "idle", "outstanding",
        "prompt_load", "removed", "turn",
    )  # fmt: skip

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.outstanding = 0
        self.prompt_load = 0.0
        self.busy_s = self.busy_since = 0.0
        self.turn = 0
        self.removed = False
        self.idle: list[T] = []
        self.closed_until = 0.0
        self._back_off_s = 0.0
        self._broken = 0

    @property
    def id(self) -> str:
        return self.backend.id

    @property
    def load(self) -> float:
        """Return its load in requests, a long prompt counting as several."""
        return self.outstanding + self.prompt_load

    def count_busy(self, now: float, places: float) -> None:
        """Accumulate `busy_s`; call before a request begins or ends at the replica."""
        self.busy_s += min(float(self.outstanding), places) * max(0.0, now - self.busy_since)
        self.busy_since = now

    def refused(self, now: float) -> None:
        """Record a refused connection: start or extend the back-off."""
        if self.closed_until <= now or self._back_off_s == 0.0:
            self._back_off_s = min(LONGEST_BACK_OFF_S, 2 * self._back_off_s or FIRST_BACK_OFF_S)
            self.closed_until = now + self._back_off_s

    def broke_off(self, now: float) -> None:
        """Record that it took a request and closed the connection without a response."""
        self._broken += 1
        if self._broken >= BREAKS:
            self.refused(now)

    def answered(self) -> None:
        """Record a success: reset the back-off."""
        self._broken = 0
        if self._back_off_s:
            self._back_off_s = self.closed_until = 0.0

    def try_again(self, now: float) -> None:
        """Admit one request as a probe: others wait for its outcome."""
        if self._back_off_s:
            self.closed_until = now + self._back_off_s


class RoutedRevision(Generic[T]):
    """A revision's replicas and round-robin state; `arm` is its side of a trial, if any."""

    __slots__ = ("arm", "current", "name", "replicas", "shadow", "weight")

    def __init__(self, name: str, arm: str = "") -> None:
        self.name = name
        self.arm = arm
        self.weight = 0
        self.shadow = False
        self.current = 0
        self.replicas: list[UpstreamReplica[T]] = []

    def least_outstanding(self, now: float, most: int | None) -> UpstreamReplica[T] | None:
        """Return the available replica with the fewest outstanding requests; of equal ones the least recently used."""
        best = None
        for replica in self.replicas:
            if replica.closed_until > now or (most is not None and replica.outstanding >= most):
                continue
            if best is None or (replica.outstanding, replica.turn) < (best.outstanding, best.turn):
                best = replica
        return best

    def available(self, now: float, most: int | None) -> list[UpstreamReplica[T]]:
        """Return the replicas with room that are not in back-off."""
        return [
            replica
            for replica in self.replicas
            if replica.closed_until <= now and (most is None or replica.outstanding < most)
        ]


class ReplicaLease(NamedTuple, Generic[T]):
    """A replica assigned to a request: one of its slots is occupied until `Service.release`."""

    revision: RoutedRevision[T]
    replica: UpstreamReplica[T]
    prompt_load: float = 0.0


class RoutedService(Generic[T]):
    """A service at runtime; routes change, while counts and connections persist.

    Attributes:
        touched: Set to which it adds itself when it gets a request, and `warm` when a replica is freed, so that
            periodic work visits only those services.
    """

    def __init__(
        self,
        route: ServiceRoute,
        *,
        touched: "set[RoutedService[T]] | None" = None,
        warm: "set[RoutedService[T]] | None" = None,
    ) -> None:
        self._touched = touched if touched is not None else set()
        self._warm = warm if warm is not None else set()
        self.route = route
        self.name = route.name
        self.metrics = ServiceMetrics()
        self.uses: dict[str, TeamUse] = {}
        self.texts: TextRequests | None = None
        self.affinity: PrefixAffinity | None = None
        self._prompts: dict[asyncio.Future[ReplicaLease[T]], Prompt] = {}  # of waiting requests
        self.revisions: list[RoutedRevision[T]] = []
        self.waiting: deque[asyncio.Future[ReplicaLease[T]]] = deque()
        self._turns = 0
        self.pairs: Pairs | None = None
        self.prefix = (route.path or "").encode()

    def update(self, route: ServiceRoute) -> list[UpstreamReplica[T]]:
        """Apply a new route. Return the removed replicas, which finish their requests."""
        before = {replica.backend: replica for revision in self.revisions for replica in revision.replicas}
        known = {(revision.name, revision.arm): revision for revision in self.revisions}
        if [*map(_share, route.revisions)] != [*map(_share, self.route.revisions)]:
            for revision in self.revisions:
                revision.current = 0
        self.route = route
        self.prefix = (route.path or "").encode()
        self.revisions = []
        if route.canary is None:
            self.pairs = None
        elif self.pairs is None or self.pairs.route != route.canary:
            self.pairs = Pairs(route.canary)
        replicas: dict[Backend, UpstreamReplica[T]] = {}
        for declared in route.revisions:
            revision = known.get((declared.name, declared.arm)) or RoutedRevision(declared.name, declared.arm)
            revision.weight, revision.shadow = declared.weight, declared.shadow
            for backend in declared.replicas:
                # A replica may be on a side of a trial and outside it; it is the same replica.
                if backend not in replicas:
                    replicas[backend] = before.pop(backend) if backend in before else UpstreamReplica(backend)
            revision.replicas = [replicas[backend] for backend in declared.replicas]
            self.revisions.append(revision)
        for replica in before.values():
            replica.removed = True
        if not route.counts_tokens:
            self.texts = None
        else:
            self.texts = self.texts or TextRequests()
            self.texts.follow(route.revisions)
        if not route.by_prefix:
            self.affinity = None
        elif self.affinity is None:
            self.affinity = PrefixAffinity()
        if self.has_replicas():
            self.metrics.wake = None
        return list(before.values())

    def use_of(self, team: str) -> TeamUse:
        """Return the recent usage of one team that has a key."""
        use = self.uses.get(team)
        if use is None:
            use = self.uses[team] = TeamUse()
        return use

    def arrive(self, epoch: float) -> None:
        """Count an arrived request."""
        self.metrics.arrive(epoch)
        self._touched.add(self)

    def shed(self) -> None:
        """Refuse an arrived request that would be late.

        Raises:
            HttpError: As many requests are present as can end in time.
        """
        most = self.route.most_in_flight
        if most is not None and self.metrics.in_flight > most and self.has_replicas():
            raise HttpError(503, f"{self.name}: {most} requests are here already, more would be late", retry_after_s=1)

    def has_replicas(self) -> bool:
        """Return whether any replica can serve; without one the service is asleep, starting or failed."""
        return any(revision.replicas and revision.weight and not revision.shadow for revision in self.revisions)

    def take(self, now: float, prompt: Prompt | None = None) -> ReplicaLease[T] | None:
        """Assign a slot at a replica; None if all are full or in back-off.

        Among revisions with capacity, shares follow the weights evenly (smooth weighted round robin, as nginx's
        `ngx_http_upstream_round_robin`).

        Args:
            prompt: The prompt of a request whose replica is chosen by it.
        """
        best: RoutedRevision[T] | None = None
        chosen: UpstreamReplica[T] | None = None
        total = 0
        for revision in self.revisions:
            if revision.weight == 0 or revision.shadow:
                continue
            replica = self._choose(revision, now, prompt)
            if replica is None:
                continue
            total += revision.weight
            revision.current += revision.weight
            if best is None or revision.current > best.current:
                best, chosen = revision, replica
        if best is None or chosen is None:
            return None
        best.current -= total
        load = 0.0
        if prompt is not None and self.affinity is not None:
            load = self.affinity.load_of(prompt, chosen.id)
            self.affinity.note(prompt, chosen.id)
        return self._occupy(best, chosen, now, load)

    def is_shadowed(self, lease: ReplicaLease[T]) -> bool:
        """Return whether a request assigned so is copied to a shadow: in a trial only the control's requests are."""
        is_compared = lease.revision.arm == CONTROL
        return any(revision.shadow and (is_compared or not revision.arm) for revision in self.revisions)

    def acquire_shadows(self, now: float) -> list[ReplicaLease[T]]:
        """Assign a slot at a replica of each shadow that has capacity."""
        lease = []
        for revision in self.revisions:
            if revision.shadow:
                replica = revision.least_outstanding(now, self.route.max_concurrency)
                if replica is not None:
                    lease.append(self._occupy(revision, replica, now))
        return lease

    def release(self, lease: ReplicaLease[T], now: float) -> None:
        """End a request; the longest waiting request gets the slot."""
        lease.replica.count_busy(now, self.route.places)
        lease.replica.outstanding -= 1
        lease.replica.prompt_load = max(0.0, lease.replica.prompt_load - lease.prompt_load)
        self._touched.add(self)
        self._warm.add(self)
        if self.waiting:
            self.admit_waiting(now)

    def admit_waiting(self, now: float) -> None:
        """Assign free slots to waiting requests, in their order; if the service has failed, fail all of them."""
        if self.route.failure is not None and not self.has_replicas():
            while self.waiting:
                waiter = self.waiting.popleft()
                self._prompts.pop(waiter, None)
                if not waiter.done():
                    waiter.set_exception(self.failed())
            return
        while self.waiting:
            waiter = self.waiting[0]
            if not waiter.done():
                lease = self.take(now, self._prompts.get(waiter))
                if lease is None:
                    return
                waiter.set_result(lease)
            self._prompts.pop(waiter, None)
            self.waiting.popleft()

    def count(
        self, lease: ReplicaLease[T], *, failed: bool, duration_s: float, response: ResponseHead | None, now: float,
        epoch: float, abandoned: bool = False, copied: bool = False,
    ) -> None:  # fmt: skip
        """Record a request that a replica handled; of a request that its client abandoned only that it was slow.

        Beside a shadow, only requests that were `copied` to it are compared.
        """
        lease.replica.count_busy(now, self.route.places)
        self.metrics.end(epoch, busy_s=lease.replica.busy_s, took_s=duration_s)
        lease.replica.busy_s = 0.0
        if not abandoned:
            self.metrics.revision(lease.revision.name).add(failed=failed, duration_ms=duration_s * 1e3)
        if not copied and self.is_shadowed(lease):
            return
        if self.pairs is not None and lease.revision.arm and (not abandoned or self.pairs.is_slow(duration_s)):
            self.pairs.add(
                lease.revision.arm, failed=failed and not abandoned, duration_s=duration_s, response=response
            )

    def queued(self) -> int:
        """Return the number of requests that wait for a replica."""
        return sum(not waiter.done() for waiter in self.waiting)

    def join_queue(self, waiter: "asyncio.Future[ReplicaLease[T]]", prompt: Prompt | None = None) -> None:
        """Queue for a slot.

        Raises:
            HttpError: The service has failed, or the queue is full.
        """
        if self.route.failure is not None and not self.has_replicas():
            raise self.failed()
        if len(self.waiting) >= self.route.max_queue and self.queued() >= self.route.max_queue:
            how = "every replica is busy" if self.has_replicas() else "no replica is ready yet"
            raise HttpError(
                429, f"{self.name}: {how} and {self.route.max_queue} requests wait already", retry_after_s=1
            )
        self.waiting.append(waiter)
        if prompt is not None:
            self._prompts[waiter] = prompt

    def leave_queue(self, waiter: "asyncio.Future[ReplicaLease[T]]", now: float) -> None:
        """Leave the queue; a slot that was assigned meanwhile goes to the next."""
        if waiter in self.waiting:
            self.waiting.remove(waiter)
        self._prompts.pop(waiter, None)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.release(waiter.result(), now)

    def failed(self) -> HttpError:
        """Make the error while no revision can serve."""
        return HttpError(503, f"{self.name}: {self.route.failure}", retry_after_s=10)

    def _choose(self, revision: RoutedRevision[T], now: float, prompt: Prompt | None) -> UpstreamReplica[T] | None:
        if prompt is None or self.affinity is None:
            return revision.least_outstanding(now, self.route.max_concurrency)
        return self.affinity.choose(prompt, revision.available(now, self.route.max_concurrency), self.route.places)

    def _occupy(
        self, revision: RoutedRevision[T], replica: UpstreamReplica[T], now: float, prompt_load: float = 0.0
    ) -> ReplicaLease[T]:
        self._turns += 1
        replica.turn = self._turns
        replica.count_busy(now, self.route.places)
        replica.outstanding += 1
        replica.prompt_load += prompt_load
        replica.try_again(now)
        return ReplicaLease(revision, replica, prompt_load)


class ServiceTable(Generic[T]):
    """All services, indexed by host and path.

    Attributes:
        touched: Services with requests, or with an arrival since demand was written.
        warm: Services whose replicas may have unused connections.
    """

    def __init__(self) -> None:
        self.touched: set[RoutedService[T]] = set()
        self.warm: set[RoutedService[T]] = set()
        self.services: dict[str, RoutedService[T]] = {}
        self._hosts: dict[bytes, RoutedService[T]] = {}
        self._paths: dict[bytes, RoutedService[T]] = {}
        self._depth = 0

    @property
    def hosts(self) -> AbstractSet[bytes]:
        """Return the hosts of all services."""
        return self._hosts.keys()

    def update(self, routes: Mapping[str, ServiceRoute]) -> list[UpstreamReplica[T]]:
        """Apply new routes and return the removed replicas.

        Services that are gone finish their running requests and refuse their waiting ones.
        """
        gone: list[UpstreamReplica[T]] = []
        for name in [name for name in self.services if name not in routes]:
            service = self.services.pop(name)
            for waiter in service.waiting:
                if not waiter.done():
                    waiter.set_exception(HttpError(404, f"{name} is no longer served"))
            gone += [replica for revision in service.revisions for replica in revision.replicas]
        for replica in gone:
            replica.removed = True
        for name, route in routes.items():
            known = self.services.get(name)
            if known is None:
                known = self.services[name] = RoutedService(route, touched=self.touched, warm=self.warm)
            gone += known.update(route)
        self._hosts = {host.encode(): self.services[name] for name, route in routes.items() for host in route.hosts}
        self._paths = {
            route.path.encode(): self.services[name] for name, route in routes.items() if route.path is not None
        }
        self._depth = max((path.count(b"/") for path in self._paths), default=0)
        return gone

    def find(self, request: RequestHead) -> tuple[RoutedService[T], bytes] | None:
        """Return the service of a request, and the path as its replicas expect it; hosts take precedence over paths."""
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
