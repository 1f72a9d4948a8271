"""Measures the usage of this machine's pods: processes by the system's counters, GPUs by NVML."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.nvml import NvmlReader
from fairlead.cluster.local.pod_files import read_pids
from fairlead.cluster.usages import GpuUsage, PodUsage, Usages
from fairlead.state.snapshot import WHOLE_MILLI, Pod, PodPhase, Workload

SAMPLE_S = 0.5
# A device notes what each process computes once or more in this time.
GPU_SAMPLES_S = 3.0


def usages(cluster: LocalCluster, runs: Iterable[Workload], *, sample_s: float = SAMPLE_S) -> Usages:
    """Measure twice, ``sample_s`` seconds apart, since processor use is a difference of counters."""
    pods = [(run, pod) for run in runs for pod in cluster.pods(run.uid) if not pod.phase.is_final]
    processes = {pod.uid: _processes(cluster.home.pod(run.uid, pod.uid)) for run, pod in pods}
    before, begun = {uid: _cpu_s(pod_processes) for uid, pod_processes in processes.items()}, time.monotonic()
    if pods:
        time.sleep(sample_s)
    passed_s = time.monotonic() - begun
    gpus, missing = _gpus([pod for _, pod in pods], processes)
    return Usages(
        pods=tuple(
            PodUsage(
                run=run.spec.name,
                team=run.spec.team,
                pod=pod.uid,
                index=pod.index,
                node=pod.node,
                phase=_phase(pod).value,
                cpu_milli=None
                if _phase(pod) is PodPhase.STARTING
                else 1000 * max(0.0, _cpu_s(processes[pod.uid]) - before[pod.uid]) / passed_s,
                memory_bytes=None if _phase(pod) is PodPhase.STARTING else _memory_bytes(processes[pod.uid]),
                granted_cpu_milli=pod.grant.cpu_milli,
                granted_memory_bytes=pod.grant.memory_bytes,
                gpus=gpus[pod.uid],
            )
            for run, pod in pods
        ),
        missing=missing,
    )


def _phase(pod: Pod) -> PodPhase:
    return PodPhase.RUNNING if pod.phase is PodPhase.RUNNING else PodPhase.STARTING


def _processes(directory: Path) -> list[psutil.Process]:
    """Return the processes of the ranks and all their descendants."""
    processes = []
    for pid in read_pids(directory):
        try:
            process = psutil.Process(pid)
            processes += [process, *process.children(recursive=True)]
        except psutil.Error:
            continue
    return processes


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended
            continue
        total += times.user + times.system
    return total


def _memory_bytes(processes: Sequence[psutil.Process]) -> int:
    """Return the resident memory; pages shared between processes count for each of them."""
    total = 0
    for process in processes:
        try:
            total += int(process.memory_info().rss)
        except psutil.Error:
            continue
    return total


def _gpus(
    pods: Sequence[Pod], processes: Mapping[str, Sequence[psutil.Process]]
) -> tuple[dict[str, tuple[GpuUsage, ...]], tuple[str, ...]]:
    """Return the devices of each pod; of a shared one, what the pod's own processes do with it."""
    if not any(pod.grant.gpu_uuids for pod in pods):
        return {pod.uid: () for pod in pods}, ()
    reader, since = NvmlReader(), time.time() - GPU_SAMPLES_S
    try:
        gpus = {
            pod.uid: tuple(
                reader.read_part(
                    uuid, pod.grant.gpu_milli / WHOLE_MILLI, {process.pid for process in processes[pod.uid]}, since
                )
                for uuid in pod.grant.gpu_uuids
            )
            for pod in pods
        }
    finally:
        reader.close()
    return gpus, () if reader.problem is None else (f"GPU usage is not known: {reader.problem}",)
