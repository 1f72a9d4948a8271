"""A simulated cluster watched by the product's own exporter: faults that happen, and the series that it then prints.

Two nodes of four GPUs at 8 dollars an hour, one run that goes on for ever. What the simulated cluster does not play
(money, temperatures, saves that fail) is put into the readings, which everything above takes from any cluster.
"""

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from fairlead.cluster.ledger_tables import CostGrouping, LedgerTables, Price, holder_of, intervals_of, month_of
from fairlead.cluster.simulated.cluster import SimulatedCluster
from fairlead.cluster.simulated.programs import OnTerm, SimulatedProgram
from fairlead.control.health import exposition as own_exposition
from fairlead.control.loop import run_pass
from fairlead.control.metrics.exposition import MOST_RUNS, exposition
from fairlead.control.metrics.readings import GpuReading, Readings, RunUsage
from fairlead.control.pass_counts import PassCounts
from fairlead.gateway.admin import gateway_exposition
from fairlead.ledger.activity import ended_ms
from fairlead.ledger.bills import cost_of, statement
from fairlead.ledger.goodput import goodput
from fairlead.ledger.usage import UsageInterval, share_of
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.serving import Serving
from fairlead.specs.training import Checkpoint, Training
from fairlead.state.snapshot import Phase, Progress, Workload
from tests.builders import node, training

STEP_S = 120.0
Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], list[float | None]]
FOREVER = SimulatedProgram(
    duration_s=math.inf, start_s=30.0, step_s=10.0, checkpoint_s=600.0, checkpoint_cost_s=2.0,
    on_term=OnTerm.CHECKPOINT, save_s=5.0,
)  # fmt: skip


def gpus(count: float, **changes: Any) -> Training:
    """A run of one pod with so many GPUs that promises checkpoints."""
    need = Resources(gpu=GpuRequest(milli=round(1000 * count)), cpu_milli=500)
    own: dict[str, Any] = {"resources": need, "checkpoint": Checkpoint(every_s=600.0), "team": "research"}
    return training(**own | changes)


