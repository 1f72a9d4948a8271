"""Measures periodically how busy runs keep what they hold: GPUs by NVML, cores by the system's counters.

The utilisation of a run is that of its GPUs; that of its cores if it has no GPUs and requests more than one core per
rank, the default. Each measurement is stored as points of the run and, pod by pod, as idle time for the bill. A
supervisor that replaces a killed one reads the last points again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fairlead.cluster.local.machine import NAME
from fairlead.cluster.local.nvml import NvmlReader
from fairlead.cluster.local.pod_files import read_pids
from fairlead.cluster.local.store import UsageMeasurement
from fairlead.policy.kinds import idleness
from fairlead.state.node_health import Incident
from fairlead.state.series import Point
from fairlead.state.snapshot import WHOLE_MILLI, Pod, PodPhase, Workload, is_replica, is_workspace
from fairlead.state.system_metrics import CPU, GPU, GPU_MEMORY, MEMORY, POWER, TEMPERATURE

if TYPE_CHECKING:
    from fairlead.cluster.local.home import Home
    from fairlead.cluster.local.nvml import NvmlReader
    from fairlead.cluster.local.store import LocalStore
    from fairlead.cluster.usages import GpuUsage
    from fairlead.state.idleness import Idleness

SAMPLE_S = 15.0
# Minimum number of samples within the shortest window that a run's `idle` names.
LEAST_SAMPLES = 10
# GPUs that were used more than this in a sample count as activity in a workspace.
USED = 0.02
# Beyond so many samples of a run, pairs are merged.
MOST_SAMPLES = 2_000


class UtilizationMeter:
    """Measures the utilisation of the runs of one state directory; an instance belongs to one thread.

    Args:
        nvml: Opens NVML; called once there is a run with GPUs.
    """

    def __init__(self, home: Home, store: LocalStore, nvml: Callable[[], NvmlReader] | None = None) -> None:
        self._home = home
        self._store = store
        self._open_nvml = nvml or _nvml
        self._nvml: NvmlReader | None = None
        self._samples: dict[tuple[str, int], list[idleness.UsageSample]] = {}
        self._idle: dict[tuple[str, int], Idleness] = {}
        self._gpu_active_at: dict[str, float] = {}
        self._cpu_s: dict[str, tuple[float, float]] = {}
        self._looked_at: float | None = None
        self._due_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether a measurement is due; a clock that was set back does not stop it."""
        return now >= self._due_at or (self._looked_at is not None and now < self._looked_at)

    def measure(self, runs: Iterable[Workload], pods: Iterable[Pod], now: float) -> None:
        """Measure the running pods, and store the results."""
        since, self._looked_at = self._looked_at, now
        of_run: dict[str, list[Pod]] = {}
        for pod in pods:
            if pod.phase is PodPhase.RUNNING and pod.terminating_since is None:
                of_run.setdefault(pod.workload_uid, []).append(pod)
        counted = [run for run in runs if run.uid in of_run and is_measured(run, of_run[run.uid])]
        windows = [run.spec.idle.for_s / LEAST_SAMPLES for run in counted]
        self._due_at = now + min(SAMPLE_S, *windows) if windows else now + SAMPLE_S
        if not counted:
            self._samples, self._idle, self._cpu_s = {}, {}, {}
            self.close()
            return
        processes = self._processes([pod for run in counted for pod in of_run[run.uid]])
        measurements: list[UsageMeasurement] = []
        seen: dict[tuple[str, int], list[idleness.UsageSample]] = {}
        for run in counted:
            key = run.uid, run.status.attempt
            seen[key] = self._samples.get(key) or self._stored_samples(run, now)
            measurements += self._measure(run, of_run[run.uid], processes, since, now, seen[key])
        self._samples, self._idle = seen, {}
        for run in counted:
            idle = idleness.idleness(seen[run.uid, run.status.attempt], run.spec.idle, now)
            # A server may well wait for requests, and a person may think.
            if idle is not None and not is_replica(run.spec) and not is_workspace(run):
                self._idle[run.uid, run.status.attempt] = idle
        self._cpu_s = {uid: total for uid, total in self._cpu_s.items() if uid in processes}
        if measurements:
            self._store.keep_measured(measurements)
        if self._nvml is not None:
            held = {uuid for run in counted for pod in of_run[run.uid] for uuid in pod.grant.gpu_uuids}
            for cause in sorted(self._nvml.faults(held)):
                self._store.charge(Incident(at=now, cause=cause, nodes=(NAME,)))

    def idle_of(self, run: Workload) -> Idleness | None:
        """Return the idleness of a run as its spec defines it; None if it is busy, or that is not known yet."""
        return self._idle.get((run.uid, run.status.attempt))

    def gpu_active_at(self, run: Workload) -> float | None:
        """Return when the GPUs of a workspace were last seen in use; None if never."""
        return self._gpu_active_at.get(run.uid)

    def close(self) -> None:
        """Close NVML."""
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _measure(
        self,
        run: Workload,
        pods: Sequence[Pod],
        processes: Mapping[str, Sequence[_Process]],
        since: float | None,
        now: float,
        samples: list[idleness.UsageSample],
    ) -> list[UsageMeasurement]:
        used = {pod.uid: self._cores(pod, processes[pod.uid], now) for pod in pods}
        usages = {pod.uid: self._gpus(pod, processes[pod.uid], since) for pod in pods if pod.grant.gpu_uuids}
        has_gpus = bool(usages)
        busy: dict[str, float] = {}
        for pod in pods:
            if has_gpus:
                known = [usage.busy for usage in usages.get(pod.uid, ()) if usage.busy is not None]
                if known:
                    busy[pod.uid] = sum(known) / len(known)
            elif (cores := used[pod.uid]) is not None:
                busy[pod.uid] = min(1.0, cores * WHOLE_MILLI / pod.grant.cpu_milli)
        values = _values([usage for pod_usages in usages.values() for usage in pod_usages], processes, pods)
        known_cores = [cores for cores in used.values() if cores is not None]
        granted = sum(pod.grant.cpu_milli for pod in pods) / WHOLE_MILLI
        cores = min(1.0, sum(known_cores) / granted) if granted and len(known_cores) == len(pods) else None
        if cores is not None:
            values[CPU] = cores
        if busy:
            mean = sum(busy.values()) / len(busy)
            if has_gpus:
                values[GPU] = mean
                if mean > USED and is_workspace(run):
                    self._gpu_active_at[run.uid] = now
            if since is not None:
                samples.append(
                    idleness.sample_of(run, pods, at=now, span_s=now - since, busy=mean, has_gpus=has_gpus, cores=cores)
                )
                samples[:] = idleness.coarsened(idleness.recent(samples, run.spec.idle, now), MOST_SAMPLES)
        points = tuple(
            (name, Point(at=now, step=None, value=round(value, 4), attempt=run.status.attempt))
            for name, value in values.items()
        )
        return [
            UsageMeasurement(
                workload_uid=run.uid,
                pod_uid=pod.uid,
                start_ms=_since_ms(pod, since, now),
                end_ms=round(now * 1000),
                busy=busy.get(pod.uid),
                points=points if pod is pods[0] else (),
            )
            for pod in pods
        ]

    def _gpus(self, pod: Pod, processes: Sequence[_Process], since: float | None) -> list[GpuUsage]:
        """Read the devices of a pod; for a shared one, the use by the pod's own processes, relative to its share."""
        if self._nvml is None:
            self._nvml = self._open_nvml()
        part, pids = pod.grant.gpu_milli / WHOLE_MILLI, {process.pid for process in processes}
        return [self._nvml.read_part(uuid, part, pids, since or 0.0) for uuid in pod.grant.gpu_uuids]

    def _cores(self, pod: Pod, processes: Sequence[_Process], now: float) -> float | None:
        """Return the cores that the processes of a pod used since the last measurement; None at the first."""
        total_s = sum(process.cpu_s for process in processes)
        before = self._cpu_s.get(pod.uid)
        self._cpu_s[pod.uid] = now, total_s
        if before is None or now <= before[0]:
            return None
        return max(0.0, total_s - before[1]) / (now - before[0])

    def _processes(self, pods: Iterable[Pod]) -> dict[str, list[_Process]]:
        """Return the processes of each pod's ranks with all descendants, from one listing of the system's processes."""
        import psutil

        children: dict[int, list[psutil.Process]] = {}
        by_pid: dict[int, psutil.Process] = {}
        for process in psutil.process_iter(["ppid"]):
            by_pid[process.pid] = process
            children.setdefault(process.info["ppid"], []).append(process)
        by_pod: dict[str, list[_Process]] = {}
        for pod in pods:
            left = [by_pid[pid] for pid in self._ranks(pod) if pid in by_pid]
            by_pod[pod.uid] = []
            while left:
                process = left.pop()
                left += children.get(process.pid, [])
                try:
                    times = process.cpu_times()
                    memory = int(process.memory_info().rss)
                except psutil.Error:  # it has just ended
                    continue
                # Ended children count with the process that waited for them.
                ended_s = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
                by_pod[pod.uid].append(_Process(process.pid, times.user + times.system + ended_s, memory))
        return by_pod

    def _ranks(self, pod: Pod) -> list[int]:
        return read_pids(self._home.pod(pod.workload_uid, pod.uid))

    def _stored_samples(self, run: Workload, now: float) -> list[idleness.UsageSample]:
        """Read what was measured of this attempt before this process began."""
        series = self._store.points_since(run.uid, run.status.attempt, (GPU, CPU), now - run.spec.idle.for_s)
        has_gpus = bool(series[GPU])
        points = series[GPU] or series[CPU]
        return [
            idleness.UsageSample(
                at=point.at, span_s=min(SAMPLE_S, point.at - before), busy=point.value, has_gpus=has_gpus
            )
            for before, point in zip([now - run.spec.idle.for_s, *(point.at for point in points)], points, strict=False)
        ]


