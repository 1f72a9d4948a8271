"""`fairlead compare`: runs side by side, from what they printed."""

import json
from pathlib import Path

from tests.cli.conftest import Call

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
