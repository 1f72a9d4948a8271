"""The supervisor's wait between two passes where nothing runs."""

import pytest

from fairlead.control import supervisor
from fairlead.control.supervisor import LONGEST_QUIET_WAIT_S, QUIET_WAIT_S, quiet_wait_s
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import status, training

NOW = 1_000_000_000.0
NOTHING = Snapshot(nodes=(), workloads=(), pods=())


def test_the_wait_grows_with_the_processor_time_of_a_pass_up_to_a_limit() -> None:
    waits = [quiet_wait_s(spent_s, NOTHING, NOW) for spent_s in (0.0, 0.002, 0.03, 5.0)]
    assert waits == [QUIET_WAIT_S, QUIET_WAIT_S, pytest.approx(10.0), LONGEST_QUIET_WAIT_S]


def test_the_wait_ends_when_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "next_decision_at", lambda _seen, now: now + 6.0)
    assert quiet_wait_s(0.03, NOTHING, NOW) == pytest.approx(6.0)
    assert quiet_wait_s(0.001, NOTHING, NOW) == QUIET_WAIT_S
    monkeypatch.setattr(supervisor, "next_decision_at", lambda _seen, now: now + 0.1)
    assert quiet_wait_s(0.03, NOTHING, NOW) == QUIET_WAIT_S


def test_the_wait_stays_short_while_a_run_waits() -> None:
    def run(phase: Phase) -> Snapshot:
        made = Workload(uid="run", spec=training(), intent=Intent.RUN, status=status(phase), version=1, created_at=NOW)
        return Snapshot(nodes=(), workloads=(made,), pods=())

    assert quiet_wait_s(0.03, run(Phase.PENDING), NOW) == QUIET_WAIT_S
    assert quiet_wait_s(0.03, run(Phase.SUCCEEDED), NOW) == pytest.approx(10.0)
