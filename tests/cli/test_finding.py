"""`fairlead.find` in another process than the one that submitted: each kind has the handle that `run()` returned."""

from pathlib import Path

import pytest

import fairlead
from fairlead.errors import InvalidArgument, NotFound
from tests.cli.conftest import Call, Past

FLOW = """
import fairlead

@fairlead.step
def numbers():
    print("counting")
    return [1, 2, 3]

@fairlead.step
def total(numbers):
    return sum(numbers)

if __name__ == "__main__":
    fairlead.Pipeline("flow", [numbers, total]).run()
"""

SEARCH = """
import fairlead
trial = {"run": "echo score={{x}}", "metrics": "name=value", "resources": {"cpu": "100m"}}
fairlead.Sweep(name="search", parameters={"x": "3 | 1 | 2"}, objective="score", trial=trial).run()
"""


def test_a_pipeline_that_another_process_submitted_has_its_results_and_output(process: Call, desk: Path) -> None:
    (desk / "flow.py").write_text(FLOW)
    assert process(shell="python flow.py").code == 0
    flow = fairlead.find("flow")
    assert isinstance(flow, fairlead.PipelineHandle)
    assert flow.wait(60).phase == "Succeeded"
    assert (flow.result("numbers"), flow.result("total")) == ([1, 2, 3], 6)
    assert [line.text for line in flow.logs("numbers")] == ["counting"]
    assert any(line.text == "[numbers] counting" for line in flow.logs())
    with pytest.raises(InvalidArgument, match="step 'mean': flow has no such step; steps: numbers, total"):
        list(flow.logs("mean"))
    with pytest.raises(NotFound, match="mean is not a step"):
        flow.result("mean")


def test_a_sweep_that_another_process_submitted_has_its_best_trial(process: Call, desk: Path) -> None:
    (desk / "search.py").write_text(SEARCH)
    assert process(shell="python search.py").code == 0
    sweep = fairlead.find("search")
    assert isinstance(sweep, fairlead.SweepHandle)
    assert sweep.wait(60).phase == "Succeeded"
    assert (sweep.best().values, len(sweep.trials())) == ({"x": 1}, 3)
    trial = fairlead.find("search-0")
    assert isinstance(trial, fairlead.RunHandle)
    assert [line.text for line in trial.logs()] == ["score=3"]


def test_a_run_has_a_handle_of_a_run(past: Past) -> None:
    past.submit("fox")
    assert isinstance(fairlead.find("fox"), fairlead.RunHandle)
