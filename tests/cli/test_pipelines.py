"""A pipeline at the command line: a run like any other, with its steps."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.waiting import until

SPEC = """
kind: Pipeline
steps:
  a: {run: 'echo "$GREETING" > $FAIRLEAD_OUTPUT_X', outputs: [x]}
  b: {needs: [a], run: cat $FAIRLEAD_INPUT_A_X}
"""


def test_a_pipeline_runs_and_its_steps_are_told(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(SPEC)
    ran = call("run", "p.yaml", "--env", "GREETING=hello", "--label", "kind=test")
    assert ran.code == 0
    assert "[b] hello" in ran.out
    assert "StepSucceeded: a: ran" in ran.err
    told = json.loads(call("status", "p", "--json").out)
    assert [(step["name"], step["phase"]) for step in told["steps"]] == [("a", "Succeeded"), ("b", "Succeeded")]
    assert told["spec"]["metadata"]["labels"] == {"kind": "test"}
    again = call("run", "p.yaml", "--env", "GREETING=bye")
    assert "StepStarted: a: variable GREETING has changed" in again.err
    assert "[b] bye" in again.out


@pytest.mark.parametrize("option", [("--set", "run=x"), ("--nodes", "2"), ("--gpu", "1")])
def test_keys_of_runs_cannot_be_set_for_a_pipeline(call: Call, desk: Path, option: tuple[str, str]) -> None:
    (desk / "p.yaml").write_text(SPEC)
    said = call("run", "p.yaml", *option)
    assert said.code == 2
    assert "p is a Pipeline, for which --env and --label can be given" in said.err


def test_plan_says_which_steps_would_run_and_why(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(SPEC)
    before = call("plan", "p.yaml", "--diff")
    assert before.code == 1
    assert "p: 1 would run, 1 would follow" in before.out
    assert not (desk / "home" / "runs").exists()
    assert call("run", "p.yaml").code == 0
    after = call("plan", "p.yaml", "--diff")
    assert (after.code, after.out) == (0, "p: 2 unchanged\n")
    (desk / "p.yaml").write_text(SPEC.replace("run: cat", "run: head"))
    marked = call("plan", "p.yaml", "--diff", "--format", "markdown")
    assert marked.code == 1
    assert "### p: 1 would run, 1 unchanged" in marked.out
    assert "| b | run | command has changed |" in marked.out
    told = json.loads(call("plan", "p.yaml", "--json").out)
    assert [(step["task"], step["foreseen"]) for step in told["steps"]] == [("a", "unchanged"), ("b", "run")]
    assert told["spec"]["kind"] == "Pipeline"


def test_plan_says_which_keys_of_a_run_differ_from_the_last_one(call: Call, desk: Path) -> None:
    (desk / "r.yaml").write_text("run: 'true'\n")
    assert "r: it has not run before" in call("plan", "r.yaml", "--diff").out
    assert call("run", "r.yaml").code == 0
    assert call("plan", "r.yaml", "--diff").code == 0
    (desk / "r.yaml").write_text("run: echo\n")
    changed = call("plan", "r.yaml", "--diff", "--format", "markdown")
    assert changed.code == 1
    assert "| run | true | echo |" in changed.out


@pytest.mark.parametrize("options", [("--format", "markdown"), ("--diff", "--json")])
def test_options_that_cannot_work_together_are_refused(call: Call, desk: Path, options: tuple[str, ...]) -> None:
    (desk / "p.yaml").write_text(SPEC)
    assert call("plan", "p.yaml", *options).code == 2


def test_an_output_is_followed_back_to_code_and_runs(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(
        "kind: Pipeline\nsteps:\n"
        "  a: {run: echo 1 > $FAIRLEAD_OUTPUT_X, outputs: [x], inputs: [raw], code: [main.py]}\n"
        "  b: {needs: [a], run: cat $FAIRLEAD_INPUT_A_X - > $FAIRLEAD_OUTPUT_Y, outputs: [y]}\n"
    )
    (desk / "raw").write_text("data")
    (desk / "main.py").write_text("code")
    assert call("run", "p.yaml").code == 0
    told = json.loads(call("lineage", "p/b.y", "--json").out)
    assert told["made_by"]["task"] == "b"
    (read,) = told["read"]
    assert (read["name"], read["made_by"]["task"], list(read["code"]), list(read["inputs"])) == (
        "a.x",
        "a",
        ["main.py"],
        ["raw"],
    )
    shown = call("lineage", told["digest"][:12]).out
    assert "a.x" in shown
    assert f"{told['digest']}\n" in shown
    assert call("lineage", "p/b.z").code == 5
    assert call("lineage", "ffffffff").code == 5
    assert call("lineage", "xyz").code == 5


SCHEDULED = 'schedule: "0 3 * * *"\n'


def test_what_is_applied_is_listed_and_removed(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(SPEC + SCHEDULED)
    assert "Applied p: it runs next at" in call("apply", "p.yaml").err
    assert "p is applied already" in call("apply", "p.yaml").err
    (told,) = json.loads(call("apply", "--list", "--json").out)
    assert (told["name"], told["data"]) == ("p", [])
    assert told["next_at"] > told["applied_at"]
    assert call("apply", "--remove", "q").code == 5
    assert call("apply", "--remove", "p").code == 0
    assert json.loads(call("apply", "--list", "--json").out) == []


def test_a_pipeline_without_a_schedule_is_submitted_when_a_step_would_run(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(SPEC)
    assert "Submitted p." in call("apply", "p.yaml").err
    assert call("attach", "p").code == 0
    assert "p: nothing would run." in call("apply", "p.yaml").err


def test_run_says_that_a_schedule_needs_apply(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(SPEC + SCHEDULED)
    assert "`fairlead apply` lets it run by itself" in call("run", "p.yaml").err


@pytest.mark.parametrize("arguments", [(), ("--list", "--remove", "p"), ("p.yaml", "--list")])
def test_apply_does_one_thing(call: Call, desk: Path, arguments: tuple[str, ...]) -> None:
    assert call("apply", *arguments).code == 2


def test_a_run_cannot_be_applied(call: Call, desk: Path) -> None:
    (desk / "r.yaml").write_text("run: 'true'\n")
    said = call("apply", "r.yaml")
    assert said.code == 6
    assert "Only a Pipeline can be applied" in said.err


RUNS = """
kind: Pipeline
steps:
  first: {run: 'echo 1 > $FAIRLEAD_OUTPUT_X', outputs: [x]}
  train:
    needs: [first]
    training:
      run: 'echo begin >> log; test -e go || sleep 600; cp $FAIRLEAD_INPUT_FIRST_X $FAIRLEAD_OUTPUT_MODEL'
      grace: 1s
    outputs: [model]
  last: {needs: [train], run: cat $FAIRLEAD_INPUT_TRAIN_MODEL}
