"""Share of requests served in time, of several services that share a budget of replicas, by autoscaling policy.

    python -m benchmarks.autoscaling --data DIR --replicas 16,24,32 --policies fairlead,hpa,keda,aiad,fairshare [--json]

DIR holds faro/arrivals*.jsonl (a line per minute: `ts`, and `counts` of the requests of each service). The c requests
of a minute arrive at its beginning and then after exponential gaps of mean 60 / c seconds. Each policy runs as
published services work (`gate` false) and behind a gate that refuses requests that would be late (`gate` true).

A service has one proxy (FIFO, passed by requests and replies), a queue that drops requests when more than 50 wait, and
replicas used in turn, with at most 4 requests each, that serve one at a time. It starts with one and keeps one.
A new replica serves after 35 s, or after 3 s if its service released it less than 30 s ago; until then it counts
against the budget. Decisions come every 10 s; a service with a pending change takes none. Attainment is the share of
requests within 720 ms, counting dropped and refused ones as late, by service and minute of arrival, averaged.
"""

import argparse
import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from benchmarks.data import folder_of
from fairlead.policy.serving import joint_scaling

SLO_S = 0.72
SEED = 42
DECIDE_S = 10
ACTUATE_S = 5
START_S, WARM_S, IDLE_S = 35.0, 3.0, 30.0
MAX_WAITING, MAX_IN_FLIGHT = 50, 4
# Fixed part, median and sigma of the lognormal rest, seconds; as measured by Faro's authors.
PROXY = (0.00349, 0.000988, 0.481)
SERVICE = (0.0793, 0.0686, 0.4225)
SERVICE_MEAN = SERVICE[0] + SERVICE[1] * math.exp(SERVICE[2] ** 2 / 2)
SERVICE_CV2 = (SERVICE[1] * math.exp(SERVICE[2] ** 2 / 2) / SERVICE_MEAN) ** 2 * math.expm1(SERVICE[2] ** 2)
POOL = 1 << 16


@dataclass(slots=True)
class Tick:
    """Of the last ten seconds: offered requests, those that ended or were dropped, the sum of their latencies."""

    offered: int = 0
    ended: int = 0
    served: int = 0
    latency_s: float = 0.0


