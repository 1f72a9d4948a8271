"""`fairlead resume` with another spec: what changes is shown, what cannot is refused, and nothing else is touched."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fairlead
from fairlead.control.admission import admit
from fairlead.errors import CannotFit, Conflict, InvalidSpec
from fairlead.policy.kinds.sweep import SweepDetail
from fairlead.specs.formats.reading import parse
from fairlead.specs.resources import Resources
from fairlead.specs.sweep import Sweep
from fairlead.state.plan import Change
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Status, Workload
from tests.cli.conftest import Call, Past

GIB = 2**30


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No supervisor is started, so that what a command wrote stays as it is."""
    monkeypatch.setattr("fairlead.cluster.local.cluster.LocalCluster.nudge", lambda self: None)


@pytest.fixture
def failed(past: Past, idle: None) -> Workload:
    """A run that was admitted with 1 GiB and failed."""
    run = past.submit("fox", phase=Phase.FAILED)
    past.cluster.home.run(run.uid).mkdir(parents=True)
    spec = replace(run.spec, ranks_per_node=1, resources=Resources(cpu_milli=1000, memory_bytes=GIB))
    return past.cluster.update(run.uid, spec, version=run.version)


def seen(past: Past, run: Workload) -> Workload:
    return past.cluster.get(run.uid)


def test_a_key_given_anew_is_shown_kept_and_wanted(call: Call, past: Past, failed: Workload) -> None:
    answer = call("resume", "fox", "--set", "resources.memory=2Gi")
    assert answer.code == 0, answer.err
    assert "fox changes:\n  resources.memory: 1Gi -> 2Gi\nfox continues." in answer.err
    after = seen(past, failed)
    assert (after.intent, after.spec.resources.memory_bytes) == (Intent.RUN, 2 * GIB)
    (_, _, told) = past.cluster.events(failed.uid)[-3:]
    assert (told.type, told.reason.message) == ("Changed", "resources.memory: 1Gi -> 2Gi")


def test_what_was_chosen_for_the_spec_before_is_chosen_anew(call: Call, past: Past, failed: Workload) -> None:
    call("resume", "fox", "--set", "ranks_per_node=2")
    assert seen(past, failed).spec.resources.cpu_milli == 2000


def test_a_file_gives_the_spec_of_that_name(call: Call, past: Past, failed: Workload, desk: Path) -> None:
    (desk / "two.yaml").write_text("name: owl\nrun: echo\n---\nname: fox\nrun: echo anew\n")
    answer = call("resume", "fox", "two.yaml", "--set", "priority=3")
    assert answer.code == 0, answer.err
    after = seen(past, failed).spec
    assert (after.run, after.priority, after.resources.memory_bytes) == ("echo anew", 3, None)
    assert "  run: sleep 60 -> echo anew\n" in answer.err
    assert "  resources.memory: 1Gi -> none\n  priority: 0 -> 3\n" in answer.err


def test_a_failed_run_that_is_resumed_alone_says_that_it_keeps_its_spec(call: Call, failed: Workload) -> None:
    assert "fox continues with the spec that it had (give its FILE to change it)." in call("resume", "fox").err


def test_a_file_without_that_name_is_refused(call: Call, past: Past, failed: Workload, desk: Path) -> None:
    (desk / "two.yaml").write_text("name: owl\nrun: echo\n---\nname: elk\nrun: echo\n")
    answer = call("resume", "fox", "two.yaml")
    assert answer.code == 6
    assert "two.yaml has no run named 'fox'; it has elk, owl." in answer.err
    assert seen(past, failed) == failed


def test_a_dry_run_shows_all_and_does_nothing(call: Call, past: Past, failed: Workload) -> None:
    answer = call("resume", "fox", "--set", "resources.memory=2Gi", "--dry-run")
    assert answer.out.startswith("fox: resources.memory: 1Gi -> 2Gi\n")
    assert "fox: it would start at once: 1 pod with 1 rank placed on" in answer.out
    told = json.loads(call("resume", "fox", "--set", "resources.memory=2Gi", "--dry-run", "--json").out)
    assert told[0]["changes"] == [{"key": "resources.memory", "old": "1Gi", "new": "2Gi"}]
    assert told[0]["phase"] == "Starting"
    assert seen(past, failed) == failed