@dataclass(slots=True)
class World:
    """A cluster, its loop and its exporter.

    Attributes:
        programs: By the name of the run.
        change: Puts into readings what the simulated cluster does not play.
        is_scraped: False while nobody asks for metrics.
        is_looked_after: False while no loop runs.
        busy: By run, how busy its GPUs are while it works.
        most_runs: So many have series of their own.
        gateway: What a gateway counts; None while there is none.
        own: What an operator says of itself; empty as of a supervisor.
    """

    programs: dict[str, SimulatedProgram] = field(default_factory=dict)
    change: Callable[[Readings], Readings] = lambda readings: readings
    is_scraped: bool = True
    is_looked_after: bool = True
    busy: dict[str, float] = field(default_factory=dict)
    most_runs: int = MOST_RUNS
    gateway: Any = None
    own: Mapping[str, float] = field(default_factory=dict)
    counts: PassCounts = field(default_factory=PassCounts)
    series: Series = field(default_factory=dict)
    num_samples: int = 0
    cluster: SimulatedCluster = field(init=False)
    ledger: LedgerTables = field(init=False)
    _charged: set[str] = field(default_factory=set)
    _said: dict[str, Progress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = [node(f"node-{n}", gpus=4, price_per_hour=8.0) for n in range(2)]
        self.cluster = SimulatedCluster(nodes, lambda spec, attempt: self.programs.get(spec.name, FOREVER))
        self.ledger = LedgerTables(sqlite3.connect(":memory:"))
        self.ledger.create()
        for each in nodes:
            start_ms = round(month_of(self.now)[1] * 1000)
            self.ledger.set_price(Price(node=each.name, from_ms=start_ms, rate=8_000_000, source="test"))
        self.submit(gpus(2, name="steady", labels={"model": "gpt"}))

    @property
    def now(self) -> float:
        return self.cluster.clock.now()

    def submit(self, spec: Training | Serving, program: SimulatedProgram = FOREVER) -> Workload:
        self.programs[spec.name] = program
        return self.cluster.submit(spec)  # type: ignore[arg-type] # endpoints are no less simulated than runs

    def go_on(self, minutes: float) -> None:
        """Let time pass, with a pass whenever something happens and a scrape every two minutes."""
        until = self.now + 60.0 * minutes
        while self.now < until - 1e-3:
            next_scrape = self.now + STEP_S
            while True:
                if self.is_looked_after:
                    self._settle()
                self._charge()
                if self.now >= next_scrape - 1e-3:
                    break
                self.cluster.go_on(min(next_scrape, self.now + 30.0))
            self._scrape()

    def _settle(self) -> None:
        for _ in range(100):
            if not run_pass(self.cluster, self.now, self.counts):
                return
        raise AssertionError("decisions came to no end")

    def _charge(self) -> None:
        """Put what ended into the ledger, as the store of this machine does at the end of a pod."""
        state = self.cluster._state
        self._said |= {run.uid: run.progress for run in self.cluster.snapshot().workloads if run.progress is not None}
        for uid, pods in state.pods.items():
            run = state.workloads[uid]
            for pod in pods.values():
                if pod.phase.is_final and pod.uid not in self._charged:
                    self._charged.add(pod.uid)
                    share = share_of(pod.grant, state.nodes[pod.node]) if pod.node in state.nodes else 0
                    holder = holder_of(uid, run.spec)  # type: ignore[arg-type]
                    self.ledger.add(intervals_of(pod, holder, self._said.get(uid), ended_ms(pod, self.now), share))

    def _live(self) -> list[UsageInterval]:
        seen = self.cluster.snapshot()
        nodes, runs = {each.name: each for each in seen.nodes}, {run.uid: run for run in seen.workloads}
        return [
            interval
            for pod in seen.pods
            if not pod.phase.is_final and pod.node in nodes
            for interval in intervals_of(
                pod,
                holder_of(pod.workload_uid, runs[pod.workload_uid].spec),
                runs[pod.workload_uid].progress,
                round(self.now * 1000),
                share_of(pod.grant, nodes[pod.node]),
            )
        ]

    def readings(self) -> Readings:
        """What the exporter reads."""
        seen, now, live = self.cluster.snapshot(), self.now, self._live()
        since_ms, until_ms = round(month_of(now)[1] * 1000), round(now * 1000)
        usage = {}
        for run in seen.workloads:
            held = self.ledger.of_run(run.uid)
            held += [each for each in live if each.holder is not None and each.holder.uid == run.uid]
            usage[run.uid] = RunUsage(
                goodput=goodput(held, created_at=run.created_at, until=now),
                cost_microusd=cost_of(held, self.ledger.price_changes()),
            )
        month, models = dict[tuple[str, str], int](), dict[str, int]()
        for line in statement(self.ledger.stretches(CostGrouping.TEAM, since_ms, until_ms, live)).lines:
            key = ("" if line.key is None else line.key[0], line.use.value)
            month[key] = month.get(key, 0) + line.microusd
        for line in statement(self.ledger.stretches(CostGrouping.MODEL, since_ms, until_ms, live)).lines:
            if line.key is not None:
                models[line.key[0]] = models.get(line.key[0], 0) + line.microusd
        working = {run.uid: run.spec.name for run in seen.workloads if run.status.phase is Phase.RUNNING}
        holders = {
            uuid: working[pod.workload_uid]
            for pod in seen.pods
            if pod.workload_uid in working and not pod.phase.is_final
            for uuid in pod.grant.gpu_uuids
        }
        told = tuple(
            GpuReading(
                node=each.name, uuid=gpu.uuid, temperature_celsius=60.0, memory_used_bytes=10**9, power_watts=300.0,
                utilization=self.busy.get(holders[gpu.uuid], 0.9) if gpu.uuid in holders else 0.0,
            )
            for each in seen.nodes
            for gpu in each.gpus
        )  # fmt: skip
        return self.change(
            Readings(
                now=now, seen=seen, counts=self.counts if self.is_looked_after else None, usage=usage, month=month,
                models=models, gpus=told,
            )
        )  # fmt: skip

    def _scrape(self) -> None:
        if self.is_scraped:
            told = exposition(self.readings(), most_runs=self.most_runs).decode()
            if self.gateway is not None:
                told += gateway_exposition(self.gateway)[0].decode()
            if self.own:
                told += own_exposition(self.own)
            for line in told.splitlines():
                if not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    values = self.series.setdefault(_key_of(series), [])
                    values += [None] * (self.num_samples - len(values))
                    values.append(float(value))
        self.num_samples += 1

    def rows(self) -> Iterator[tuple[str, list[float | None]]]:
        """Every series in the words of PromQL, with a sample or a gap for each scrape."""
        for (name, labels), values in sorted(self.series.items()):
            # The time that decisions take here is no part of any test.
            told = ",".join(f'{key}="{value}"' for key, value in labels)
            yield f"{name}{{{told}}}", [*values, *([None] * (self.num_samples - len(values)))]


@cache
def _key_of(series: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Name and labels of a series; the same at each scrape, and slow to parse."""
    (family,) = text_string_to_metric_families(f"{series} 0\n")
    (sample,) = family.samples
    return sample.name, tuple(sorted(sample.labels.items()))


def with_gpus(readings: Readings, **changes: float) -> Readings:
    return replace(readings, gpus=tuple(replace(each, **changes) for each in readings.gpus))  # type: ignore[arg-type]
