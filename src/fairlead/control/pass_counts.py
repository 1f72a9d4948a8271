"""Counts the decisions of the loop since its process started, at the cost of a few additions per pass."""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.cluster.isolation import Isolation
from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Snapshot

DECISION_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
WAIT_BOUNDS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


@dataclass(slots=True)
class Histogram:
    """A histogram: the number of values up to each bound, in seconds, and the sum of all values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class PassCounts:
    """Counters of the loop.

    Attributes:
        decisions: Duration of each decision in seconds.
        waits: Seconds that each run waited in the queue before it was placed.
        placements: Gangs that were placed.
        preemptions: Runs that were preempted.
        restarts: Failed attempts that are retried, by code of the reason.
        finished: Runs that ended, by phase and code.
        held: Thousandths of GPUs held free for pending runs by the last decision, by team and name.
        debts: Seconds of the cluster that teams have had beyond their shares.
        seen: Snapshot of the last decision; not serialized.
        isolation: The failures of Fairlead itself in passes; not serialized.
    """

    decisions: Histogram = field(default_factory=lambda: Histogram(DECISION_BOUNDS))
    waits: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS))
    placements: int = 0
    preemptions: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    finished: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: dict[tuple[str, str], int] = field(default_factory=dict)
    debts: dict[str, float] = field(default_factory=dict)
    seen: Snapshot | None = field(default=None, compare=False)
    isolation: Isolation = field(default_factory=Isolation, compare=False)

    def note(self, seen: Snapshot, plan: Plan, applied: Sequence[bool], now: float) -> None:
        """Count the changes of a plan that were applied.

        Args:
            seen: Snapshot from which the plan was decided.
        """
        runs = {run.uid: run for run in seen.workloads}
        for change, done in zip(plan.changes, applied, strict=True):
            run, event = runs.get(change.workload_uid), change.event
            if not done or event is None:
                continue
            code = event.reason.code.value
            if event.type == Phase.STARTING:
                self.placements += 1
                if run is not None:
                    self.waits.add(max(0.0, now - run.status.since))
            elif event.type == Phase.STOPPING and event.reason.code is Code.PREEMPTED:
                self.preemptions += 1
            elif event.type == Phase.RESTARTING:
                self.restarts[code] += 1
            elif event.type in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED):
                self.finished[event.type, code] += 1

    def dumps(self) -> bytes:
        """Serialize the counters as JSON, a few kilobytes, since phases and codes are closed sets."""
        plain = {
            "decisions": [self.decisions.counts, self.decisions.total],
            "waits": [self.waits.counts, self.waits.total],
            "placements": self.placements,
            "preemptions": self.preemptions,
            "restarts": dict(self.restarts),
            "finished": [[*key, count] for key, count in self.finished.items()],
            "held": [[*key, milli] for key, milli in self.held.items()],
            "debts": {team: round(debt_s) for team, debt_s in self.debts.items()},
        }
        return json.dumps(plain).encode()

    @classmethod
    def loads(cls, data: bytes) -> "PassCounts":
        """Deserialize the counters from ``dumps``.

        Raises:
            ValueError, KeyError: The data is from another version.
        """
        plain: dict[str, Any] = json.loads(data)
        return cls(
            decisions=Histogram(DECISION_BOUNDS, *plain["decisions"]),
            waits=Histogram(WAIT_BOUNDS, *plain["waits"]),
            placements=plain["placements"],
            preemptions=plain["preemptions"],
            restarts=Counter(plain["restarts"]),
            finished=Counter({(phase, code): count for phase, code, count in plain["finished"]}),
            held={(team, name): milli for team, name, milli in plain["held"]},
            debts=plain["debts"],
        )
