"""Schemathesis asks a replica, also behind a gateway, what its OpenAPI document allows, and what it does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.environments import interpreter_with
from tests.gateway.parts import Door, service
from tests.processes import Child
from tests.serving.replica import Replica

pytestmark = [pytest.mark.slow, pytest.mark.frameworks]
TIMEOUT_S = 300.0
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method"
)


def examine(url: str, directory: Path) -> None:
    """Let it find an answer that the document does not speak of, or one that says that the server has failed.

    Args:
        directory: Where it keeps what it has found.
    """
    python = interpreter_with("schemathesis")
    command = [str(python.parent / "schemathesis"), "run", f"{url}/openapi.json", "--url", url, "--checks", CHECKS]
    command += ["--max-examples", "25", "--seed", "1", "--no-color", "--phases", "examples,coverage,fuzzing"]
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Tested: 14" in ended.stdout


@pytest.mark.parametrize("predictor", ["Echo", "Words"])
def test_a_replica_answers_as_its_document_says(predictor: str, tmp_path: Path) -> None:
    with Replica(predictor, max_batch_size=4) as replica:
        examine(f"http://127.0.0.1:{replica.port}", tmp_path)
        assert replica.get("/v2/health/ready").status == 200


def test_behind_a_gateway_it_answers_the_same(tmp_path: Path) -> None:
    door = Door(tmp_path)
    with Replica("Echo", max_batch_size=4) as replica:
        door.write_routes({"m": service(("r", replica.port))})
        command = [sys.executable, "-m", "fairlead.gateway", "--directory", str(tmp_path), "--port", "0"]
        with Child(command) as gateway:
            door.wait_until_open()
            examine(f"http://127.0.0.1:{door.port}/m", tmp_path)
            assert b"fairlead_gateway_defects_total 0.0" in door.ask("/metrics", admin=True).body
            gateway.terminate()
