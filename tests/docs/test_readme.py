"""The README's first command, which a reader tries before anything else."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.examples import ROOT

TIMEOUT_S = 900.0


@pytest.mark.long
@pytest.mark.torch
def test_the_first_command_trains_a_model_that_knows_more_than_frequencies(desk: Path) -> None:
    command = re.search(r"python3 bootstrap.py (fairlead run \S+)", (ROOT / "README.md").read_text())
    assert command is not None
    ended = subprocess.run(command[1].split(), cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    bits = re.search(r"bits per byte: unigram ([\d.]+), model ([\d.]+) .* steps 0 to 700 on 2 ranks", ended.stdout)
    assert bits is not None, ended.stdout
    assert float(bits[2]) < 0.75 * float(bits[1])
    assert "language-model is Succeeded: all ranks succeeded after 700 steps" in ended.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_the_first_command_with_few_steps_trains_and_says_what_it_reached(desk: Path) -> None:
    few = ["fairlead", "run", "--set", "run=python language_model.py --steps 8", "examples/language_model.yaml"]
    ended = subprocess.run(few, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"bits per byte: unigram [\d.]+, model [\d.]+ .* steps 0 to 8 on 2 ranks", ended.stdout), (
        ended.stdout
    )
    assert "language-model is Succeeded: all ranks succeeded after 8 steps" in ended.stderr
