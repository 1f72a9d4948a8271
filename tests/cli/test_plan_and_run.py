"""Whatever `plan` says would happen to a file is what `run` does with it: the same verdict, names and sentences."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call

CPUS = "resources: {cpu: 4096}\n"
SPECS = {
    "small": "run: python -c pass\n",
    "nothing open": "run: python -c pass\nranks_per_node: 2\nresources: {cpu: 500m, memory: 64Mi}\nmax_duration: 1h\n",
    "a finished name": "name: done\nrun: python -c pass\n",
    "too large": f"run: python -c pass\n{CPUS}",
    "too many nodes": "run: python -c pass\nnodes: 64\nresources: {cpu: 1000}\n",
    "an image": "run: python -c pass\nimage: registry/train:1\n",
    "shared memory": "run: python -c pass\nresources: {shm: 1Gi}\n",
    "a missing directory": "run: python -c pass\nworkdir: nowhere\n",
    "a mistake": "run: python -c pass\nranks: 2\n",
    "a taken name": "name: holder\nrun: python -c pass\n",
    "two, one of them too large": f"name: a\nrun: python -c pass\n---\nname: b\nrun: python -c pass\n{CPUS}",
    "twice the same": "name: a\nrun: python -c pass\n---\nname: a\nrun: python -c pass\n",
}


def first_decision(call: Call, name: str) -> dict[str, Any]:
    """What the loop first decided on a run."""
    while True:
        told = [json.loads(line) for line in call("events", name, "--json").out.splitlines()]
        decided = [event for event in told if event["event"] != "Submitted"]
        if decided:
            first: dict[str, Any] = decided[0]
            return first


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_run_does_what_plan_says(call: Call, spec: str) -> None:
    if spec.startswith("name: done"):
        assert call("run", "--name", "done", "--", "true").code == 0
    if spec.startswith("name: holder"):
        call("run", "-d", "--name", "holder", "--", "sleep", "60")
    Path("spec.yaml").write_text(spec if spec.startswith("name") else f"name: t\n{spec}")
    planned = call("plan", "spec.yaml", "--json")
    ran = call("run", "-d", "spec.yaml", "--json")
    if planned.code != 1:
        assert (ran.code, ran.err) == (planned.code, planned.err) if "holder" not in spec else ran.code == planned.code
    else:
        said = [json.loads(line) for line in planned.out.splitlines()]
        made = json.loads(ran.out)
        assert [run["name"] for run in made] == [each["name"] for each in said]
        for each in said:
            decided = first_decision(call, each["name"])
            assert (decided["event"], decided["reason"]["message"]) == (each["phase"], each["reason"]["message"])
            assert json.loads(call("status", each["name"], "--json").out)["spec"] == each["spec"]
    call("delete", "--all", "--yes")


def test_a_run_that_waits_for_another_is_told_so_by_both(call: Call) -> None:
    call("run", "-d", "--name", "holder", "--", "sleep", "60")
    holder = first_decision(call, "holder")
    assert holder["event"] == "Starting"
    whole = len(os.sched_getaffinity(0))
    Path("late.yaml").write_text(f"name: late\nrun: python -c pass\nresources: {{cpu: {whole}}}\n")
    (planned,) = (json.loads(line) for line in call("plan", "late.yaml", "--json").out.splitlines())
    assert planned["phase"] == "Pending"
    assert planned["reason"]["message"].endswith("held by holder; start unknown: holder has no `max_duration`")
    call("run", "-d", "late.yaml")
    decided = first_decision(call, "late")
    assert (decided["event"], decided["reason"]["message"]) == ("Pending", planned["reason"]["message"])
    call("delete", "--all", "--yes")


def test_plan_of_what_is_under_way_says_that_run_would_not_start_it_again(call: Call) -> None:
    Path("t.yaml").write_text("name: t\nrun: sleep 60\n")
    call("run", "-d", "t.yaml")
    planned = call("plan", "t.yaml")
    assert planned.code == 0
    assert "`fairlead attach t` follows it; `fairlead run` would refuse a second one" in planned.out
    assert call("run", "-d", "t.yaml").code == 6
    call("delete", "--all", "--yes")
