"""Keys of a spec that options give anew."""

import json
from pathlib import Path

import pytest

from fairlead.api import Training
from tests.cli.conftest import Call


@pytest.mark.parametrize("rest", [(), ("--set", "grace=5s")])
def test_options_stand_for_their_keys(call: Call, desk: Path, rest: tuple[str, ...]) -> None:
    Path("a.yaml").write_text("run: echo\nenv: {A: file, B: file}\nlabels: {a: file, b: file}\n")
    options = ("--nodes", "1..4", "--env", "A=option", "--label", "a=option", "--label", "c=")
    ended = call("plan", "a.yaml", "--json", *options, *rest)
    planned = json.loads(ended.out)["spec"]
    spec = planned["spec"]
    assert spec["nodes"] == "1..4"
    assert spec["env"] == {"A": "option", "B": "file"}
    assert planned["metadata"]["labels"] == {"a": "option", "b": "file", "c": ""}


@pytest.mark.parametrize("option", ["--gpu", "--gpus"])
def test_gpus_are_asked_for_in_the_words_of_files(call: Call, option: str) -> None:
    ended = call("run", option, "A100:8", "--", "true")
    assert ended.code == 4
    assert "8 x A100" in ended.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--nodes", "4..2"), "--nodes: nodes: "),
        (("--nodes", "many"), "--nodes: nodes: "),
        (("--gpu", "0"), "--gpu: resources.gpu: "),
        (("--nodes", "2", "--set", "nodes=3"), "--set nodes and --nodes say the same key: give one of them"),
        (("--gpu", "2", "--set", "resources=null"), "--set resources and --gpu say the same key"),
        (("--nodes", "2", "--env", "A=1", "--set", "env.A=2"), "--set env.A and --env say the same key"),
        (("--label", "a=1", "--set", "labels.a=2"), "--set labels.a and --label say the same key"),
        (("--label", "a"), "--label 'a': give KEY=VALUE"),
        (("--label", "fairlead.dev/run=a"), "are Fairlead's own"),
        (("--env", "RANK=1"), "is set by Fairlead itself"),
    ],
)
def test_what_an_option_gets_wrong_is_told_with_its_name(call: Call, options: tuple[str, ...], says: str) -> None:
    for command in ("run", "plan"):
        ended = call(command, *options, "--", "true")
        assert ended.code == 2
        assert says in ended.err


def test_the_python_api_takes_labels(desk: Path) -> None:
    handle = Training(run="true", labels={"experiment": "a"}).run()
    assert handle.workload.spec.labels == {"experiment": "a"}
    handle.wait(30)
