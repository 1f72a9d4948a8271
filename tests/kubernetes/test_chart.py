"""The chart gives the very objects that `install` applies, in Helm's own reading."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cli import main
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.chart import KINDS, OBJECTS, render_chart
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.ledger_storage import read_place
from fairlead.cluster.kubernetes.operator.cluster import KubernetesCluster
from fairlead.control.metrics.prometheus_operator import monitoring_objects
from tests.builders import training
from tests.kubernetes.clusters import started
from tests.kubernetes.testcluster import binaries
from tests.kubernetes.testcluster.control_plane import ControlPlane
from tests.kubernetes.testcluster.fakes import add_nodes

SPACE = "fairlead-system"
HELM_TIMEOUT_S = 120
EVERYTHING = InstallSettings(
    image="registry.test:5000/fairlead@sha256:0",
    version="1.2.3",
    replicas=1,
    page=True,
    ledger=read_place("volume"),
    extras=tuple(monitoring_objects(SPACE)),
)
PLAIN = InstallSettings(image="fairlead:test", version="1.2.3")


def key(content: dict[str, Any]) -> tuple[str, str]:
    return content["kind"], content["metadata"]["name"]


def read(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {key(each): each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each}


def write(chart: dict[str, str], directory: Path) -> Path:
    for name, content in chart.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def as_helm_would(template: str, values: dict[str, Any]) -> str:
    """The few things of Go templates that the chart uses."""
    condition = re.compile(r"\{\{- if \.Values\.(\w+) \}\}\n(.*?)\{\{- end \}\}\n", re.DOTALL)
    text = condition.sub(lambda found: found[2] if values[found[1]] else "", template)
    text = re.sub(r"\{\{ \.Values\.(\w+)(?: \| quote)? \}\}", lambda found: json.dumps(values[found[1]]), text)
    return re.sub(r'\{\{ "([{}]{2})" \}\}', lambda found: found[1], text)


@pytest.mark.parametrize("settings", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_the_chart_has_the_objects_that_install_applies(settings: InstallSettings) -> None:
    chart = render_chart(settings)
    values = yaml.safe_load(chart["values.yaml"])
    rendered = read(as_helm_would(chart[OBJECTS], values)) | read(chart[KINDS])
    assert rendered == {key(each): each for each in render_install(settings)}


def test_what_another_file_is_in_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert main.call(["install", "--chart", str(tmp_path)]) == 6
    assert "has other files" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    assert main.call(["install", "--chart", str(tmp_path / "chart"), "--replicas", "0"]) == 0
    assert main.call(["install", "--chart", str(tmp_path / "chart"), "--image", "x:1"]) == 0
    assert yaml.safe_load((tmp_path / "chart" / "values.yaml").read_text())["image"] == "x:1"
    assert main.call(["install", "--chart", str(tmp_path / "chart"), "--wait"]) == 2


@pytest.fixture(scope="module")
def helm() -> Callable[..., str]:
    program = binaries.ensure_helm()

    def ask(*arguments: str, allowed: int = 0) -> str:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == allowed, done.stderr
        return done.stdout if allowed == 0 else done.stderr

    return ask


@pytest.mark.long
@pytest.mark.parametrize("settings", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_helm_renders_object_for_object_what_install_applies(
    settings: InstallSettings, helm: Callable[..., str], tmp_path: Path
) -> None:
    chart = str(write(render_chart(settings), tmp_path / "fairlead"))
    version = ("--kube-version", binaries.NEWEST)
    rendered = read(helm("template", "fairlead", chart, "--include-crds", *version))
    assert rendered == {key(each): each for each in render_install(settings)}
    assert "0 chart(s) failed" in helm("lint", chart)


@pytest.mark.long
def test_values_change_what_they_name_and_no_others_are_taken(helm: Callable[..., str], tmp_path: Path) -> None:
    chart = str(write(render_chart(PLAIN), tmp_path / "fairlead"))
    given = "--set=image=other:2,replicas=3,policy=fifo,createNamespace=false"
    rendered = read(helm("template", "x", chart, given, "--kube-version", binaries.NEWEST))
    changed = InstallSettings(image="other:2", version="1.2.3", replicas=3, policy="fifo")
    wanted = {key(each): each for each in render_install(changed) if each["kind"] != "CustomResourceDefinition"}
    del wanted[("Namespace", SPACE)]
    assert rendered == wanted
    assert "replica" in helm("template", "x", chart, "--set=replica=3", "--kube-version", binaries.NEWEST, allowed=1)
    old = helm("template", "x", chart, "--kube-version", "1.30.0", allowed=1)
    assert "incompatible with Kubernetes" in old


@pytest.mark.long
@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled_and_leaves_runs(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = binaries.ensure_helm()
    changed = replace(PLAIN, image="fairlead:next", version="1.3.0", page=True)
    charts = [str(write(render_chart(each), tmp_path / each.version)) for each in (PLAIN, changed)]
    with started(ControlPlane, request) as plane:
        add_nodes(plane, 1, prefix="node")
        monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig()))
        monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
        home = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}

        def helm(*words: str) -> None:
            argv = [str(program), *words, "--wait", "--timeout", f"{HELM_TIMEOUT_S}s"]
            done = subprocess.run(argv, env={**os.environ, **home}, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

        def images() -> list[str]:
            deployments = plane.request("GET", f"/apis/apps/v1/namespaces/{SPACE}/deployments")["items"]
            return sorted(each["spec"]["template"]["spec"]["containers"][0]["image"] for each in deployments)

        helm("install", "ml", charts[0])
        assert images() == [PLAIN.image]
        KubernetesCluster(Client(load_access((plane.kubeconfig(),))), namespace="default").submit(training("kept"))
        for words, instead in (
            (["install"], "helm upgrade ml --namespace default"),
            (["uninstall", "--yes"], "helm uninstall ml"),
        ):
            assert main.call(words) == 6
            assert instead in capsys.readouterr().err
        # As docs/clusters.md says, word for word.
        kinds = f"{charts[1]}/crds"
        subprocess.run([str(plane.kubectl), "apply", "--server-side", "--force-conflicts", "-f", kinds], check=True)
        helm("upgrade", "ml", charts[1])
        assert images() == [changed.image] * 2
        helm("rollback", "ml", "1")
        assert images() == [PLAIN.image]
        helm("uninstall", "ml")
        (left,) = plane.request("GET", "/apis/fairlead.dev/v1alpha1/namespaces/default/trainings")["items"]
        assert left["metadata"]["name"] == "kept"
        assert main.call(["install", "--image", PLAIN.image, "--timeout", "60", "--wait"]) == 0
        assert images() == [PLAIN.image]
