"""Counts of what the loop decided, since its process began: a few additions a pass, whether or not anybody asks."""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.state.plan import Plan
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Snapshot

DECISION_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
WAIT_BOUNDS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


@dataclass(slots=True)
class Distribution:
    """A histogram: how many values were at most each bound, in seconds, and their sum."""

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
    """Counts what the loop did.

    Attributes:
        decisions: Seconds that each decision took.
        waits: Seconds that each run waited in the queue before it was placed.
        placements: Gangs that were given nodes.
        preemptions: Runs that were told to give way.
        restarts: Starts that failed and are repeated, by the code of the reason.
        finished: Runs that came to an end, by phase and code.
        seen: What was decided on last; it stays in this process.
    """

    decisions: Distribution = field(default_factory=lambda: Distribution(DECISION_BOUNDS))
    waits: Distribution = field(default_factory=lambda: Distribution(WAIT_BOUNDS))
    placements: int = 0
    preemptions: int = 0
    restarts: Counter[str] = field(default_factory=Counter)
    finished: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: Snapshot | None = field(default=None, compare=False)

    def note(self, seen: Snapshot, plan: Plan, applied: Sequence[bool], now: float) -> None:
        """Count the changes of a plan that were carried out.

        Args:
            seen: What the plan was decided on.
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
        """All of it as JSON, a few kilobytes at most: phases and codes are closed sets."""
        plain = {
            "decisions": [self.decisions.counts, self.decisions.total],
            "waits": [self.waits.counts, self.waits.total],
            "placements": self.placements,
            "preemptions": self.preemptions,
            "restarts": dict(self.restarts),
            "finished": [[*key, count] for key, count in self.finished.items()],
        }
        return json.dumps(plain).encode()

    @classmethod
    def loads(cls, data: bytes) -> "PassCounts":
        """The counts of ``dumps``.

        Raises:
            ValueError, KeyError: They are those of another version.
        """
        plain: dict[str, Any] = json.loads(data)
        return cls(
            decisions=Distribution(DECISION_BOUNDS, *plain["decisions"]),
            waits=Distribution(WAIT_BOUNDS, *plain["waits"]),
            placements=plain["placements"],
            preemptions=plain["preemptions"],
            restarts=Counter(plain["restarts"]),
            finished=Counter({(phase, code): count for phase, code, count in plain["finished"]}),
        )
