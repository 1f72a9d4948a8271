"""Measuring how busy runs keep what they hold on this machine: points of the run, idle time on the bill, an event."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.nvml import NvmlReader
from fairlead.cluster.local.process_metrics import usages
from fairlead.cluster.local.store import PodObservation
from fairlead.cluster.local.tables import PodRow
from fairlead.cluster.local.utilization_meter import SAMPLE_S, UtilizationMeter
from fairlead.control.metrics.local import read_gpus
from fairlead.ledger.usage import Use
from fairlead.policy.health.node_risk import SAME_S
from fairlead.runtime.podfiles import write_json
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.serving import Replica
from fairlead.specs.training import Idle, Training
from fairlead.state.node_health import FailureCause
from fairlead.state.plan import CreatePod, Plan
from fairlead.state.snapshot import Gpu, Grant, Phase, Pod, PodPhase, RankExit, Workload, is_leaf
from fairlead.state.system_metrics import CPU, GPU, GPU_MEMORY, POWER, TEMPERATURE
from tests.builders import change, status, training
from tests.cluster.fake_nvml import Device, fake_nvml
from tests.home import end_everything

UUIDS = ("GPU-0", "GPU-1")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    found = LocalCluster.open(tmp_path)
    yield found
    found.close()


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    found = tuple(Device(uuid) for uuid in UUIDS)
    module = fake_nvml(*found)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr("fairlead.cluster.local.nvml.DRIVERS", (os.devnull,))
    return (module, *found)


class Bench:
    """A meter whose clock the test moves, over one run that has run for an hour."""

    def __init__(self, cluster: LocalCluster, spec: Training, grant: Grant) -> None:
        self.cluster = cluster
        self.now = time.time()
        run = cluster.submit(spec, environ={})
        create = (CreatePod(attempt=0, index=0, node="localhost", grant=grant),)
        began = status(Phase.RUNNING, since=self.now)
        assert cluster.apply(Plan(changes=(change(run, status=began, create=create),))) == (True,)
        self.pod: Pod = cluster.pods(run.uid)[0]
        self.now = self.pod.created_at
        self.seen(phase=PodPhase.RUNNING, started_at=self.now)
        write_json(self.directory / "started.json", {"at": self.now, "pids": {"0": os.getpid()}})
        self.uid = run.uid
        self.meter = UtilizationMeter(cluster.home, cluster.store)

    @property
    def directory(self) -> Path:
        path = self.cluster.home.pod(self.pod.workload_uid, self.pod.uid)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def run(self) -> Workload:
        return self.cluster.store.get(self.uid)

    def seen(self, **facts: Any) -> None:
        self.pod = replace(self.pod, **facts)
        self.cluster.store.observe(PodObservation(row=PodRow(pod=self.pod)), self.now)

    def measure(self, times: int = 1, every_s: float = SAMPLE_S) -> None:
        for _ in range(times):
            self.now += every_s
            runs, pods, _ = self.cluster.store.active()
            assert self.meter.is_due(self.now)
            self.meter.measure(filter(is_leaf, runs), pods, self.now)

    def values(self, name: str) -> list[float]:
        return [point.value for point in self.cluster.store.series(self.uid).get(name, ())]

    def idle_s(self) -> float:
        held = self.cluster.store.held_by(self.uid, self.now)
        return sum(each.end_ms - each.start_ms for each in held if each.use is Use.IDLE_IN_RUN) / 1000


def with_gpus(cluster: LocalCluster, spec: Training | None = None, *, milli: int = 1000) -> Bench:
    spec = spec or training("net", resources=Resources(gpu=GpuRequest(milli=2000)))
    uuids = UUIDS if milli == 1000 else UUIDS[:1]
    return Bench(cluster, spec, Grant(cpu_milli=1000, gpu_uuids=uuids, gpu_milli=milli))


def test_gpus_are_points_of_the_run_and_idle_time_on_its_bill(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    bench = with_gpus(cluster)
    devices[1].busy_percent, devices[2].busy_percent = 60, 20
    bench.measure()  # of the time before nobody knows anything
    assert bench.idle_s() == 0.0
    bench.measure(times=8)
    assert bench.values(GPU) == [0.4] * 9
    assert bench.values(GPU_MEMORY) == [2 * 2**30] * 9
    assert bench.values(POWER) == [200.0] * 9
    assert bench.values(TEMPERATURE) == [50.0] * 9
    assert len(bench.values(CPU)) == 8
    assert bench.idle_s() == pytest.approx(8 * SAMPLE_S * 0.6)
    assert bench.meter.idle_of(bench.run) is None, "fifteen minutes have not passed"
    bench.measure(times=60)
    found = bench.meter.idle_of(bench.run)
    assert found is not None
    assert (found.busy, found.has_gpus) == (0.4, True)


def test_errors_of_gpus_are_in_the_history_of_this_machine_and_those_of_programs_are_not(
    cluster: LocalCluster, devices: tuple[Any, ...]
) -> None:
    bench = with_gpus(cluster)
    _, first, second = devices
    first.uncorrected, second.uncorrected = 7, None  # of before, and of a device without ECC
    bench.measure()
    second.xids += [13, 31]
    bench.measure()
    assert cluster.store.node_histories() == {}
    first.uncorrected = 8
    bench.measure()
    assert [one.cause for one in cluster.store.node_histories()["localhost"].recent] == [FailureCause.ECC]
    second.xids.append(79)
    bench.measure(every_s=2 * SAME_S)
    history = cluster.store.node_histories()["localhost"]
    assert [(one.cause, one.team, one.share) for one in history.recent] == [
        (FailureCause.ECC, "", 1.0), (FailureCause.XID, "", 1.0),
    ]  # fmt: skip
    bench.measure(times=3)
    assert len(cluster.store.node_histories()["localhost"].recent) == 2


def test_a_pod_that_ends_keeps_its_idle_time(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    bench = with_gpus(cluster)
    bench.measure(times=5)
    idle_s = bench.idle_s()
    assert idle_s == pytest.approx(4 * SAMPLE_S)
    bench.seen(phase=PodPhase.SUCCEEDED, exits=(RankExit(rank=0, exit_code=0, at=bench.now),))
    assert bench.idle_s() == pytest.approx(idle_s)
    left = cluster.store._db.execute("SELECT count(*) FROM idle_hours").fetchone()
    assert left == (0,), "what is charged need not be kept"


def test_a_supervisor_that_comes_next_knows_what_the_last_one_measured(
    cluster: LocalCluster, devices: tuple[Any, ...]
) -> None:
    bench = with_gpus(cluster)
    bench.measure(times=62)
    assert bench.meter.idle_of(bench.run) is not None
    bench.meter = UtilizationMeter(cluster.home, cluster.store)
    bench.measure()
    assert bench.meter.idle_of(bench.run) is not None


def test_a_long_gap_is_not_idle(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    bench = with_gpus(cluster)
    bench.measure()
    bench.measure(every_s=3600.0)
    assert bench.idle_s() == pytest.approx(60.0)


def test_of_a_shared_gpu_a_run_pays_for_what_its_own_processes_do(
    cluster: LocalCluster, devices: tuple[Any, ...]
) -> None:
    spec = training("quarter", resources=Resources(gpu=GpuRequest(milli=250)))
    bench = with_gpus(cluster, spec, milli=250)
    devices[1].busy_percent, devices[1].by_process = 95, {os.getpid(): 20, 1: 75}
    devices[1].memory_used, devices[1].memory_by_process = 9 * 2**30, {os.getpid(): 3 * 2**30, 1: 5 * 2**30}
    bench.measure(times=2)
    (told,) = usages(cluster, [bench.run], sample_s=0.0).pods
    assert [(gpu.busy, gpu.memory_bytes) for gpu in told.gpus] == [(0.8, 3 * 2**30)], "and so says `top`"
    assert bench.values(GPU) == [0.8, 0.8], "a fifth of the device is four fifths of a quarter"
    assert bench.values(POWER) == [25.0, 25.0]
    assert bench.values(GPU_MEMORY) == [3 * 2**30] * 2
    devices[1].by_process = None
    bench.measure()
    assert bench.values(GPU) == [0.8, 0.8], "a device that cannot tell them apart says nothing of one"


def test_a_device_that_does_not_answer_counts_as_nothing(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    bench = with_gpus(cluster)
    for device in devices[1:]:
        device.busy_percent = device.power_mw = None
    bench.measure(times=3)
    assert bench.values(GPU) == bench.values(POWER) == []
    assert bench.idle_s() == 0.0


def test_cores_count_where_a_run_asks_for_more_than_one_a_rank(cluster: LocalCluster) -> None:
    spec = training("cores", resources=Resources(cpu_milli=2000), idle=Idle(for_s=10.0))
    bench = Bench(cluster, spec, Grant(cpu_milli=2000))
    bench.measure(times=2, every_s=1.0)
    assert len(bench.values(CPU)) == 1
    assert bench.idle_s() == pytest.approx(1.0 - bench.values(CPU)[0], abs=0.01)


def test_a_run_that_asks_for_nothing_is_not_measured(cluster: LocalCluster) -> None:
    bench = Bench(cluster, training("plain", resources=Resources(cpu_milli=1000)), Grant(cpu_milli=1000))
    bench.measure(times=3)
    assert cluster.store.series(bench.uid) == {}


def test_a_replica_may_wait_for_requests(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    spec = Replica(run="serve", resources=Resources(gpu=GpuRequest(milli=2000)), ranks_per_node=1)
    bench = with_gpus(cluster, spec)
    bench.measure(times=70)
    assert bench.values(GPU) == [0.0] * 70
    assert bench.meter.idle_of(bench.run) is None


def test_nvml_is_open_only_while_there_is_something_to_measure(cluster: LocalCluster, devices: tuple[Any, ...]) -> None:
    bench = with_gpus(cluster)
    bench.measure(times=3)
    assert devices[0].num_open == 1
    bench.seen(terminating_since=bench.now)
    bench.cluster.store.observe(
        PodObservation(row=PodRow(pod=replace(bench.pod, phase=PodPhase.SUCCEEDED, exits=()))), bench.now
    )
    bench.measure()
    assert devices[0].num_open == 0


def test_metrics_and_top_read_the_same_device(devices: tuple[Any, ...]) -> None:
    devices[1].busy_percent = 70
    gpu = Gpu(uuid="GPU-0", model="A100", memory_bytes=80 * 10**9)
    (told,) = read_gpus("localhost", (gpu,))
    assert (told.utilization, told.power_watts, told.temperature_celsius) == (0.7, 100.0, 50.0)
    reader = NvmlReader()
    read = reader.read("GPU-0")
    reader.close()
    assert (read.model, read.busy, read.memory_bytes) == ("A100-SXM4-80GB", 0.7, 2**30)
    assert devices[0].num_open == 0


@pytest.fixture
def own_home(tmp_path: Path) -> Iterator[Path]:
    """A state directory in which everything is ended that was started there."""
    yield tmp_path / "home"
    end_everything(tmp_path / "home")


@pytest.mark.slow
def test_a_real_run_that_sleeps_on_its_cores_is_suspended_with_its_reason(tmp_path: Path, own_home: Path) -> None:
    environ = {**os.environ, "FAIRLEAD_HOME": str(own_home)}

    def fairlead(*words: str) -> str:
        done = subprocess.run(
            [Path(sys.executable).with_name("fairlead"), *words],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    fairlead("prices", "set", "localhost", "10")
    spec = "name: idler\nrun: sleep 600\nresources: {cpu: 2}\nidle: {then: suspend, for: 10s}\ngrace: 1s\n"
    (tmp_path / "idle.yaml").write_text(spec)
    fairlead("run", "--detach", "idle.yaml")
    deadline, before = time.monotonic() + 90.0, ""
    while "Suspended" not in (said := fairlead("status", "idler")) and time.monotonic() < deadline:
        before = said
        time.sleep(1.0)
    assert "suspended by `idle`: the cores that it asks for were 0% busy in the last 10" in said
    assert "an hour" in said
    assert " idle-in-run" in before
    assert "`fairlead resume idler` continues it." in said
    fairlead("delete", "--yes", "idler")
