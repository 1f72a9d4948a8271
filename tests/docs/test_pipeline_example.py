"""The pipeline among the examples, which a reader may run as it is."""

import subprocess
from pathlib import Path

import pytest

from tests.docs.examples import ROOT

TIMEOUT_S = 120.0


@pytest.mark.slow
def test_the_example_of_a_pipeline_passes_its_gate_and_is_not_run_again(desk: Path) -> None:
    def run() -> str:
        command = ["fairlead", "run", str(ROOT / "examples" / "pipeline.yaml")]
        ended = subprocess.run(command, cwd=desk, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    first = run()
    assert first.count("[tune] rate=") == 6
    assert "[report] accuracy 0.9" in first
    assert "5 steps ran" in first
    assert "5 steps unchanged" in run()