class _Process:
    """A process of a pod."""

    __slots__ = ("cpu_s", "memory_bytes", "pid")

    def __init__(self, pid: int, cpu_s: float, memory_bytes: int) -> None:
        self.pid = pid
        self.cpu_s = cpu_s
        self.memory_bytes = memory_bytes


def is_measured(run: Workload, pods: Iterable[Pod]) -> bool:
    """Return whether a run holds something whose utilisation counts: GPUs, or more than one core per rank."""
    cores = (run.spec.resources.cpu_milli or 0) / WHOLE_MILLI
    return cores > run.spec.ranks_on_each_node or any(pod.grant.gpu_uuids for pod in pods)


def _values(
    gpus: Sequence[GpuUsage], processes: Mapping[str, Sequence[_Process]], pods: Iterable[Pod]
) -> dict[str, float]:
    """Sum up the other reported values over all pods; the temperature is that of the hottest device."""
    values: dict[str, float] = {MEMORY: sum(process.memory_bytes for pod in pods for process in processes[pod.uid])}
    memory = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes is not None]
    power = [gpu.power_watts for gpu in gpus if gpu.power_watts is not None]
    heat = [gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None]
    if memory:
        values[GPU_MEMORY] = sum(memory)
    if power:
        values[POWER] = sum(power)
    if heat:
        values[TEMPERATURE] = max(heat)
    return values


def _since_ms(pod: Pod, since: float | None, now: float) -> int:
    """Return the beginning of a measurement's span for a pod: the last measurement, within the longest valid span."""
    begun = max(now - idleness.MOST_SPAN_S, now if since is None else since, pod.started_at or now)
    return round(min(begun, now) * 1000)


def _nvml() -> NvmlReader:
    return NvmlReader()