class Service:
    """A service on its way through the day.

    Attributes:
        live: Replicas that take requests, oldest first: when each is free, requests in flight, whether it is live.
        coming: When the replicas that are on their way serve, seconds.
        pending: Replicas ordered that have no place so far.
        idle: Since when given up replicas are idle, seconds.
        ticks: What each interval between two decisions saw; the last is under way.
    """

    def __init__(self, arrivals: Sequence[float], minutes: int, rng: np.random.Generator, gate: bool) -> None:
        """Start with one replica; ``arrivals`` are sorted, seconds."""
        self.arrivals = [*arrivals, math.inf]
        self.in_time = [0] * (minutes + 1)
        self.live: list[list[float]] = [[0.0, 0, 1]]
        self.coming: list[float] = []
        self.pending = 0
        self.idle: list[float] = []
        self.ticks = [Tick()]
        self.gate = joint_scaling.queue_limit(SERVICE_MEAN, SLO_S) if gate else 0
        self.passes = _draws(PROXY, rng)
        self.services = _draws(SERVICE, rng)
        self.drawn = self.passed = self.at = self.turn = self.holding = 0
        self.proxy_free = 0.0
        self.waiting: deque[float] = deque()
        self.running: list[tuple[float, float, list[float]]] = []

    def advance(self, until: float) -> None:
        """Run until then, with replicas serving as they come."""
        for at in sorted(self.coming):
            if at < until:
                self._run(at)
                self.coming.remove(at)
                self._add(at)
        self._run(until)

    def remove_newest(self, now: float) -> None:
        """Take requests no more on the newest replica, which finishes its own and stays warm for a while."""
        self.live.pop()[2] = 0
        self.idle.append(now)

    def _add(self, now: float) -> None:
        replica = [now, 0, 1]
        self.live.append(replica)
        while self.waiting and replica[1] < MAX_IN_FLIGHT:
            self._start(self.waiting.popleft(), now, replica)

    def _start(self, arrived: float, now: float, replica: list[float]) -> None:
        self.drawn += 1
        replica[0] = max(now, replica[0]) + self.services[self.drawn % POOL]
        replica[1] += 1
        heappush(self.running, (replica[0], arrived, replica))

    def _run(self, until: float) -> None:
        arrivals, running, waiting, live = self.arrivals, self.running, self.waiting, self.live
        passes, services, in_time, tick = self.passes, self.services, self.in_time, self.ticks[-1]
        at, drawn, passed, turn, proxy_free = self.at, self.drawn, self.passed, self.turn, self.proxy_free
        holding, last, most = self.holding, len(in_time) - 1, self.gate * len(live)
        in_flight = min(MAX_IN_FLIGHT, self.gate) if self.gate else MAX_IN_FLIGHT
        arrived = arrivals[at]
        while True:
            if running and running[0][0] <= arrived:
                if running[0][0] >= until:
                    break
                ended, began, replica = heappop(running)
                passed += 1
                proxy_free = max(proxy_free, ended) + passes[passed % POOL]
                holding -= 1
                latency = proxy_free - began
                tick.ended += 1
                tick.served += 1
                tick.latency_s += latency
                if latency <= SLO_S:
                    in_time[min(int(began / 60.0), last)] += 1
                replica[1] -= 1
                if waiting and replica[2]:
                    drawn += 1
                    replica[0] = max(ended, replica[0]) + services[drawn % POOL]
                    replica[1] += 1
                    heappush(running, (replica[0], waiting.popleft(), replica))
                continue
            if arrived >= until:
                break
            at += 1
            tick.offered += 1
            if most and holding >= most:
                tick.ended += 1
                tick.latency_s += 0.01
                arrived = arrivals[at]
                continue
            passed += 1
            proxy_free = max(proxy_free, arrived) + passes[passed % POOL]
            if not waiting:
                for _ in live:
                    turn += 1
                    replica = live[turn % len(live)]
                    if replica[1] < in_flight:
                        drawn += 1
                        replica[0] = max(proxy_free, replica[0]) + services[drawn % POOL]
                        replica[1] += 1
                        holding += 1
                        heappush(running, (replica[0], arrived, replica))
                        break
                else:
                    waiting.append(arrived)
                    holding += 1
            elif len(waiting) > MAX_WAITING:
                tick.ended += 1
                tick.latency_s += 0.01
            else:
                waiting.append(arrived)
                holding += 1
            arrived = arrivals[at]
        self.at, self.drawn, self.passed, self.turn, self.proxy_free = at, drawn, passed, turn, proxy_free
        self.holding = holding


@dataclass(slots=True)
class Cluster:
    """Services on a number of places: what they were ordered, in the order in which they wait for a place."""

    services: Sequence[Service]
    places: int
    queue: list[Service] = field(default_factory=list)

    def order(self, service: Service, num_replicas: int, now: float) -> None:
        """Have so many replicas, one at least; ignored while an order of the service is under way."""
        if service.coming or service.pending:
            return
        while len(service.live) > max(1, num_replicas):
            service.remove_newest(now)
        service.pending = max(0, num_replicas - len(service.live))
        if service.pending:
            self.queue.append(service)

    def place(self, now: float) -> None:
        """Free what was idle for long, then start what waits for a place, first come first."""
        for service in self.services:
            service.idle = [since for since in service.idle if now - since < IDLE_S]
        free = self.places - sum(len(each.live) + len(each.coming) + len(each.idle) for each in self.services)
        for service in self.queue:
            while service.pending and (service.idle or free > 0):
                service.pending -= 1
                if service.idle:
                    service.idle.pop()
                    service.coming.append(now + WARM_S)
                else:
                    free -= 1
                    service.coming.append(now + START_S)
        self.queue = [service for service in self.queue if service.pending]


