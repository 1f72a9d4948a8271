"""When a decision may change although nothing happens."""

import math
from dataclasses import dataclass, replace

import pytest

from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.unconfirmed_ends import TOLD_AFTER_S
from fairlead.policy.next_decision import depends_on_time, next_decision_at
from fairlead.state.snapshot import AnyWorkload, Intent, Phase, Snapshot, Workload
from tests import relay
from tests.builders import status, training
from tests.relay import Relay
from tests.relays import relays

__all__ = ["relays"]

NOW = 1_000_000_000.0


def run(phase: Phase, **changes: object) -> Workload:
    return Workload(
        uid="run", spec=training(), intent=Intent.RUN, status=status(phase, **changes), version=1, created_at=NOW
    )


def at(*workloads: Workload, parents: tuple[AnyWorkload, ...] = ()) -> float:
    return next_decision_at(Snapshot(nodes=(), workloads=workloads, pods=(), parents=parents), NOW)


def test_nothing_is_to_come_where_all_runs() -> None:
    assert at(run(Phase.RUNNING)) == math.inf


def test_the_earliest_time_to_come_counts() -> None:
    waits = run(Phase.RESTARTING, retry_at=NOW + 5.0)
    limited = run(Phase.RUNNING, started_at=NOW - 10.0)
    limited = replace(limited, spec=replace(limited.spec, max_duration_s=12.0))
    assert at(waits) == NOW + 5.0
    assert at(waits, limited) == NOW + 2.0
    # What is past counts no more; by then its pods should have ended.
    past = replace(waits, status=replace(waits.status, failures=replace(waits.status.failures, retry_at=NOW - 1.0)))
    assert at(past) == NOW + past.spec.grace_s + TOLD_AFTER_S


def test_a_stopping_run_is_among_those_that_time_may_change() -> None:
    stopping = run(Phase.STOPPING)
    assert depends_on_time(stopping)
    assert at(stopping) == NOW + stopping.spec.grace_s + TOLD_AFTER_S


def test_a_run_that_may_hang_is_looked_at_again() -> None:
    watched = run(Phase.RUNNING)
    assert at(replace(watched, spec=replace(watched.spec, stall_timeout_s=30.0))) == NOW + 30.0


@dataclass(frozen=True)
class Due:
    at: float

    def __call__(self, parent: Workload[Relay], family: Family, now: float) -> float:
        return self.at


def test_a_parent_is_looked_at_when_its_kind_says(monkeypatch: pytest.MonkeyPatch) -> None:
    parent: Workload[Relay] = Workload(
        uid="parent",
        spec=Relay(name="relay", leg=training("leg")),
        intent=Intent.RUN,
        status=status(Phase.RUNNING),
        version=1,
        created_at=NOW,
    )
    assert at(parents=(parent,)) == math.inf
    monkeypatch.setattr("fairlead.policy.kinds.table._RECORDS", {Relay: replace(relay.KIND, next_at=Due(NOW + 7.0))})
    assert at(parents=(parent,)) == NOW + 7.0
