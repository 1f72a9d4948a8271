"""Runs whose environment is being made: they hold nothing, tell how far it is, and end when it cannot be made."""

from dataclasses import replace

import pytest

from fairlead.policy.decide import decide
from fairlead.policy.pass_cache import PassCache
from fairlead.specs.environment import PythonEnvironment
from fairlead.state.plan import Change
from fairlead.state.preparations import Preparation
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Intent, Phase, Snapshot, Workload
from tests.builders import node, status, training

NOW = 1_000_000_000.0
SPEC = training("net", environment=PythonEnvironment(packages=("numpy",)))


def run(preparation: Preparation | None, phase: Phase = Phase.PENDING, intent: Intent = Intent.RUN) -> Workload:
    state = status(phase)
    return Workload(
        uid="net", spec=SPEC, intent=intent, version=1, created_at=NOW, status=state, preparation=preparation
    )


def the_change(workload: Workload, cache: PassCache | None = None) -> Change | None:
    changes = decide(Snapshot(nodes=(node(),), workloads=(workload,), pods=()), NOW, cache).changes
    return changes[0] if changes else None


@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.RESTARTING])
def test_a_run_waits_for_its_environment_and_then_starts(phase: Phase) -> None:
    cache = PassCache()
    first = the_change(run(Preparation(message="Resolved 3 packages in 1s"), phase), cache)
    assert first is not None
    assert first.status is not None
    assert not first.create
    assert (first.status.phase, first.status.reason.code) == (phase, Code.PREPARING)
    assert first.status.reason.message == "its environment is being prepared: Resolved 3 packages in 1s"
    assert first.event is not None
    assert first.event.type == "Preparing"
    told = replace(run(Preparation(message="Resolved 3 packages in 1s"), phase), status=first.status)
    assert the_change(told, cache) is None
    further = the_change(replace(told, preparation=Preparation(message="Prepared 3 packages in 2s")), cache)
    assert further is not None
    assert further.status is not None
    assert further.event is None, "progress is no event of its own"
    started = the_change(replace(told, preparation=None, status=further.status), cache)
    assert started is not None
    assert len(started.create) == 1


def test_a_run_whose_environment_cannot_be_made_fails_with_package_and_remedy() -> None:
    failed = the_change(run(Preparation(message="no index has a package nump", has_failed=True, remedy="Correct it.")))
    assert failed is not None
    assert failed.status is not None
    assert failed.intent is Intent.STOP
    reason = failed.status.reason
    assert (failed.status.phase, reason.code) == (Phase.FAILED, Code.ENVIRONMENT_FAILED)
    assert (reason.message, reason.remedy) == ("no index has a package nump", "Correct it.")


def test_a_stop_does_not_wait_for_the_environment() -> None:
    stopped = the_change(run(Preparation(message="Resolved 3 packages in 1s"), intent=Intent.STOP))
    assert stopped is not None
    assert stopped.status is not None
    assert stopped.status.phase is Phase.STOPPED


def test_runs_behind_one_that_is_being_prepared_start() -> None:
    other = Workload(
        uid="other", spec=training("other"), intent=Intent.RUN, version=1, created_at=NOW + 1, status=status()
    )
    waiting = run(Preparation(message="Resolved 3 packages in 1s"))
    plan = decide(Snapshot(nodes=(node(),), workloads=(waiting, other), pods=()), NOW)
    assert [change.workload_uid for change in plan.changes if change.create] == ["other"]