Policy = Callable[[Sequence[Service], int, bool], Sequence[int]]


def fairlead(services: Sequence[Service], places: int, gate: bool) -> Sequence[int]:
    """The rule of endpoints, on what was offered."""
    seen = [
        joint_scaling.EndpointState(
            rates=[tick.offered / DECIDE_S for tick in each.ticks[-90:]],
            service_s=SERVICE_MEAN,
            service_cv2=SERVICE_CV2,
            slo_s=SLO_S,
            replicas=_ordered(each),
            idle=len(each.idle),
            locked=bool(each.coming or each.pending),
            gate=gate,
        )
        for each in services
    ]
    return joint_scaling.allocate(seen, places, interval_s=DECIDE_S)


def fairshare(services: Sequence[Service], places: int, gate: bool) -> Sequence[int]:
    """The same number for each service."""
    return [max(1, places // len(services))] * len(services)


class Aiad:
    """One more after three ticks too slow on average over 30 s, one less after sixty that were not (Faro's AIAD).

    What the budget has no place for is not ordered: who waited for it would keep a place that it needs no more.
    """

    def __init__(self) -> None:
        self.slow: dict[Service, int] = {}
        self.fast: dict[Service, int] = {}

    def __call__(self, services: Sequence[Service], places: int, gate: bool) -> Sequence[int]:
        chosen = []
        free = places - sum(_ordered(each) for each in services)
        for each in services:
            ended = sum(tick.ended for tick in each.ticks[-3:])
            slow = ended > 0 and sum(tick.latency_s for tick in each.ticks[-3:]) / ended > SLO_S
            self.slow[each] = self.slow.get(each, 0) + 1 if slow else 0
            self.fast[each] = 0 if slow else self.fast.get(each, 0) + 1
            target = _ordered(each)
            # An order that would not be taken begins no new count.
            if each.coming or each.pending:
                chosen.append(target)
                continue
            if self.slow[each] >= 3:
                self.slow[each] = 0
                if free > 0:
                    target, free = target + 1, free - 1
            elif self.fast[each] >= 60:
                target, self.fast[each] = target - 1, 0
            chosen.append(target)
        return chosen


class Threshold:
    """Replicas for a load of 70 % each, the most that was wanted in the last 300 s: HPA's and KEDA's arithmetic.

    HPA sees how busy the replicas were, KEDA how many requests came, over a minute. Where they want more than there
    is, they are served in turn, one replica each.
    """

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        self.wanted: dict[Service, deque[int]] = {}

    def __call__(self, services: Sequence[Service], places: int, gate: bool) -> Sequence[int]:
        wishes = []
        for each in services:
            ticks = each.ticks[-6:]
            requests = sum(tick.served if self.busy else tick.offered for tick in ticks)
            load = requests * SERVICE_MEAN / (len(ticks) * DECIDE_S)
            wanted = self.wanted.setdefault(each, deque(maxlen=300 // DECIDE_S))
            wanted.append(max(1, math.ceil(load / 0.7 - 1e-9)))
            wishes.append(max(wanted))
        held = [_ordered(each) for each in services]
        chosen = [min(wish, have) for wish, have in zip(wishes, held, strict=True)]
        room = places - sum(chosen)
        while room > 0:
            short = [place for place, wish in enumerate(wishes) if chosen[place] < wish]
            if not short:
                break
            for place in short[:room]:
                chosen[place] += 1
            room -= len(short[:room])
        return chosen


POLICIES: dict[str, Callable[[], Policy]] = {
    "fairlead": lambda: fairlead,
    "hpa": lambda: Threshold(busy=True),
    "keda": lambda: Threshold(busy=False),
    "aiad": Aiad,
    "fairshare": lambda: fairshare,
}


def main(given: Sequence[str] | None = None) -> None:
    """Parse, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=folder_of("faro"), default=Path("../shared/traces/faro"), help="folder of the arrivals"
    )
    parser.add_argument("--replicas", type=_numbers, default=[16, 24, 32], help="budgets (default 16,24,32)")
    parser.add_argument("--policies", type=_names, default=list(POLICIES), help="rules (default all)")
    parser.add_argument("--gate", choices=["both", "on", "off"], default="both", help="with the gate (default both)")
    parser.add_argument("--minutes", type=int, help="only the first minutes of each file")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    arguments = parser.parse_args(given)
    files = sorted(arguments.data.glob("arrivals*.jsonl"))
    if not files:
        parser.error(f"no arrivals (arrivals*.jsonl) in {arguments.data}")
    for path in files:
        counts = read_counts(path)[: arguments.minutes]
        if min(arguments.replicas) < counts.shape[1]:
            parser.error(f"{path.name} has {counts.shape[1]} services: as many replicas are needed at least")
        for name in arguments.policies:
            for gate in {"both": [False, True], "on": [True], "off": [False]}[arguments.gate]:
                for places in arguments.replicas:
                    share = simulate(counts, places, POLICIES[name](), gate=gate)
                    row = {
                        "file": path.name,
                        "policy": name,
                        "gate": gate,
                        "replicas": places,
                        "attainment": round(share, 4),
                    }
                    if arguments.json:
                        print(json.dumps(row), flush=True)
                    else:
                        label = f"{path.stem:<28}{name:<12}{'gate' if gate else '':<6}"
                        print(f"{label}{places:>4}{share:>9.4f}", flush=True)


def read_counts(path: Path) -> np.ndarray:
    """Requests by minute and service, the services in the order of the first line that names them."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    names = list(dict.fromkeys(name for row in rows for name in row["counts"]))
    return np.array([[sum(row["counts"].get(name, {}).values()) for name in names] for row in rows], dtype=int)


def simulate(counts: np.ndarray, places: int, policy: Policy, *, gate: bool, seed: int = SEED) -> float:
    """Attainment of a policy on so many places; ``counts`` are requests by minute and service."""
    minutes, num_services = counts.shape
    arrivals = draw_arrivals(counts, seed)
    rngs = np.random.default_rng([seed, 1]).spawn(num_services)
    services = [Service(times, minutes, rng, gate) for times, rng in zip(arrivals, rngs, strict=True)]
    cluster = Cluster(services=services, places=places)
    # A minute more than the arrivals: what came last ends too.
    for now in range(0, 60 * minutes + 60, ACTUATE_S):
        for service in services:
            service.advance(now)
        cluster.place(now)
        if now and now % DECIDE_S == 0:
            orders = policy(services, places, gate)
            for service, order in zip(services, orders, strict=True):
                cluster.order(service, order, now)
            cluster.place(now)
            for service in services:
                service.ticks.append(Tick())
    shares = []
    for service, times in zip(services, arrivals, strict=True):
        total = np.bincount((np.array(times) // 60).astype(int), minlength=minutes)[:minutes]
        shares.append(np.array(service.in_time[:minutes])[total > 0] / total[total > 0])
    return float(np.concatenate(shares).mean())


def draw_arrivals(counts: np.ndarray, seed: int) -> list[list[float]]:
    """Return the arrivals of each service's requests, seconds, sorted."""
    rng = np.random.default_rng(seed)
    arrivals: list[list[float]] = [[] for _ in range(counts.shape[1])]
    for minute, row in enumerate(counts):
        for service, count in enumerate(row):
            if count:
                gaps = rng.exponential(60.0 / count, count)
                arrivals[service] += (60.0 * minute + np.cumsum(gaps) - gaps[0]).tolist()
    return [sorted(times) for times in arrivals]


def _ordered(service: Service) -> int:
    return len(service.live) + len(service.coming) + service.pending


def _draws(shape: tuple[float, float, float], rng: np.random.Generator) -> list[float]:
    fixed, median, sigma = shape
    drawn: list[float] = (fixed + median * rng.lognormal(0.0, sigma, POOL)).tolist()
    return drawn


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return names


if __name__ == "__main__":
    main()
