"""What the operator tells over HTTP, and what `install --monitoring` puts beside it."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fairlead.cluster.kubernetes.manifests.deployments import with_recommended_labels
from fairlead.cluster.kubernetes.manifests.gateway import render_gateway
from fairlead.cluster.kubernetes.manifests.install import HEALTH_PORT, InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.pods import PodSettings, render_pod
from fairlead.control.health import METRICS, Health, serve
from fairlead.control.metrics.dashboards import DASHBOARDS
from fairlead.control.metrics.operator import operator_metrics
from fairlead.control.metrics.prometheus_operator import monitoring_objects
from fairlead.control.metrics.rules import rule_groups
from fairlead.control.pass_counts import PassCounts
from fairlead.specs.serving import Replica
from fairlead.state.plan import CreatePod
from fairlead.state.snapshot import Grant
from tests.kubernetes.builders import a_workload
from tests.metrics.world import World


@pytest.fixture(scope="module")
def counts() -> PassCounts:
    world = World()
    world.go_on(6)
    return world.counts


def test_its_own_numbers_and_those_of_runs_are_one_exposition(counts: PassCounts) -> None:
    own = dict.fromkeys(METRICS, 1.0)
    health = Health(numbers=lambda: own, trouble=str, more=lambda: operator_metrics(counts, is_leader=True))
    server = serve(health, "127.0.0.1", 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds))
    samples = {each.name: each for family in text_string_to_metric_families(text) for each in family.samples}
    assert samples["fairlead_leader"].value == 1
    assert samples["fairlead_placements_total"].value == 1
    assert samples["fairlead_run_gpus_held"].labels == {"team": "research", "run": "steady"}


def test_one_that_follows_tells_of_no_runs(counts: PassCounts) -> None:
    text = operator_metrics(counts, is_leader=False)
    (family,) = text_string_to_metric_families(text)
    assert [(each.name, each.value) for each in family.samples] == [("fairlead_loop_running", 0.0)]
    assert operator_metrics(PassCounts(), is_leader=True) == text


def test_the_monitor_finds_the_operators_port() -> None:
    objects = {each["kind"]: each for each in render_install(InstallSettings(image="fairlead:test"))}
    pod = objects["Deployment"]["spec"]["template"]
    service, account, token, binding, monitor, rules, *boards = monitoring_objects("fairlead-system")
    assert token["metadata"]["annotations"]["kubernetes.io/service-account.name"] == account["metadata"]["name"]
    assert binding["roleRef"]["name"] == "fairlead-metrics-reader"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": token["metadata"]["name"], "key": "token"}
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    (opened,) = pod["spec"]["containers"][0]["ports"]
    assert (
        (port["targetPort"], port["port"]) == (opened["name"], HEALTH_PORT) == (opened["name"], opened["containerPort"])
    )
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [port["name"]]
    assert rules["spec"] == rule_groups()
    assert {json.loads(text)["uid"] for each in boards for text in each["data"].values()} == {
        each.uid for each in DASHBOARDS
    }


def test_gateways_and_replicas_are_scraped_at_ports_that_they_open() -> None:
    service, monitor, replicas = monitoring_objects("fairlead-system", gateways=True)[-3:]
    objects = render_gateway("fairlead:test", "fairlead-system", 1)
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["metadata"]["namespace"] == deployment["metadata"]["namespace"] == monitor["metadata"]["namespace"]
    (container,) = pod["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    assert container["args"][container["args"].index("--metrics-port") + 1] == str(port["port"])
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy")
    assert {"port": port["port"], "protocol": "TCP"} in policy["spec"]["ingress"][0]["ports"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    run = a_workload(Replica(run="serve"))
    grant = Grant(cpu_milli=1000, memory_bytes=2**30)
    replica = render_pod(run, CreatePod(attempt=0, index=0, node="a", grant=grant), PodSettings(runtime="x"))
    (expression,) = replicas["spec"]["selector"]["matchExpressions"]
    assert expression["key"] in replica["metadata"]["labels"]
    (endpoint,) = replicas["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [each["name"] for each in replica["spec"]["containers"][0]["ports"]]


@pytest.mark.slow
def test_the_command_prints_them_last_and_only_when_asked(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fairlead.cli.main", "install", "--render", "--namespace", "here"]

    def printed(*more: str) -> list[object]:
        ended = subprocess.run([*argv, *more], capture_output=True, text=True, check=True, cwd=tmp_path)
        return list(yaml.safe_load_all(ended.stdout))

    without = printed()
    wanted, with_gateways = (
        [with_recommended_labels(each, "operator") for each in monitoring_objects("here", gateways=gateways)]
        for gateways in (False, True)
    )
    assert printed("--monitoring") == [*without, *wanted]
    assert printed("--monitoring", "--gateways", "1")[-3:] == with_gateways[-3:]
