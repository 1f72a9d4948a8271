"""The benchmark of batches measures real servers, each with its own policy."""

import json

import pytest

from benchmarks.serving_batches import main


@pytest.mark.slow
def test_each_policy_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--seconds", "0.3", "--clients", "4", "--rates", "", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["policy"] for row in rows] == ["none", "fixed", "adaptive"]
    assert all(row["failed"] == 0 and row["requests_per_s"] > 0 for row in rows)
    assert rows[0]["rows_a_batch"] == 1.0
    assert rows[1]["rows_a_batch"] > 1.0