@pytest.mark.parametrize(
    ("setting", "code", "says"),
    [
        ("resources.memory=1Ti", 4, "1 TiB of memory, which can never fit here"),
        ("resources.memori=1Gi", 2, "resources.memori: unknown key; did you mean `memory`?"),
        ("name=owl", 6, "fox: name cannot change (fox -> owl): its logs, checkpoints and history are stored under it"),
        ("team=red", 6, "fox: team cannot change (default -> red)"),
        ("image=python:3.12", 6, "the local cluster runs programs without containers"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(
    call: Call, past: Past, failed: Workload, setting: str, code: int, says: str
) -> None:
    answer = call("resume", "fox", "--set", setting)
    assert answer.code == code
    assert says in answer.err
    assert seen(past, failed) == failed


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RUNNING, Phase.RESTARTING, Phase.SUCCEEDED])
def test_a_run_with_pods_or_none_to_come_does_not_change(call: Call, past: Past, idle: None, phase: Phase) -> None:
    run = past.submit("fox", phase=phase)
    answer = call("resume", "fox", "--set", "resources.memory=2Gi")
    assert answer.code == 6
    if phase is Phase.SUCCEEDED:
        assert "fox has succeeded" in answer.err
    else:
        assert f"fox is {phase.value} with the spec that it was started with. Suspend it first" in answer.err
    assert seen(past, run) == run


def test_of_several_none_changes_when_one_cannot(call: Call, past: Past, failed: Workload) -> None:
    past.submit("owl", phase=Phase.RUNNING)
    assert call("resume", "fox", "owl", "--set", "priority=3").code == 6
    assert seen(past, failed) == failed


def test_the_place_of_checkpoints_stays_once_there_are_some(call: Call, past: Past, failed: Workload) -> None:
    database = past.cluster.store._db
    database.execute("UPDATE workloads SET progress = ? WHERE uid = ?", ('{"checkpoint_step": 7}', failed.uid))
    answer = call("resume", "fox", "--set", "checkpoint.to=/elsewhere")
    assert answer.code == 6
    assert "checkpoint.to cannot change (none -> /elsewhere): its checkpoints are there" in answer.err


def test_a_run_changed_in_python_keeps_what_is_not_named(past: Past, failed: Workload) -> None:
    handle = fairlead.find("fox")
    for wrong, error in (({"resources": {"memory": "1Ti"}}, CannotFit), ({"resurces": 1}, InvalidSpec)):
        with pytest.raises(error):
            handle.resume(**wrong)
    assert seen(past, failed) == failed
    handle.resume(resources={"memory": "2Gi"}, max_duration="2h")
    after = seen(past, failed)
    assert after.spec.resources == Resources(cpu_milli=1000, memory_bytes=2 * GIB)
    assert (after.spec.max_duration_s, after.intent) == (7200.0, Intent.RUN)
    running = past.submit("elk", phase=Phase.RUNNING)
    with pytest.raises(Conflict, match="Suspend it first"):
        fairlead.find(running.spec.name).resume(priority=3)


@pytest.fixture
def searched(past: Past, idle: None) -> Workload[Sweep]:
    """A sweep that succeeded with its four trials."""
    parsed = parse(
        "kind: Sweep\nname: rates\nparameters: {x: 0.0..1.0}\nobjective: loss\ntrials: 4\ntrial: {run: 'true'}"
    )
    (spec,) = (spec for spec in parsed if isinstance(spec, Sweep))
    spec = admit(past.cluster, spec, Path("/")).spec
    run = past.cluster.store.submit("5eed", spec, 1_700_000_000.0)
    past.cluster.home.run(run.uid).mkdir(parents=True)
    reason = Reason(code=Code.COMPLETED, message="4 of 4 trials are over")
    detail = SweepDetail(submitted=4, over=4)
    status = Status(phase=Phase.SUCCEEDED, reason=reason, since=1_700_000_100.0, detail=detail)
    change = Change(workload_uid=run.uid, version=run.version, status=status, intent=Intent.STOP)
    assert past.cluster.store.apply(change, 1_700_000_100.0)
    return past.cluster.get(run.uid)


def test_a_sweep_that_succeeded_continues_with_more_trials_given_as_an_option_or_in_a_file(
    call: Call, past: Past, searched: Workload[Sweep], desk: Path
) -> None:
    refused = call("resume", "rates")
    assert refused.code == 6
    assert "`fairlead resume rates --set trials=8` tries more of the same search." in refused.err
    dry = call("resume", "rates", "--set", "trials=8", "--dry-run")
    assert dry.out == "rates: trials: 4 -> 8\nrates: it would start at once: 4 of 8 trials are over\n"
    assert past.cluster.get(searched.uid) == searched
    answer = call("resume", "rates", "--set", "trials=8")
    assert answer.code == 0, answer.err
    assert "rates changes:\n  trials: 4 -> 8\nrates continues." in answer.err
    after = past.cluster.get(searched.uid)
    assert (after.spec.trials, after.intent) == (8, Intent.RUN)
    assert past.cluster.events(searched.uid)[-1].reason.message == "trials: 4 -> 8"
    (desk / "rates.yaml").write_text(
        "kind: Sweep\nname: rates\nparameters: {x: 0.0..1.0}\nobjective: loss\ntrials: 9\nparallel: 3\n"
        "trial: {run: 'true', workdir: /}\n"
    )
    answer = call("resume", "rates", "rates.yaml")
    assert answer.code == 0, answer.err
    assert "  trials: 8 -> 9\n  parallel: none -> 3\n" in answer.err


@pytest.mark.parametrize(
    ("setting", "code", "says"),
    [
        ("trials=3", 6, "rates: trials: 3 is fewer than it has had, 4 trials."),
        ("max_failed=20", 6, "rates has succeeded: it has had 4 trials; give more `trials`, such as 8."),
        ("seed=1", 6, "rates: seed cannot change (0 -> 1)"),
        ("trial.run=train", 6, "rates: trial.run cannot change (true -> train)"),
        ("trails=9", 2, "trails: unknown key; did you mean `trials`?"),
        ("trials=many", 2, "trials"),
    ],
)
def test_a_sweep_changes_in_nothing_by_which_its_trials_are_compared(
    call: Call, past: Past, searched: Workload[Sweep], setting: str, code: int, says: str
) -> None:
    answer = call("resume", "rates", "--set", setting)
    assert (answer.code, says in answer.err) == (code, True), answer.err
    assert past.cluster.get(searched.uid) == searched


def test_a_run_and_a_sweep_of_one_name_are_not_taken_for_each_other(
    call: Call, past: Past, failed: Workload, searched: Workload[Sweep], desk: Path
) -> None:
    (desk / "other.yaml").write_text("name: rates\nrun: echo\n")
    assert "rates is a Sweep" in call("resume", "rates", "other.yaml").err
    (desk / "fox.yaml").write_text("kind: Sweep\nname: fox\nparameters: {x: 1 | 2}\ntrial: {run: echo}\n")
    assert "fox is a Training, and fox.yaml has a Sweep of that name." in call("resume", "fox", "fox.yaml").err
    assert (seen(past, failed), past.cluster.get(searched.uid)) == (failed, searched)
