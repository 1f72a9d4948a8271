"""``fairlead simulate --from-cluster`` on this machine: real runs, recorded and replayed."""

import json
from pathlib import Path

from tests.cli.conftest import Call, Past

RUNS = """
name: first
run: sleep 1
resources: {cpu: 0.1}
---
name: second
run: sleep 0.5
resources: {cpu: 0.1}
checkpoint: {every: 5m}
---
name: bad
run: exit 3
resources: {cpu: 0.1}
retry: 0
"""


def test_what_ran_here_is_recorded_saved_and_replayed(desk: Path, call: Call) -> None:
    (desk / "runs.yaml").write_text(RUNS)
    assert call("run", "runs.yaml").code == 1
    told = call("simulate", "--from-cluster", "--cluster", "local", "--save", "kept", "--json")
    assert told.code == 0, told.err
    assert "3 runs since" in told.err
    outcome = json.loads(told.out)
    assert {run["name"] for run in outcome["runs"]} == {"first", "second", "bad"}
    first = next(run for run in outcome["runs"] if run["name"] == "first")
    assert 1.0 <= first["duration_s"] < 5.0
    assert all(run["ended_s"] is not None for run in outcome["runs"])
    trace, cluster = desk / "kept" / "trace.csv", desk / "kept" / "cluster.yaml"
    assert "kind: Pool" in cluster.read_text()
    assert trace.read_text().startswith("submit_s,duration_s,name,cpu,checkpoint_every\n")
    # What was saved says the same.
    again = json.loads(call("simulate", str(trace), "--cluster", str(cluster), "--json").out)
    assert again["runs"] == outcome["runs"]
    clash = call("simulate", "--from-cluster", "--save", "kept")
    assert (clash.code, "is there already; give --save another directory" in clash.err) == (6, True)


def test_what_waits_is_told_to_be_estimated(past: Past, call: Call) -> None:
    past.submit("done")
    past.submit("waits", phase=None)
    told = call("simulate", "--from-cluster")
    assert "1 run not over: taken to last the median" in told.err
    assert "1 run left out, over before the first start" in told.err


def test_a_history_of_nothing_is_refused_and_so_is_what_does_not_go_together(past: Past, call: Call) -> None:
    empty = call("simulate", "--from-cluster")
    assert (empty.code, "nothing to replay" in empty.err) == (5, True)
    for arguments, says in (
        (("trace.csv", "--from-cluster"), "not both"),
        (("--from-cluster", "--cluster", "cluster.yaml"), "--save it and give its trace with a cluster file"),
        (("--from-cluster", "--cluster", "local", "--context", "x"), "which only Kubernetes has"),
        (("trace.csv",), "Give TRACE and --cluster FILE, or --from-cluster"),
        (("trace.csv", "--cluster", "c.yaml", "--save", "x"), "go with --from-cluster"),
    ):
        refused = call("simulate", *arguments)
        assert refused.code == 2
        assert says in " ".join(refused.err.split()), refused.err
