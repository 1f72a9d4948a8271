"""Whether and when a failed run starts again."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.policy.kinds.failures import Blame, Failure
from fairlead.policy.kinds.retries import Again, GiveUp, retry
from fairlead.policy.kinds.training import after_failure
from fairlead.specs.training import Retry, Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Progress, Status, Workload
from tests.builders import changed

NOW = 1_000.0
QUOTED = "step b failed: p-b is Failed: rank 0 of 1 failed; `retry` allows no restart; 1 step ran, 1 failed"


def spec(**changes: Any) -> Training:
    return Training(name="train", run="x", retry=Retry(**changes))


def status(**changes: Any) -> Status:
    reason = Reason(code=Code.RANKS_STARTED, message="started")
    return changed(Status(phase=Phase.RUNNING, reason=reason, since=NOW - 5), **changes)


def failure(code: Code = Code.KILLED) -> Failure:
    blame = Blame.PROGRAM if code is Code.PROGRAM_FAILED else Blame.INFRASTRUCTURE
    return Failure(blame=blame, reason=Reason(code=code, message="it failed"))


def test_the_program_gets_no_second_chance_unless_it_was_asked_for() -> None:
    assert isinstance(retry(spec(), status(), failure(Code.PROGRAM_FAILED), None, NOW), GiveUp)


def test_the_program_is_retried_as_often_as_asked_with_a_wait_that_doubles() -> None:
    waits = []
    for failures in range(3):
        before = status(program_failures=failures)
        verdict = retry(spec(program=3, backoff_s=2), before, failure(Code.PROGRAM_FAILED), None, NOW)
        assert isinstance(verdict, Again)
        waits.append(verdict.at - NOW)
    assert waits == [2.0, 4.0, 8.0]


def test_the_first_disruption_restarts_at_once() -> None:
    assert retry(spec(), status(), failure(), None, NOW) == Again(at=NOW, program_failures=0, disruptions=1)


def test_disruptions_without_progress_wait_longer_each_time_and_end() -> None:
    before = status(disruptions=2, last_failure=failure().reason, failed_step=7)
    verdict = retry(spec(infrastructure=3, backoff_s=1), before, failure(), Progress(step=7), NOW)
    assert verdict == Again(at=NOW + 2.0, program_failures=0, disruptions=3)
    assert isinstance(retry(spec(infrastructure=2), before, failure(), Progress(step=7), NOW), GiveUp)


def test_an_exit_code_of_a_kill_that_comes_at_once_again_and_again_ends_the_run() -> None:
    coded = replace(failure(), is_exit_code=True)
    for disruptions, since, last, verdict in (
        (1, NOW - 1.0, coded, Again),
        (2, NOW - 1.0, coded, GiveUp),
        (2, NOW - 60.0, coded, Again),  # it has worked meanwhile
        (2, NOW - 1.0, failure(), Again),  # a signal that somebody sent
    ):
        before = status(disruptions=disruptions, since=since, last_failure=last.reason)
        assert isinstance(retry(spec(), before, last, None, NOW), verdict), (disruptions, since, last)


def test_a_start_that_held_its_places_in_vain_waits_longest_also_the_first_time() -> None:
    lost, slow = failure(Code.POD_LOST), status(phase=Phase.STARTING, since=NOW - 600.0)
    again = Again(at=NOW + 300.0, program_failures=0, disruptions=1)
    assert retry(spec(), slow, lost, None, NOW) == again
    for other in (replace(slow, since=NOW - 299.0), replace(slow, phase=Phase.RUNNING)):
        assert retry(spec(), other, lost, None, NOW) == replace(again, at=NOW)


def test_a_start_that_timed_out_goes_elsewhere_at_once_but_not_time_after_time() -> None:
    late = replace(failure(Code.START_TIMED_OUT), nodes=("a",))
    slow = status(phase=Phase.STARTING, since=NOW - 600.0)
    again = Again(at=NOW, program_failures=0, disruptions=1)
    assert retry(spec(), slow, late, None, NOW) == again
    assert retry(
        spec(), replace(slow, failures=replace(slow.failures, avoided_nodes=("b",))), late, None, NOW
    ) == replace(again, at=NOW + 300.0)


def test_progress_forgives_all_disruptions() -> None:
    before = status(disruptions=9, last_failure=failure().reason, failed_step=7)
    assert retry(spec(), before, failure(), Progress(step=8), NOW) == Again(at=NOW, program_failures=0, disruptions=1)


@pytest.mark.parametrize("code", [Code.KILLED, Code.OUT_OF_MEMORY, Code.STALLED])
def test_what_may_come_of_the_program_uses_up_its_retries_however_long_it_ran(code: Code) -> None:
    before = status(since=NOW - 9 * 3600.0, disruptions=2, last_failure=failure(Code.NODE_LOST).reason)
    assert isinstance(retry(spec(infrastructure=2), before, failure(code), None, NOW), GiveUp)


@pytest.mark.parametrize("code", [Code.POD_LOST, Code.NODE_LOST])
def test_a_loss_that_came_a_minute_after_the_start_is_the_first_in_its_row(code: Code) -> None:
    before = status(since=NOW - 61.0, disruptions=2, last_failure=failure(code).reason, failed_step=7)
    for progress in (None, Progress(step=3)):
        verdict = retry(spec(infrastructure=2), before, failure(code), progress, NOW)
        assert verdict == Again(at=NOW, program_failures=0, disruptions=1)
        at_once = replace(before, since=NOW - 59.0)
        assert isinstance(retry(spec(infrastructure=2), at_once, failure(code), progress, NOW), GiveUp)
        never_ran = replace(before, phase=Phase.STARTING)
        assert isinstance(retry(spec(infrastructure=2), never_ran, failure(code), progress, NOW), GiveUp)


def test_steps_that_were_not_saved_are_no_progress_for_a_run_that_saves() -> None:
    before = status(disruptions=2, last_failure=failure().reason, failed_step=150)
    unsaved, saved = Progress(step=190, checkpoint_step=100), Progress(step=190, checkpoint_step=160)
    assert isinstance(retry(spec(infrastructure=2), before, failure(), unsaved, NOW), GiveUp)
    assert retry(spec(infrastructure=2), before, failure(), saved, NOW) == Again(
        at=NOW, program_failures=0, disruptions=1
    )


def test_out_of_memory_twice_without_progress_is_final() -> None:
    oom = failure(Code.OUT_OF_MEMORY)
    before = status(disruptions=1, last_failure=oom.reason, failed_step=4)
    assert isinstance(retry(spec(), status(), oom, Progress(step=4), NOW), Again)
    assert isinstance(retry(spec(), before, oom, Progress(step=4), NOW), GiveUp)
    assert isinstance(retry(spec(), before, oom, Progress(step=9), NOW), Again)


def test_a_driver_that_quotes_the_end_of_a_steps_run_says_once_that_nothing_is_retried() -> None:
    run = Workload(uid="run", spec=spec(), intent=Intent.RUN, version=1, created_at=NOW, status=status())
    why = GiveUp(why="`retry` allows no restart", program_failures=1, disruptions=0)
    for said, message in (("it failed", "it failed; `retry` allows no restart"), (QUOTED, QUOTED)):
        failed = Failure(blame=Blame.PROGRAM, reason=Reason(code=Code.PROGRAM_FAILED, message=said))
        change = after_failure(run, (), failed, why, NOW)
        assert change.status is not None
        assert change.status.reason.message == message
