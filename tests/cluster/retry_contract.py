"""The part of the contract about starting again: the loop over an adapter, and what it makes of ends as they are seen.

Any time that a program ran counts as long enough here, so that only the kind of its end tells.
"""

import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from fairlead.control.loop import run_pass
from fairlead.policy.kinds import retries
from fairlead.specs.training import Retry
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Status, Workload
from tests.cluster.harness import Harness, see


class RetryContract:
    """Starting again: what uses up a run's retries on every cluster, and what does not."""

    @pytest.fixture(autouse=True)
    def any_time_is_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retries, "PRODUCTIVE_S", 0.0)

    def test_a_program_that_fails_uses_up_its_retries(self, harness: Harness) -> None:
        spec = replace(harness.program(harness.moment_s / 2, exit_code=3), retry=Retry(program=1, backoff_s=0.01))
        run = harness.cluster.submit(spec)
        ended = follow(harness, run, lambda status: status.phase.is_final)
        assert (ended.phase, ended.attempt, ended.failures.program) == (Phase.FAILED, 1, 2)
        assert ended.reason.code is Code.PROGRAM_FAILED

    def test_a_program_that_is_killed_each_time_uses_up_its_retries_however_long_it_ran(self, harness: Harness) -> None:
        spec = replace(
            harness.program(harness.moment_s / 2, signal=signal.SIGKILL), retry=Retry(infrastructure=2, backoff_s=0.01)
        )
        run = harness.cluster.submit(spec)
        ended = follow(harness, run, lambda status: status.phase.is_final)
        assert (ended.phase, ended.attempt, ended.failures.disruptions) == (Phase.FAILED, 2, 3)
        assert ended.reason.code is Code.KILLED
        assert "3 failures in a row without reported progress" in ended.reason.message

    def test_pods_that_are_lost_after_they_ran_use_up_no_retries(self, harness: Harness) -> None:
        spec = replace(harness.program(), retry=Retry(infrastructure=1, backoff_s=0.01))
        run = harness.cluster.submit(spec)
        for attempt in range(3):
            follow(harness, run, lambda status: (status.phase, status.attempt) == (Phase.RUNNING, attempt))  # noqa: B023 (called at once)
            harness.lose(f"{run.uid}-{attempt}-0")
        ended = follow(harness, run, lambda status: (status.phase, status.attempt) == (Phase.RUNNING, 3))
        assert ended.failures.disruptions == 1
        assert ended.failures.last is not None
        assert ended.failures.last.code is Code.POD_LOST


def follow(harness: Harness, run: Workload, is_so: Callable[[Status], bool]) -> Status:
    """Let the loop go over the cluster until the run is so."""

    def came() -> bool:
        run_pass(harness.cluster, harness.now())
        return is_so(see(harness, run).status)

    harness.until(came)
    return see(harness, run).status
