"""`fairlead compare`: runs side by side, from what they printed."""

import json
from pathlib import Path

import pytest

from fairlead.state.snapshot import Phase
from tests.cli.conftest import Call, Past

PROGRAM = """
import sys
for step in range(1, 31):
    print(f"iter {step}: loss {float(sys.argv[1]) / step + 0.01 * (step > 20):.4f}", flush=True)
"""


def submit(desk: Path, call: Call, name: str, scale: str) -> None:
    (desk / "train.py").write_text(PROGRAM)
    spec = f"name: {name}\nrun: python train.py {scale}\nmetrics: 'iter (?P<step>\\d+): loss (?P<loss>\\S+)'\n"
    (desk / f"{name}.yaml").write_text(spec)
    assert call("run", f"{name}.yaml").code == 0


def test_runs_that_only_print_are_compared_by_their_specs_metrics_and_code(desk: Path, call: Call) -> None:
    submit(desk, call, "small", "1")
    submit(desk, call, "large", "2")
    rows = {line.split("  ")[0]: line for line in call("compare", "small", "large").out.splitlines()}
    assert "python train.py 1" in rows["run"]
    assert "python train.py 2" in rows["run"]
    assert rows["step"].split() == ["step", "30", "30"]
    assert "0.0433" in rows["loss"]
    assert "0.0767" in rows["loss"]
    answer = call("compare", "small", "large", "--metric", "loss", "--plot", "loss.svg", "--json")
    found = json.loads(answer.out)
    assert found["differ"] == ["run"]
    first = found["runs"][0]["metrics"]["loss"]
    assert (len(first["points"]), first["points"][0][0], first["points"][-1][0], first["goal"]) == (
        30,
        1,
        30,
        "minimize",
    )
    assert "large" in (desk / "loss.svg").read_text()


def test_a_metric_that_nobody_reported_is_told_with_those_that_were(desk: Path, call: Call) -> None:
    submit(desk, call, "small", "1")
    answer = call("compare", "small", "--metric", "los")
    assert answer.code == 5
    assert "None of these runs has reported 'los'; they have: loss." in answer.err


@pytest.mark.parametrize(
    "command",
    [("compare", "small", "large", "--plot"), ("sweep", "plot", "rates", "--file"), ("cost", "compare", "--plot")],
)
@pytest.mark.parametrize(
    ("file", "said"), [("c.png", "give `c.svg`"), ("c", "give `c.svg`"), ("none/c.svg", "no directory 'none'")]
)
def test_a_plot_is_written_only_to_a_file_whose_name_says_svg(
    call: Call, desk: Path, command: tuple[str, ...], file: str, said: str
) -> None:
    refused = call(*command, file)
    assert refused.code == 2
    assert said in " ".join(refused.err.split())
    assert not (desk / file).exists()


def test_runs_are_compared_by_a_label_oldest_first_with_its_values(call: Call, past: Past) -> None:
    past.submit("old", labels={"exp": "a", "lr": "1"})
    past.submit("other", labels={"exp": "b"})
    past.submit("new", labels={"exp": "a", "lr": "2"})
    past.submit("failed", labels={"exp": "a"}, phase=Phase.FAILED)
    rows = {
        line.split()[0]: line.split()
        for line in call("compare", "--label", "exp=a", "--label", "lr").out.splitlines()[1:]
    }
    assert rows["phase"] == ["phase", "Succeeded", "Succeeded"]
    assert rows["labels.lr"] == ["labels.lr", "1", "2"]
    head = call("compare", "--label", "exp=a", "--phase", "failed,succeeded").out.splitlines()[0]
    assert head.split() == ["old", "new", "failed"]
    none = call("compare", "--label", "exp=c")
    assert (none.code, "No run with label exp=c is there to compare" in none.err) == (5, True)


def test_of_many_runs_the_newest_are_in_the_table_and_all_in_json(call: Call, past: Past) -> None:
    for number in range(23):
        past.submit(f"run-{number}", labels={"exp": "a"})
    answer = call("compare", "--label", "exp")
    assert answer.out.splitlines()[0].split() == [f"run-{number}" for number in range(3, 23)]
    assert "These are the newest 20 of 23 runs with label exp; --json has all." in answer.err
    answer = call("compare", "--label", "exp", "--json")
    assert (len(json.loads(answer.out)["runs"]), answer.err) == (23, "")


def test_runs_to_compare_are_named_or_chosen_and_not_both(call: Call, past: Past) -> None:
    past.submit("fox", labels={"exp": "a"})
    for words in ((), ("fox", "--label", "exp")):
        answer = call("compare", *words)
        assert (answer.code, "give NAMES, or choose runs by --label and --phase" in answer.err) == (2, True)
