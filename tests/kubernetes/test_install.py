"""What puts Fairlead onto a cluster, whole and in a golden file; rights that are named one by one."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fairlead import __version__
from fairlead.cluster.kubernetes.kinds import kept_kinds
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install, traces_port
from fairlead.cluster.kubernetes.manifests.ledger_storage import read_place
from fairlead.cluster.kubernetes.manifests.roles import (
    ENGINE_RULES,
    NODE_PARTITIONER_RULES,
    OPERATOR_RULES,
    ROLES,
    TEAM_RULES,
)
from fairlead.control.metrics.prometheus_operator import monitoring_objects
from fairlead.control.span_receiver import ENDPOINT
from fairlead.errors import Conflict
from fairlead.policy.kinds.retention import KEEP_ALL, Retention
from tests.kubernetes.goldens import check_golden


def test_the_objects_are_those_of_the_golden_file() -> None:
    objects = render_install(InstallSettings(image="fairlead:test", version="1.2.3"))
    check_golden("install.yaml", [each for each in objects if each["kind"] != "CustomResourceDefinition"])
    assert sum(each["kind"] == "CustomResourceDefinition" for each in objects) == len(kept_kinds())


def test_every_object_and_pod_of_an_installation_has_the_recommended_labels_and_selectors_know_few() -> None:
    extras = tuple(monitoring_objects("fairlead-system", gateways=True))
    settings = InstallSettings(image="fairlead:test", page=True, gateways=2, partitions=True, extras=extras)
    recommended = {f"app.kubernetes.io/{each}" for each in ("name", "instance", "component", "part-of")}
    for content in render_install(settings):
        labels = content["metadata"]["labels"]
        assert recommended <= labels.keys(), content["metadata"]["name"]
        assert labels["app.kubernetes.io/part-of"] == "fairlead"
        if content["kind"] == "Deployment":
            pods, component = content["spec"]["template"]["metadata"]["labels"], labels["app.kubernetes.io/component"]
            assert {name: pods[name] for name in recommended} == {name: labels[name] for name in recommended}
            assert content["metadata"]["name"] == f"fairlead-{component}"
            assert content["spec"]["selector"] == {"matchLabels": {"app.kubernetes.io/name": f"fairlead-{component}"}}


def test_no_right_is_given_by_a_wildcard() -> None:
    for rule in [*OPERATOR_RULES, *TEAM_RULES, *ENGINE_RULES, *(rule for rules in ROLES.values() for rule in rules)]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_the_operator_may_not_read_secrets_run_in_pods_or_give_itself_rights() -> None:
    for rule in [*OPERATOR_RULES, *TEAM_RULES, *ENGINE_RULES]:
        assert not {"pods/exec", "pods/attach", "serviceaccounts/token"} & set(rule["resources"])
        assert "secrets" not in rule["resources"] or rule["verbs"] == ["create"], "only keys of runs, which it forgets"
        assert not {"escalate", "impersonate"} & set(rule["verbs"])
        if "bind" in rule["verbs"]:
            assert rule["resourceNames"] == ["fairlead-viewer", "fairlead-user", "fairlead-admin"]


def test_the_operator_may_change_nodes_only_where_they_are_to_be_partitioned() -> None:
    def changing(partitions: bool = False) -> list[str]:
        objects = render_install(InstallSettings(image="fairlead:test", partitions=partitions))
        roles = [each for each in objects if each["kind"] in ("Role", "ClusterRole")]
        return [
            role["metadata"]["name"]
            for role in roles
            for rule in role["rules"]
            if "nodes" in rule.get("resources", ()) and not {"get", "list", "watch"} >= set(rule["verbs"])
        ]

    assert changing() == []
    assert changing(partitions=True) == ["fairlead-node-partitioner"]
    assert [rule["verbs"] for rule in NODE_PARTITIONER_RULES] == [["patch"]]


@pytest.mark.slow
def test_the_command_prints_what_is_applied(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fairlead.cli.main", "install", "--render", "--image", "fairlead:test"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60).stdout
    assert list(yaml.safe_load_all(printed)) == render_install(
        InstallSettings(image="fairlead:test", version=__version__)
    )


def test_a_receiver_of_traces_is_named_to_the_operator_and_may_be_reached() -> None:
    objects = render_install(InstallSettings(image="fairlead:test", traces="http://collector.monitoring:4318"))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (operator,) = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": ENDPOINT, "value": "http://collector.monitoring:4318"} in operator["env"]
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy")
    assert {"port": 4318, "protocol": "TCP"} in policy["spec"]["egress"][1]["ports"]
    assert [traces_port(url) for url in ("https://otlp.example", "http://[::1]")] == [443, 80]


@pytest.mark.parametrize("url", ["collector:4318", "grpc://collector:4317", "http://", "http://host:port"])
def test_a_receiver_of_traces_that_is_none_is_refused(url: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "fairlead.cli.main", "install", "--render", "--traces", url]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode == 2
    assert "such as http://collector.monitoring:4318" in " ".join(done.stderr.split())


def test_render_prints_the_kubernetes_form_and_the_pods_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "gang.yaml").write_text(
        "run: python t.py\nnodes: 2\nresources: {gpu: A100:8, cpu: 8}\nteam: research\n"
    )
    argv = [sys.executable, "-m", "fairlead.cli.main", "render", "--pods", "gang.yaml"]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60).stdout
    objects = list(yaml.safe_load_all(printed))
    assert [each["kind"] for each in objects] == ["Training", "Service", "NetworkPolicy", "Secret", "Pod", "Pod"]
    assert objects[0]["spec"] == {"run": "python t.py", "nodes": 2, "resources": {"gpu": "A100:8", "cpu": 8}}
    assert objects[-1]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize("place", ["secret:Foo_Bar", "secret:-a", "disk", "postgresql://"])
def test_a_place_of_the_ledger_that_is_none_is_refused_with_what_may_be_given(place: str) -> None:
    with pytest.raises(Conflict, match=r"--ledger.*(give|Give)"):
        read_place(place)
    assert read_place("secret:mine.db-1").secret == "mine.db-1"


@pytest.mark.parametrize(
    ("keeps", "told"),
    [
        (None, ["--keep", "30d"]),
        (KEEP_ALL, ["--keep", "forever"]),
        (Retention(last=3), ["--keep-last", "3"]),
        (Retention(for_s=3600, last=3), ["--keep", "1h", "--keep-last", "3"]),
    ],
)
def test_the_operator_is_told_what_to_keep_and_30_days_if_nothing_is_said(
    keeps: Retention | None, told: list[str]
) -> None:
    settings = InstallSettings(image="x") if keeps is None else InstallSettings(image="x", keeps=keeps)
    (deployment,) = (each for each in render_install(settings) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    arguments = container.get("args") or container["command"]
    given = [each for each in arguments if each.startswith("--keep")]
    assert given == [each for each in told if each.startswith("--keep")]
    assert all(arguments[arguments.index(name) + 1] == told[told.index(name) + 1] for name in given)
