"""`fairlead metrics`: the same figures as `status` and `cost`, printed or served, and nothing changed by looking."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.metrics.dashboards import DASHBOARDS
from fairlead.control.metrics.rules import ALERTS
from tests.cli.conftest import Call
from tests.waiting import until


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (each.name, frozenset(each.labels.items())): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def test_what_it_prints_is_what_status_and_cost_say(call: Call) -> None:
    call("prices", "set", "localhost", "1000", "--from", "2026-01-01")
    call("run", "-d", "--name", "a", "--label", "model=gpt", "--", "sleep", "60")
    until(lambda: json.loads(call("status", "a", "--json").out)["phase"] == "Running")
    before = json.loads(call("status", "a", "--json").out)
    found = samples(call("metrics").out)
    after = json.loads(call("status", "a", "--json").out)
    own = frozenset({("team", "default"), ("run", "a")})
    cost = found["fairlead_run_cost_dollars", own]
    assert before["cost_microusd"] / 1e6 <= cost <= after["cost_microusd"] / 1e6
    goodput = found["fairlead_run_goodput_ratio", own]
    assert before["goodput"]["ratio"] <= goodput + 1e-9
    assert goodput <= after["goodput"]["ratio"] + 1e-9
    assert found["fairlead_model_month_cost_dollars", frozenset({("model", "gpt")})] == pytest.approx(cost, abs=0.5)
    # The supervisor answers between two passes.
    assert found["fairlead_loop_running", frozenset()] == 1
    assert found["fairlead_placements_total", frozenset()] == 1
    call("delete", "--yes", "a")


def test_an_endpoints_figures_are_those_of_its_gateway_and_its_replicas(call: Call, desk: Path) -> None:
    (desk / "metrics").write_text("# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 7.0\n")
    (desk / "web.yaml").write_text(
        "kind: Serving\nname: web\nresources: {cpu: 0.05}\nrun: exec python3 -m http.server --bind 127.0.0.1 $PORT\n"
    )
    done = call("run", "web.yaml")
    assert done.code == 0, done.err
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}

    def is_there() -> bool:
        found.clear()
        found.update(samples(call("metrics").out))
        return ("fairlead_gateway_replicas", frozenset({("service", "web"), ("revision", "r1")})) in found

    until(is_there, lambda: [each for each in found if "gateway" in each[0]])
    own = frozenset({("team", "default"), ("run", "web")})
    assert found["fairlead_endpoint_replicas_wanted", own] == found["fairlead_endpoint_replicas_ready", own] == 1
    (labels,) = (labels for name, labels in found if name == "vllm:generation_tokens_total")
    assert [key for key, _ in labels] == ["replica"]
    call("delete", "--yes", "web")


def test_it_starts_nothing(call: Call) -> None:
    found = samples(call("metrics").out)
    assert found["fairlead_loop_running", frozenset()] == 0
    assert found["fairlead_unfinished_runs", frozenset()] == 0
    assert not LocalCluster.open().supervisor_alive()


def test_it_is_served_until_it_is_interrupted(call: Call) -> None:
    argv = [str(Path(sys.executable).with_name("fairlead")), "metrics", "--port", "0"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            url = next(word for word in said.split() if word.startswith("http"))
            with urllib.request.urlopen(url, timeout=20) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert ("fairlead_unfinished_runs", frozenset()) in samples(answer.read().decode())
            port = url.rpartition(":")[2].partition("/")[0]
            taken = call("metrics", "--port", port)
            assert taken.code == 6
            assert "Give another with `--port`" in taken.err
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=20)
        finally:
            server.kill()


def test_rules_and_dashboards_are_printed_and_written_as_files(call: Call, desk: Path) -> None:
    (group,) = yaml.safe_load(call("metrics", "rules").out)["groups"]
    assert {rule["alert"] for rule in group["rules"]} == {alert.name for alert in ALERTS}
    said = call("metrics", "dashboards", "to/here")
    files = sorted((desk / "to" / "here").iterdir())
    assert [f"to/here/{file.name}" for file in files] == sorted(said.out.split())
    assert {json.loads(file.read_text())["uid"] for file in files} == {each.uid for each in DASHBOARDS}
    (desk / "file").write_text("")
    assert "cannot be written" in call("metrics", "dashboards", "file/below").err


@pytest.mark.parametrize("arguments", [("metrics", "--host", "0.0.0.0"), ("metrics", "--port", "99999")])
def test_what_cannot_be_is_refused(call: Call, arguments: tuple[str, ...]) -> None:
    assert call(*arguments).code == 2


def test_a_port_that_is_taken_is_told_as_by_every_command_that_serves(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        for arguments in (("metrics", "--port", port), ("ui", "--port", port)):
            refused = call(*arguments)
            assert refused.code == 6
            assert f"{port} is taken. Give another with `--port`, or 0 for any" in refused.err
