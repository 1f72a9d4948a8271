"""`--set` on commands that take spec files."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call


@pytest.fixture
def spec(desk: Path) -> str:
    (desk / "fox.yaml").write_text("run: echo hi\nresources: {memory: 500Mi, cpu: 1}\n")
    return "fox.yaml"


def test_plan_shows_what_would_run_with_a_key_given_anew(call: Call, spec: str) -> None:
    answer = call("plan", spec, "--set", "resources.memory=700Mi", "--set", "env.SEED=3", "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["spec"]["spec"]["resources"] == {"cpu": 1, "memory": "700Mi"}
    assert json.loads(answer.out)["spec"]["spec"]["env"] == {"SEED": "3"}


def test_a_run_goes_by_what_was_set(call: Call, spec: str) -> None:
    answer = call("run", spec, "--set", "run=echo $SEED", "--set", "env.SEED=31415", "--set", "name=owl")
    assert answer.code == 0, answer.err
    assert "31415" in answer.out
    assert "Submitted owl." in answer.err


def test_a_command_takes_settings_too(call: Call, desk: Path) -> None:
    answer = call("plan", "--set", "resources.memory=1Ti", "--", "echo", "hi")
    assert answer.code == 4
    assert "1 TiB of memory, which can never fit here" in answer.err


def test_an_unknown_key_is_refused_with_the_one_that_is_meant(call: Call, spec: str) -> None:
    for command in ("plan", "run"):
        answer = call(command, spec, "--set", "resources.memori=1Gi")
        assert answer.code == 2
        assert "--set: resources.memori: unknown key; did you mean `memory`?" in answer.err
