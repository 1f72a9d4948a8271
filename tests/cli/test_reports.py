"""plan, status, validate and the others: the same facts for people and for programs."""

import json
import os
import re
import time
from pathlib import Path

from fairlead.specs.formats.reading import parse
from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call, Past
from tests.waiting import until


def test_plan_shows_what_is_inferred_and_exits_with_0_as_run_would_take_it(call: Call) -> None:
    Path("t.yaml").write_text("run: echo hi\n")
    ended = call("plan", "t.yaml")
    assert ended.code == 0
    for note in ("ranks_per_node: 1 (no GPU asked for)", "resources.cpu: 1 CPU", "checkpoint.to: the run's own"):
        assert f"chosen: {note}" in ended.out
    assert "t: it would start at once" in ended.out
    shown = ended.out.partition("chosen:")[0]
    assert parse(shown)[0].name == "t"


def test_plan_of_what_is_under_way_says_so_and_under_which_name_run_would_submit_it(call: Call) -> None:
    Path("t.yaml").write_text("run: sleep 60\n")
    assert call("run", "-d", "t.yaml").code == 0
    ended = call("plan", "t.yaml")
    assert ended.code == 0
    assert re.search(r"chosen: name: t-2 \(t is \w+ with the same spec\)", ended.out)
    told = json.loads(call("plan", "--json", "t.yaml").out)
    assert (told["name"], told["change"]) == ("t-2", "submit")
    assert "Submitted t-2 (another run is named t)." in call("run", "-d", "t.yaml").err


def test_plan_of_another_spec_under_a_name_that_is_under_way_says_what_differs(call: Call) -> None:
    Path("t.yaml").write_text("run: sleep 60\n")
    call("run", "-d", "t.yaml")
    Path("t.yaml").write_text("run: sleep 60\npriority: 7\n")
    ended = call("plan", "t.yaml")
    assert ended.code == 0
    assert "with another spec: priority: 0 -> 7)" in ended.out


def test_plan_takes_the_documents_of_a_file_one_after_the_other(call: Call) -> None:
    whole = json.loads(call("doctor", "--json").out)
    cpus = next(each["says"] for each in whole if each["what"] == "machine").split(" CPU")[0]
    one = f"run: echo\nresources: {{cpu: {cpus}}}\n"
    Path("t.yaml").write_text(f"name: first\n{one}---\nname: second\n{one}")
    told = [json.loads(line) for line in call("plan", "--json", "t.yaml").out.splitlines()]
    assert [(each["name"], each["phase"]) for each in told] == [("first", "Starting"), ("second", "Pending")]
    assert "held by first" in told[1]["reason"]["message"]
    assert call("status").out.startswith("No runs yet")


def test_plan_knows_the_quota_of_a_team_of_which_nobody_waits(call: Call) -> None:
    home = Path(os.environ["FAIRLEAD_HOME"])
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "teams.yaml").write_text("kind: Team\nname: default\nquota: {cpu: 500m}\n")
    Path("t.yaml").write_text("run: echo hi\nresources: {cpu: 1}\n")
    told = json.loads(call("plan", "--json", "t.yaml").out)
    assert told["reason"]["message"].startswith("needs 1 CPU; team default holds 0 CPU and may hold 0.5 CPU")
    assert (told["phase"], told["starts_at"]) == ("Pending", None)


def test_plan_goes_by_the_policy_of_the_machine_and_tells_when_those_have_left_that_give_way(call: Call) -> None:
    home = Path(os.environ["FAIRLEAD_HOME"])
    whole = json.loads(call("doctor", "--json").out)
    cpus = next(each["says"] for each in whole if each["what"] == "machine").split(" CPU")[0]
    long = f"run: sleep 60\nresources: {{cpu: {cpus}}}\nexpected_duration: 10h\ngrace: 20s\n"
    Path("long.yaml").write_text(long)
    Path("short.yaml").write_text(long.replace("10h", "10s"))
    call("run", "-d", "long.yaml")
    until(lambda: "Running" in call("status").out)
    by_default = json.loads(call("plan", "--json", "short.yaml").out)
    assert by_default["starts_at"] - time.time() > 3600.0
    (home / "policy").write_text("preempting\n")
    told = json.loads(call("plan", "--json", "short.yaml").out)
    assert told["reason"]["message"].endswith("starts when long has saved its work and left")
    assert 15.0 < told["starts_at"] - time.time() < 25.0


def test_plan_names_a_run_as_run_would(call: Call, past: Past) -> None:
    past.submit("t")
    Path("t.yaml").write_text("run: 'true'\n")
    assert json.loads(call("plan", "--json", "t.yaml").out)["name"] == "t-2"
    assert json.loads(call("run", "-d", "--json", "t.yaml").out)[0]["name"] == "t-2"


