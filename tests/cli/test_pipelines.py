"""A pipeline at the command line: a run like any other, with its steps."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Past
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
    assert "Only Pipelines and Datasets can be applied" in said.err


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
    assert {step["name"]: step["phase"] for step in told["steps"]}["train"] == "Interrupted"
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


def test_a_pipeline_that_failed_at_a_gate_names_the_command_that_uses_the_fix(call: Call, desk: Path) -> None:
    text = "kind: Pipeline\nsteps:\n  a: {run: 'echo 0.91 > $FAIRLEAD_OUTPUT_X', outputs: [x], gate: x > 0.95}\n"
    (desk / "g.yaml").write_text(text)
    failed = call("run", "g.yaml")
    assert failed.code == 1
    assert "`fairlead resume g`. That keeps all succeeded steps; `fairlead run FILE` also runs" in failed.err
    (desk / "g.yaml").write_text(text.replace("0.91", "0.97"))
    refused = call("resume", "g", "g.yaml")
    assert refused.code == 6
    assert "g is a Pipeline, which is resumed without changes" in refused.err
    assert call("run", "g.yaml").code == 0


def test_a_file_of_a_pipeline_with_runs_does_not_change_it_when_it_is_resumed(call: Call, desk: Path) -> None:
    (desk / "t.yaml").write_text("kind: Pipeline\nsteps:\n  a: {training: {run: 'true'}}\n")
    refused = call("resume", "t", "t.yaml")
    assert refused.code == 6
    assert "t is a Pipeline, which is resumed without changes" in refused.err


def test_a_pipeline_is_shown_as_it_was_written_and_interrupted_steps_as_such(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(
        "kind: Pipeline\nenv: {DB_PASSWORD: abc}\nsteps:\n  a: {run: 'true'}\n  b: {needs: [a], run: 'sleep 60'}\n"
    )
    assert call("run", "-d", "p.yaml").code == 0

    def phases() -> dict[str, str]:
        return {step["name"]: step["phase"] for step in json.loads(call("status", "p", "--json").out)["steps"]}

    until(lambda: phases().get("b") == "Running")
    assert call("stop", "p").code == 0
    assert phases() == {"a": "Succeeded", "b": "Interrupted"}
    shown = call("show", "p").out
    assert "kind: Pipeline\nname: p\nsteps:\n  a:\n" in shown
    assert "\nenv:\n  DB_PASSWORD: (hidden)\n" in shown
    assert "pipelines.driver" not in shown
    for command in (("show", "p", "--json"), ("status", "p", "--json")):
        assert json.loads(call(*command).out)["spec"]["kind"] == "Pipeline"


def test_time_up_to_the_last_succeeded_step_of_a_failed_pipeline_is_not_lost(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text("kind: Pipeline\nsteps:\n  a: {run: 'sleep 1.5'}\n  b: {needs: [a], run: 'exit 1'}\n")
    assert call("run", "p.yaml").code == 1
    assert json.loads(call("status", "p", "--json").out)["goodput"]["seconds"]["productive"] > 1


PARTS = """
kind: Pipeline
name: p
steps:
  prepare: {run: "echo loss=1; echo '[train] is no step of mine'; echo x > $FAIRLEAD_OUTPUT_D", outputs: [d]}
  train: {needs: [prepare], each: [a, b], run: 'echo "item $FAIRLEAD_ITEM"'}
  fit: {needs: [prepare], training: {run: echo fitting, resources: {cpu: 0.1}}}
  gate: {needs: [fit], run: 'false'}
  never: {needs: [gate], training: {run: echo never}}
"""


def test_logs_of_a_step_are_those_of_its_command_or_run_and_no_others(call: Call, desk: Path) -> None:
    (desk / "p.yaml").write_text(PARTS)
    call("run", "p.yaml")
    shown = {
        ("prepare",): "loss=1\n[train] is no step of mine\n",
        ("train[1]",): "item b\n",
        ("fit",): "fitting\n",
        ("gate",): "",
    }
    for steps, output in shown.items():
        options = [word for step in steps for word in ("--step", step)]
        assert call("logs", "p", *options).out == output
    assert sorted(call("logs", "p", "--step", "train").out.splitlines()) == ["[train[0]] item a", "[train[1]] item b"]
    assert call("logs", "p", "--step", "prepare", "--grep", "^loss").out == "loss=1\n"
    assert call("logs", "p", "--step", "train", "--grep", "^.train.0").out == "[train[0]] item a\n"
    both = [
        json.loads(line) for line in call("logs", "p", "--step", "train[0]", "--step", "fit", "--json").out.splitlines()
    ]
    assert sorted((line["run"], line["text"]) for line in both) == [
        ("p-driver", "[train[0]] item a"),
        ("p-fit", "fitting"),
    ]
    assert "None of these steps has begun; `fairlead status p` shows all." in call("logs", "p", "--step", "never").err
    followed = call("logs", "p", "--step", "train[1]", "--follow", "--tail", "1")
    assert followed.out == "item b\n"


@pytest.mark.parametrize(
    ("name", "step", "problem"),
    [
        ("p", "trian", "step 'trian': p has no such step; steps: prepare, train, fit, gate, never."),
        ("p", "train[x]", "step 'train[x]': p has no such step"),
        ("p", "fit[0]", "step 'fit[0]': fit runs once; give `fit`."),
        ("fox", "train", "step: fox has no steps: it is a Training."),
    ],
)
def test_a_step_that_is_not_there_is_refused_by_logs(
    call: Call, past: Past, desk: Path, name: str, step: str, problem: str
) -> None:
    (desk / "p.yaml").write_text(PARTS)
    call("run", "-d", "p.yaml")
    past.submit("fox")
    said = call("logs", name, "--step", step)
    assert (said.code, said.out) == (2, "")
    assert problem in said.err


def test_a_handle_in_another_thread_says_what_is_wrong(call: Call, desk: Path) -> None:
    import threading

    import fairlead
    from fairlead.errors import ClusterError

    assert call("run", "--name", "r", "--", "true").code == 0
    handle, problems = fairlead.find("r"), []

    def look() -> None:
        try:
            handle.status  # noqa: B018 (the property reads the database)
        except ClusterError as error:
            problems.append(str(error))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert problems == [
        "This handle belongs to the thread that made it. Make one in each, as with `fairlead.find(NAME)`."
    ]
