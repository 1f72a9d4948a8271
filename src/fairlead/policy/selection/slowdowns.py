"""Learns from reports of runs how fast they go beside others on the same GPUs, and predicts it.

A run's speed is its rate beside the others over the rate of its kind alone; so it is unknown for kinds never seen
alone. Runs of one kind have the same team, name (without its trailing number) and size. For an unseen company the best
still possible speed is assumed: no slower than the slowest seen part of it, nor slower than runs whose stages fill each
other's gaps. So unknown companies are tried, after which their speed is known. For those Muri (SIGCOMM'22) measured
that two take 1.33 / 1.015 times as long as the ideal schedule (``INTERFERENCE``); each further one is assumed to cost
as much again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, combinations

from fairlead.frozen import dataclass
from fairlead.policy.gpu.stage_interleaving import INTERFERENCE
from fairlead.policy.placement.memo import cached_last
from fairlead.policy.queue.durations import kind_of
from fairlead.specs.gang import GangSpec
from fairlead.state.snapshot import Completed, Pace, Phase, Pod, Snapshot, Status, Workload

Kinds = tuple[str, ...]

# The time that each further member adds to an iteration, relative to it alone, if unknown.
PRIOR_SLOWDOWN = INTERFERENCE[2] - 1.0
# The age from which a rate beside new neighbours counts: programs report a mean over some time.
SETTLE_S = 60.0
# The time after which a rate is expected, because programs report at the end of a step.
FIRST_CHECK_S = 300.0
# The number of companies kept per run, the newest.
MOST_PACES = 16


class Slowdowns:
    """Known rates: the mean of observations for each kind and company."""

    def __init__(self, paces: Iterable[Pace]) -> None:
        slowdowns: dict[tuple[str, Kinds], list[float]] = defaultdict(list)
        for pace in paces:
            if pace.rate:
                slowdowns[pace.kind, pace.beside].append(pace.rate)
        means = {key: sum(rates) / len(rates) for key, rates in slowdowns.items()}
        self._alone = {kind: rate for (kind, beside), rate in means.items() if not beside}
        self._relative_speeds = {
            (kind, beside): min(1.0, rate / self._alone[kind])
            for (kind, beside), rate in means.items()
            if beside and kind in self._alone
        }
        self._speed = cache(self._predicted)

    def knows(self, kind: str) -> bool:
        """Return whether such a run was seen alone."""
        return kind in self._alone

    def speeds(self, kinds: Kinds) -> tuple[float, ...]:
        """Return the speed of each beside the others, as a share of its speed alone; ``kinds`` are sorted."""
        if len(kinds) == 1:
            return (1.0,)
        return tuple(self._speed(kind, kinds[:index] + kinds[index + 1 :]) for index, kind in enumerate(kinds))

    def speed(self, kind: str, beside: Kinds) -> float:
        """Return the speed of one beside others, as a share of its speed alone."""
        return self._speed(kind, beside)

    def is_measured(self, kind: str, beside: Kinds) -> bool:
        """Return whether such a run has reported its speed in this company."""
        return (kind, beside) in self._relative_speeds or (not beside and kind in self._alone)

    def _predicted(self, kind: str, beside: Kinds) -> float:
        if not beside or (kind, beside) in self._relative_speeds:
            return self._relative_speeds.get((kind, beside), 1.0)
        parts = chain.from_iterable(combinations(beside, num) for num in range(1, len(beside)))
        bounds = (self._relative_speeds[kind, part] for part in parts if (kind, part) in self._relative_speeds)
        return min(1.0 / (1.0 + PRIOR_SLOWDOWN * len(beside)), *bounds, 1.0)


NOTHING_KNOWN = Slowdowns(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """The others on the GPUs of a run, and their effect on it.

    Attributes:
        beside: Names of the others.
        speed: Its speed as a share of its speed alone; None if runs of its kind never reported that.
        is_measured: Whether runs of its kind have reported it in such company; otherwise it is predicted.
    """

    beside: tuple[str, ...]
    speed: float | None
    is_measured: bool


def company_of(workload: Workload, snapshot: Snapshot) -> Company | None:
    """Return which runs share the GPUs of a run that allows it and holds some; None for any other."""
    if not is_colocated(workload):
        return None
    pods: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        pods[pod.workload_uid].append(pod)
    others = companies([run for run in snapshot.workloads if is_colocated(run)], pods).get(workload.uid, [])
    slowdowns = slowdowns_of(snapshot.workloads, snapshot.completed)
    kind, kinds = pace_kind(workload.spec), tuple(sorted(pace_kind(run.spec) for run in others))
    return Company(
        beside=tuple(sorted(run.spec.name for run in others)),
        speed=slowdowns.speed(kind, kinds) if slowdowns.knows(kind) else None,
        is_measured=slowdowns.is_measured(kind, kinds),
    )


def slowdowns_of(workloads: Iterable[Workload], completed: tuple[Completed, ...]) -> Slowdowns:
    """Return the slowdowns known from these runs."""
    live = tuple(pace for workload in workloads for pace in workload.status.measured.paces)
    return _slowdowns((_paces_of(completed), live))


@cached_last
def _paces_of(completed: tuple[Completed, ...]) -> tuple[Pace, ...]:
    return tuple(pace for run in completed for pace in run.paces)


@cached_last
def _slowdowns(paces: tuple[tuple[Pace, ...], tuple[Pace, ...]]) -> Slowdowns:
    return Slowdowns(chain(*paces))


def pace_kind(spec: GangSpec) -> str:
    """Return the kind of a run that may be colocated."""
    gpu = spec.resources.gpu
    return f"{'/'.join(kind_of(spec))} {spec.nodes}x{0 if gpu is None else gpu.num_devices}"


def observe(workload: Workload, others: Iterable[Workload], now: float) -> Status:
    """Return its status with its neighbours and, once settled, its speed; unchanged without news."""
    status, progress = workload.status, workload.progress
    kind, beside = pace_kind(workload.spec), tuple(sorted(pace_kind(run.spec) for run in others))
    last = status.measured.paces[-1] if status.measured.paces else None
    if last is None or (last.kind, last.beside) != (kind, beside):
        rated_paces = [pace for pace in status.measured.paces if pace.rate is not None]
        return replace(
            status,
            measured=replace(
                status.measured, paces=(*rated_paces[1 - MOST_PACES :], Pace(kind=kind, beside=beside, since=now))
            ),
        )
    settled = progress is not None and progress.updated_at >= last.since + SETTLE_S
    if last.rate is None and settled and progress is not None and progress.throughput:
        return replace(
            status,
            measured=replace(
                status.measured, paces=(*status.measured.paces[:-1], replace(last, since=now, rate=progress.throughput))
            ),
        )
    return status


def settles_at(workload: Workload, now: float) -> float | None:
    """Return when to check next how fast a run goes beside its present neighbours; None if that is known.

    A slow one reports late: the delay doubles with each check.
    """
    paces = workload.status.measured.paces
    if not paces or paces[-1].rate is not None:
        return None
    after_s = FIRST_CHECK_S
    while paces[-1].since + after_s <= now:
        after_s *= 2
    return paces[-1].since + after_s


def companies(running: Sequence[Workload], pods: Mapping[str, Sequence[Pod]]) -> dict[str, list[Workload]]:
    """Return, by uid, the runs that share a device with each run."""
    on_device: dict[tuple[str, str], list[Workload]] = defaultdict(list)
    devices: dict[str, list[tuple[str, str]]] = {}
    for workload in running:
        live = [pod for pod in pods[workload.uid] if not pod.phase.is_final]
        devices[workload.uid] = [(pod.node, uuid) for pod in live for uuid in pod.grant.gpu_uuids]
        for device in devices[workload.uid]:
            on_device[device].append(workload)
    return {
        uid: list(
            {other.uid: other for device in own_devices for other in on_device[device] if other.uid != uid}.values()
        )
        for uid, own_devices in devices.items()
    }


def is_colocated(workload: Workload) -> bool:
    """Return whether a run has GPUs that it may share."""
    return workload.spec.resources.colocate and workload.status.phase in (Phase.STARTING, Phase.RUNNING)
