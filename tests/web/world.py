"""A state directory whose runs were never started, and what the page shows of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.store import PodObservation
from fairlead.cluster.local.tables import PodRow
from fairlead.control.fleets.journal import ClusterNote, FleetJournal
from fairlead.control.outcomes import summary
from fairlead.control.simulation import simulate
from fairlead.control.simulation_reports import keep_report, report_of
from fairlead.specs.fleet import Fleet, Member
from fairlead.specs.sweep import Sweep
from fairlead.specs.training import Training
from fairlead.state.fleets import FleetRun
from fairlead.state.plan import Change, CreatePod, Event
from fairlead.state.reasons import Code, Reason
from fairlead.state.scheduling_policy import POLICIES
from fairlead.state.series import Point
from fairlead.state.snapshot import Grant, Intent, Phase, PodPhase, Progress, RankExit, Status, Workload
from fairlead.web.readers import Readers
from tests.builders import changed, training
from tests.simulation.worlds import pool
from tests.simulation.worlds import run as simulated_run

NOW = time.time()
NODE = "localhost"


@dataclass(kw_only=True)
class Seen:
    """A page as a reader of HTML finds it.

    Attributes:
        structure: Every element with the names of its attributes, in order.
        text: All text, and all values of attributes.
    """

    structure: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    text: str = ""
    links: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.structure.append((tag, tuple(name for name, _ in attrs)))
        self.seen.text += " ".join(f" {value}" for _, value in attrs)
        self.seen.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]

    def handle_data(self, data: str) -> None:
        self.seen.text += data


def read_html(text: str) -> Seen:
    """The page as HTML."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.seen


@dataclass(frozen=True, kw_only=True)
class World:
    """Where runs are made as they are wanted, and looked at."""

    cluster: LocalCluster
    readers: Readers

    def run(
        self,
        name: str,
        phase: Phase = Phase.PENDING,
        *,
        reason: Reason | None = None,
        spec: Training | Sweep | None = None,
        at: float | None = None,
        **status: object,
    ) -> Workload:
        """A run in a phase, with an event that says so."""
        made = spec or training(name, workdir="/", labels={})
        uid = f"{self.cluster.num_kept():011x}"
        kept = self.cluster.store.submit(uid, made, NOW - 3600 if at is None else at)
        why = reason or Reason(code=Code.REPORTED, message=f"the test made {name} {phase.value}")
        then: dict[str, object] = {"started_at": NOW - 60, **status}
        if phase.is_final:
            then["finished_at"] = NOW - 30
        change = Change(
            workload_uid=uid,
            version=kept.version,
            status=changed(Status(phase=phase, reason=why, since=NOW - 60), **then),
            intent=Intent.STOP if phase.is_final else None,
            event=Event(type=phase.value, reason=why),
        )
        assert self.cluster.store.apply(change, NOW - 30)
        found: Workload = self.cluster.get(uid)
        return found

    def pod(
        self,
        run: Workload,
        *,
        output: str = "",
        message: str | None = None,
        progress: Progress | None = None,
        points: tuple[tuple[str, Point], ...] = (),
        phase: PodPhase = PodPhase.RUNNING,
        grant: Grant | None = None,
        exits: tuple[RankExit, ...] = (),
    ) -> None:
        """Give a run a pod with output, as its shim would have written it."""
        order = CreatePod(attempt=0, index=0, node=NODE, grant=grant or Grant(cpu_milli=1000))
        change = Change(workload_uid=run.uid, version=run.version, create=(order,))
        assert self.cluster.store.apply(change, NOW - 50)
        (pod,) = self.cluster.pods(run.uid)
        seen = replace(pod, phase=phase, message=message, started_at=NOW - 50, exits=exits)
        self.cluster.store.observe(PodObservation(row=PodRow(pod=seen), progress=progress, points=points), NOW)
        directory = self.cluster.home.pod(run.uid, pod.uid)
        directory.mkdir(parents=True, exist_ok=True)
        lines = output.split("\n") if output else []
        (directory / "output.log").write_text("".join(f"{NOW - 40:.3f} 0 o {line}\n" for line in lines))

    def fleet(self, *runs: FleetRun, trouble: str | None = None) -> None:
        """Make a fleet of this machine and of a rented cluster, with runs as its controller would have left them."""
        clusters = {"home": Member(), "cloud": Member(context="gpu-cloud", gpu_price=2.5, most_gpus=64)}
        journal = FleetJournal.create(self.cluster.home, Fleet(name="research", clusters=clusters))
        changed = []
        for run in runs:
            (self.cluster.home.path / "files").mkdir(exist_ok=True)
            kept = journal.submit(run.spec, self.cluster.home.path / "files", run.submitted_at)
            changed.append(replace(run, uid=kept.uid, number=kept.number, spec=kept.spec))
        notes = {
            "home": ClusterNote(at=NOW, trouble=None, since=NOW - 60),
            "cloud": ClusterNote(at=NOW, trouble=trouble, since=NOW - 60),
        }
        journal.record(changed, notes, NOW - 30)
        journal.close()

    def simulation(
        self,
        title: str,
        *,
        policies: tuple[str, ...] = ("default",),
        settings: tuple[str, ...] = (),
        at: float = NOW,
        team: str = "vision",
    ) -> str:
        """Keep the report of a small simulation; its name."""
        pools = [pool("a100", price=12.0)]
        arrivals = [
            simulated_run("first", 0, 3600),
            simulated_run("second", 0, 7200, team=team),
            simulated_run("third", 60, 60),
        ]
        outcomes = [(each, simulate(arrivals, pools, rules=POLICIES[each])) for each in policies]
        results = [(each, outcome, summary(outcome)) for each, outcome in outcomes]
        return keep_report(self.cluster.home, report_of(title, settings, results, at))

    def look(self, address: str, status: int = 200) -> Seen:
        """The page at an address."""
        return read_html(self.html(address, status))

    def html(self, address: str, status: int = 200) -> str:
        """The same as text."""
        found, text = self.readers.threads.submit(self.readers.page, address).result(timeout=30)
        assert found == status, text
        return text


def of_fleet(name: str, **more: Any) -> FleetRun:
    """A run of a fleet, as ``World.fleet`` takes it; of this name, unless its spec is given."""
    given = {"uid": "", "number": 0, "submitted_at": NOW - 900, "reason": "home has room for it", **more}
    given.setdefault("spec", training(name, workdir=None))
    return FleetRun(**given)


@contextmanager
def world_in(home: Path) -> Iterator[World]:
    """A state directory, and what reads it."""
    cluster = LocalCluster.open(home)
    readers = Readers(lambda: LocalCluster.open(home))
    try:
        yield World(cluster=cluster, readers=readers)
    finally:
        readers.close()
        cluster.close()
