"""Runs chosen by phase and label instead of by name, on this machine."""

import json
import sys

import pytest

from fairlead.state.snapshot import Intent, Phase
from tests.cli.conftest import Answer, Call, Past


def listed(ended: Answer) -> list[str]:
    return [run["name"] for run in json.loads(ended.out)]


@pytest.fixture
def several(past: Past) -> Past:
    """Runs of two experiments in all phases but those that would be acted on."""
    past.submit("old-a", labels={"experiment": "a"})
    past.submit("bad-a", labels={"experiment": "a", "sweep": ""}, phase=Phase.FAILED)
    past.submit("bad-b", labels={"experiment": "b"}, phase=Phase.FAILED)
    past.submit("plain", phase=Phase.STOPPED)
    past.submit("last-a", labels={"experiment": "a"}, phase=Phase.STOPPING)
    return past


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ((), ["last-a", "plain", "bad-b", "bad-a", "old-a"]),
        (("--phase", "Failed"), ["bad-b", "bad-a"]),
        (("--phase", "failed,Stopped"), ["plain", "bad-b", "bad-a"]),
        (("--phase", "Failed", "--phase", "stopping"), ["last-a", "bad-b", "bad-a"]),
        (("--label", "experiment=a"), ["last-a", "bad-a", "old-a"]),
        (("--label", "experiment"), ["last-a", "bad-b", "bad-a", "old-a"]),
        (("--label", "experiment=a", "--label", "sweep="), ["bad-a"]),
        (("--label", "experiment=a", "--phase", "Failed"), ["bad-a"]),
        (("--label", "experiment=c"), []),
        (("--limit", "2"), ["last-a", "plain"]),
        (("--limit", "1", "--phase", "Failed"), ["bad-b"]),
    ],
)
def test_a_listing_is_of_those_that_match(
    call: Call, several: Past, options: tuple[str, ...], names: list[str]
) -> None:
    assert listed(call("status", "--json", *options)) == names


def test_a_listing_that_is_cut_says_so(call: Call, past: Past) -> None:
    for number in range(17):
        past.submit(f"r{number}")
    assert "There are more" in call("status").err
    assert len(listed(call("status", "--json"))) == 15
    assert "There are more" not in call("status", "--all").err
    assert "There are more" not in call("status", "--limit", "17").err
    assert "There are more" in call("status", "--limit", "16").err


def test_a_run_says_its_labels(call: Call, several: Past) -> None:
    assert json.loads(call("status", "bad-a", "--json").out)["labels"] == {"experiment": "a", "sweep": ""}
    assert "labels       experiment=a, sweep=" in call("status", "bad-a").out
    assert "  labels" not in call("status", "plain").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("stop",), "give NAMES, or choose runs by --all, --phase or --label"),
        (("stop", "bad-a", "--all"), "not both"),
        (("delete", "bad-a", "--label", "experiment"), "not both"),
        (("stop", "--phase", "Failed"), "this command does nothing to runs that are Failed; phases: Pending, Starting"),
        (("resume", "--phase", "Succeeded"), "this command does nothing to runs that are Succeeded"),
        (("status", "--phase", "Runing"), "'Runing' is not a phase. Did you mean Running?"),
        (("status", "--phase", ""), "is not a phase"),
        (("status", "--label", "a!=b"), "is not a label name"),
        (("status", "--label", "a=b,c=d"), "is not a label value"),
        (("status", "--all", "--limit", "3"), "give one of them"),
        (("status", "bad-a", "--phase", "Failed"), "give one of them"),
        (("delete", "--all"), "Delete 5 runs: last-a, plain, bad-b, bad-a, old-a? Give --yes."),
        (("stop", "--all"), "Stop last-a? Give --yes."),
    ],
)
def test_what_cannot_work_is_refused(call: Call, several: Past, arguments: tuple[str, ...], says: str) -> None:
    ended = call(*arguments)
    assert ended.code == 2
    assert says in ended.err
    assert len(several.cluster.workloads()) == 5


def test_only_those_that_match_are_deleted(call: Call, several: Past) -> None:
    ended = call("delete", "--label", "experiment=a", "--phase", "Failed,Succeeded", "--yes", "--json")
    assert ended.code == 0
    assert "Delete 2 runs: bad-a, old-a." in ended.err
    assert [each["name"] for each in json.loads(ended.out)] == ["bad-a", "old-a"]
    assert sorted(run.spec.name for run in several.cluster.workloads() if run.intent is not Intent.DELETE) == [
        "bad-b",
        "last-a",
        "plain",
    ]


def test_a_no_changes_nothing(call: Call, several: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "n\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _prompt="": "n")
    assert call("delete", "--all").code == 130
    assert {run.intent for run in several.cluster.workloads()} == {Intent.STOP, Intent.RUN}


def test_nothing_that_matches_is_no_mistake(call: Call, several: Past) -> None:
    ended = call("stop", "--label", "experiment=none", "--json")
    assert (ended.code, json.loads(ended.out)) == (0, [])
    assert "No run with label experiment=none is there to stop." in ended.err


def test_runs_are_suspended_resumed_and_stopped_by_label(call: Call, past: Past) -> None:
    for name in ("one", "two"):
        assert call("run", "-d", "--name", name, "--label", "sweep=1", "--", "sleep", "60").code == 0
    assert call("run", "-d", "--name", "other", "--", "sleep", "60").code == 0
    past.submit("failed", labels={"sweep": "1"}, phase=Phase.FAILED)
    assert sorted(listed(call("suspend", "--label", "sweep=1", "--yes", "--json"))) == ["one", "two"]
    # Suspended ones are meant, and not the one that failed long ago.
    assert sorted(listed(call("resume", "--label", "sweep", "--yes", "--json"))) == ["one", "two"]
    assert sorted(listed(call("stop", "--all", "--yes", "--json"))) == ["one", "other", "two"]
    phases = {run.spec.name: run.status.phase for run in past.cluster.workloads()}
    assert phases == {"one": Phase.STOPPED, "two": Phase.STOPPED, "other": Phase.STOPPED, "failed": Phase.FAILED}


def test_phases_are_completed_after_a_comma(process: Call) -> None:
    words = {"COMP_WORDS": "fairlead status --phase Failed,s", "COMP_CWORD": "3", "_FAIRLEAD_COMPLETE": "bash_complete"}
    assert process(env=words).out.split() == [
        "plain,Failed,Starting", "plain,Failed,Stopping", "plain,Failed,Suspended", "plain,Failed,Succeeded",
        "plain,Failed,Stopped",
    ]  # fmt: skip


def test_labels_are_completed_from_the_runs_there_are(process: Call, several: Past) -> None:
    words = {"COMP_WORDS": "fairlead status --label e", "COMP_CWORD": "3", "_FAIRLEAD_COMPLETE": "bash_complete"}
    assert process(env=words).out.split() == ["plain,experiment=a", "plain,experiment=b"]