def test_status_tells_one_run_in_full(call: Call) -> None:
    Path("t.yaml").write_text(
        "name: t\nrun: python -c 'raise SystemExit(4)'\nranks_per_node: 2\ncheckpoint: {every: 10m}\n"
    )
    assert call("run", "t.yaml").code == 1
    ended = call("status", "t")
    assert ended.code == 0
    for words in (
        "t is Failed: rank ",
        "with exit code 4",
        "python -c 'raise SystemExit(4)'",
        "2 on 1 node with ",
        "every 10m, 3 kept",
        "pod 0        Failed on localhost, ranks 0 to 1",
        "  Submitted\n",
        "`fairlead resume t`",
    ):
        assert words in ended.out, ended.out
    told = json.loads(call("status", "t", "--json").out)
    assert told["phase"] == "Failed"
    assert told["spec"]["spec"]["ranks_per_node"] == 2
    assert next(exit_["exit_code"] for exit_ in told["pods"][0]["exits"] if exit_["signal"] is None) == 4
    assert Path(told["directory"]).is_dir()


def test_status_and_plan_tell_the_size_of_an_elastic_gang(call: Call) -> None:
    Path("t.yaml").write_text("name: t\nrun: 'true'\nnodes: 2..3\nranks_per_node: 2\nresources: {cpu: 10m}\n")
    assert "it would start at once: 3 pods with 6 ranks placed on " in call("plan", "t.yaml").out
    assert call("run", "t.yaml").code == 0
    assert "6 on 3 of 2..3 nodes with 0.01 CPU" in call("status", "t").out
    told = json.loads(call("status", "t", "--json").out)
    assert (told["ranks"], told["nodes"], told["spec"]["spec"]["nodes"]) == (6, 3, "2..3")


def test_status_finds_a_run_by_the_beginning_of_its_id(call: Call, past: Past) -> None:
    run = past.submit("found")
    past.submit("other")
    assert json.loads(call("status", "--json", run.uid).out)["name"] == "found"


def test_the_listing_has_every_unfinished_run_and_the_newest_others(call: Call, past: Past) -> None:
    past.submit("old", phase=Phase.RESTARTING)
    for number in range(30):
        past.submit(f"run-{number}")
    listed = call("status").out.splitlines()
    assert listed[0].split() == ["NAME", "PHASE", "RANKS", "STEP", "SUBMITTED", "REASON"]
    assert listed[1].split()[0] == "old"
    assert len(listed) == 1 + 1 + 15
    assert len(json.loads(call("status", "--all", "--json").out)) == 31


def test_validate_tells_what_it_understood(call: Call) -> None:
    Path("t.yaml").write_text("run: echo hi\n---\nkind: Team\nname: vision\n")
    told = json.loads(call("validate", "--json", "t.yaml").out)
    assert told["problems"] == []
    assert [spec["kind"] for spec in told["specs"]] == ["Training", "Team"]
    assert len(parse(call("validate", "--show", "t.yaml").out)) == 2


def test_stop_suspend_resume_and_delete_tell_how_the_runs_are_then(call: Call) -> None:
    assert call("run", "-d", "--name", "t", "--", "sleep", "60").code == 0
    told = json.loads(call("suspend", "t", "--json").out)
    assert (told[0]["phase"], told[0]["reason"]["code"]) == ("Suspended", "Suspended")
    assert json.loads(call("resume", "t", "--json").out)[0]["intent"] == "run"
    assert json.loads(call("stop", "t", "--json").out)[0]["phase"] == "Stopped"
    assert json.loads(call("delete", "t", "--yes", "--json").out)[0]["deleted"] is True
    assert call("status", "t").code == 5


def test_events_of_all_runs_and_of_some(call: Call, past: Past) -> None:
    for name in ("a", "b", "c"):
        past.submit(name)
    assert len(call("events").out.splitlines()) == 1 + 6
    told = [json.loads(line) for line in call("events", "a", "c", "--json").out.splitlines()]
    assert {each["run"] for each in told} == {"a", "c"}


def test_completion_offers_the_names_of_runs(process: Call, past: Past) -> None:
    past.submit("train-llama")
    past.submit("evaluate")
    env = {"_FAIRLEAD_COMPLETE": "bash_complete", "COMP_WORDS": "fairlead status tr", "COMP_CWORD": "2"}
    assert process(env=env).out == "plain,train-llama\n"
    assert "complete" in process("completion", "bash").out
