"""Clients that others wrote talk to a replica, each in an environment of its own."""

import subprocess
from pathlib import Path

import pytest

from tests.frameworks.environments import interpreter_with
from tests.serving.replica import Replica

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
TIMEOUT_S = 300.0


@pytest.mark.parametrize(("client", "predictor"), [("tritonclient", "Echo"), ("openai", "Words"), ("kserve", "Echo")])
def test_a_client_of_others_is_served(client: str, predictor: str) -> None:
    python = interpreter_with(client)
    program = Path(__file__).parent / "clients" / f"with_{client}.py"
    with Replica(predictor, max_batch_size=4) as replica:
        ended = subprocess.run(
            [str(python), str(program), f"127.0.0.1:{replica.port}"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr
