"""The epsilon that a federation has spent is that of Google's accountant, on which Flower's own builds."""

import json
import subprocess

import pytest

from fairlead.policy.kinds.privacy import epsilon_spent
from tests.frameworks.environments import interpreter_with

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.timeout(900)]
ROUNDS = [
    (100, 1e-5, 1.1, 0.1),
    (1000, 1e-5, 1.0, 0.01),
    (50, 1e-5, 1.0, 1.0),
    (10, 1e-6, 10.0, 1.0),
    (3, 1e-3, 0.5, 0.5),
    (50, 1e-5, 3.0, 0.5),
    (50, 1e-5, 1.25, 0.2),
    (2000, 1e-7, 8.0, 0.05),
]
PROGRAM = """
import json, sys
import dp_accounting
from dp_accounting.rdp import RdpAccountant

spent = []
for rounds, delta, noise, probability in json.loads(sys.argv[1]):
    event = dp_accounting.GaussianDpEvent(noise)
    if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
    spent.append(RdpAccountant().compose(event, rounds).get_epsilon(delta))
print(json.dumps(spent))
"""


def test_spent_epsilon_is_that_of_the_reference_within_one_percent() -> None:
    python = interpreter_with("dp-accounting")
    argv = [str(python), "-c", PROGRAM, json.dumps(ROUNDS)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=True)
    for rounds, reference in zip(ROUNDS, json.loads(ran.stdout.splitlines()[-1]), strict=True):
        assert epsilon_spent(*rounds) == pytest.approx(reference, rel=0.01), rounds