"""


def test_stopping_and_deleting_a_pipeline_reaches_its_runs_and_resuming_goes_on_with_them(
    call: Call, desk: Path
) -> None:
    (desk / "p.yaml").write_text(RUNS)
    assert call("run", "-d", "p.yaml").code == 0
    until((desk / "log").exists, "run of its own")
    assert call("stop", "p").code == 0
    told = json.loads(call("status", "p", "--json").out)
    phases = {child["name"]: child["phase"] for child in told["children"]}
    assert phases == {"p-driver": "Stopped", "p-train": "Stopped"}
    assert {step["name"]: step["phase"] for step in told["steps"]}["train"] == "Running"
    (desk / "go").touch()
    assert call("resume", "p").code == 0
    assert call("attach", "p").code == 0
    told = json.loads(call("status", "p", "--json").out)
    assert {child["name"]: child["phase"] for child in told["children"]} == {
        "p-driver": "Succeeded", "p-train": "Succeeded",
    }  # fmt: skip
    assert (desk / "log").read_text() == "begin\nbegin\n"
    assert "[last] 1" in call("logs", "p-driver").out
    assert call("delete", "p", "--yes").code == 0
    assert json.loads(call("status", "--all", "--json").out) == []


def test_a_driver_that_was_stopped_by_itself_goes_on_with_its_pipeline_and_not_without(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(RUNS)
    assert call("run", "-d", "p.yaml").code == 0
    until((desk / "log").exists, "run of its own")
    assert call("stop", "p-driver").code == 0
    assert call("attach", "p").code == 1
    assert "`fairlead resume p` continues it." in call("status", "p").out
    told = call("resume", "p-driver")
    assert (told.code, "`fairlead resume p` continues both" in told.err) == (6, True)
    (desk / "go").touch()
    assert call("resume", "p").code == 0
    assert call("attach", "p").code == 0
    assert call("delete", "p", "--yes").code == 0
