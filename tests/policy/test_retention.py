"""Which runs that are over need not be kept, with times as plain numbers."""

from dataclasses import replace

import pytest

from fairlead.policy.kinds.retention import MOST_AT_ONCE, Retention, expired, forgetting
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.training import Checkpoint
from fairlead.state.plan import Change
from fairlead.state.snapshot import Intent, Phase, Workload
from tests.builders import status, training

NOW = 1_000_000.0


def a_run(
    name: str, ended_ago: float, *, team: str = "a", phase: Phase = Phase.SUCCEEDED, intent: Intent = Intent.STOP
) -> Workload:
    state = status(phase, finished_at=NOW - ended_ago if phase.is_final else None)
    spec = training(name, team=team)
    return Workload(uid=name, spec=spec, intent=intent, status=state, version=7, created_at=0.0)


RUNS = (
    a_run("train", 86_400.0),
    a_run("train-3", 60.0, phase=Phase.FAILED),
    a_run("train-2", 3600.0, phase=Phase.STOPPED),
    a_run("rare", 80_000.0),
    a_run("other", 90_000.0, team="b"),
    a_run("going", 1e6, phase=Phase.RUNNING, intent=Intent.RUN),
    a_run("resumed", 1e6, phase=Phase.FAILED, intent=Intent.RUN, team="c"),
    a_run("leaving", 1e6, intent=Intent.DELETE, team="d"),
)


@pytest.mark.parametrize(
    ("keep", "gone"),
    [
        (Retention(), []),
        (Retention(for_s=3600.0), ["other", "train", "rare", "train-2"]),
        (Retention(for_s=0.0), ["other", "train", "rare", "train-2", "train-3"]),
        (Retention(last=0), ["other", "train", "rare", "train-2", "train-3"]),
        (Retention(last=1), ["train", "train-2"]),
        (Retention(last=2, for_s=0.0), ["train"]),
        (Retention(last=1, for_s=7200.0), ["train"]),
        (Retention(last=9), []),
    ],
)
def test_what_neither_age_nor_number_keeps_is_forgotten(keep: Retention, gone: list[str]) -> None:
    assert [run.spec.name for run in expired(RUNS, keep, NOW)] == gone


def test_a_run_that_karmada_would_create_again_is_kept() -> None:
    run = a_run("train", 86_400.0)
    copy = replace(run, spec=replace(run.spec, labels={"karmada.io/managed": "true"}))
    assert expired([run], Retention(last=0), NOW) == [run]
    assert expired([copy], Retention(last=0), NOW) == []


def test_a_plan_forgets_what_was_seen_and_a_few_at_once() -> None:
    many = [a_run(f"r-{number:03}", 1000.0 - number) for number in range(MOST_AT_ONCE + 9)]
    changes = forgetting(many, Retention(last=2), NOW).changes
    assert changes[0] == Change(workload_uid="r-000", version=7, forget=True)
    assert len(changes) == MOST_AT_ONCE


def test_what_makes_no_sense_is_refused() -> None:
    for wrong in ({"for_s": -1.0}, {"for_s": 1e12}, {"last": -1}, {"last": 1.5}):
        with pytest.raises(BrokenRules):
            Retention(**wrong)


def test_a_run_stays_while_another_that_is_not_over_begins_from_its_checkpoints() -> None:
    going = a_run("fine-tune", 0.0, phase=Phase.PENDING, intent=Intent.RUN)
    spec = replace(going.spec, checkpoint=Checkpoint(origin="/state/runs/train-2/checkpoints"))
    gone = expired((*RUNS, replace(going, spec=spec)), Retention(last=1), NOW)
    assert [run.spec.name for run in gone] == ["train"]
