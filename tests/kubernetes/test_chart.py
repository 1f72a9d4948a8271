"""The chart gives the very objects that `install` applies, in Helm's own reading."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fairlead.cli import main
from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.manifests.chart import KINDS, OBJECTS, render_chart
from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.ledger_storage import read_place
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi
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
    gateways=2,
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

    def value(path: str) -> Any:
        found = values
        for name in path.split("."):
            found = found[name]
        return found

    def each(found: re.Match[str]) -> str:
        content = value(found[2])
        if found[1] == "with":
            return found[3].replace("{{ toJson . }}", json.dumps(content)) if content else ""
        if found[1] == "range":
            return "".join(found[3].replace("{{ toJson . }}", json.dumps(item)) for item in content)
        parts = ((json.dumps(name), json.dumps(item)) for name, item in content.items())
        return "".join(found[3].replace("{{ toJson $key }}: {{ toJson $value }}", ": ".join(pair)) for pair in parts)

    condition = re.compile(r"\{\{- if \.Values\.(\w+) \}\}\n(.*?)\{\{- end \}\}\n(?=---|\Z)", re.DOTALL)
    text = condition.sub(lambda found: found[2] if values[found[1]] else "", template)
    block = re.compile(
        r"\{\{- (with|range|range \$key, \$value :=) \.Values\.([\w.]+) \}\}\n(.*?)\{\{- end \}\}\n", re.DOTALL
    )
    text = block.sub(each, text)
    text = re.sub(r"\{\{ \.Values\.(\w+)(?: \| quote)? \}\}", lambda found: json.dumps(values[found[1]]), text)
    return re.sub(r'\{\{ "([{}]{2})" \}\}', lambda found: found[1], text)


@pytest.mark.parametrize("settings", [PLAIN, EVERYTHING], ids=["plain", "everything"])
def test_the_chart_has_the_objects_that_install_applies(settings: InstallSettings) -> None:
    chart = render_chart(settings)
    values = yaml.safe_load(chart["values.yaml"])
    rendered = read(as_helm_would(chart[OBJECTS], values)) | read(chart[KINDS])
    assert rendered == {key(each): each for each in render_install(settings)}


POD_VALUES: dict[str, Any] = {
    "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"memory": "2Gi"}},
    "priorityClassName": "platform",
    "affinity": {"podAffinity": {}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"prometheus.io/scrape": "true"},
    "podLabels": {"cost-center": "42"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
}


def with_pod_values(deployment: dict[str, Any]) -> dict[str, Any]:
    """The Deployment as POD_VALUES would have it."""
    spec = deployment["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    changed = {"resources": POD_VALUES["resources"], "env": [*container["env"], *POD_VALUES["extraEnv"]]}
    fields = ("priorityClassName", "affinity", "nodeSelector", "tolerations", "imagePullSecrets")
    labels = {**spec["template"]["metadata"]["labels"], **POD_VALUES["podLabels"]}
    template = {
        "metadata": {"labels": labels, "annotations": POD_VALUES["podAnnotations"]},
        "spec": {**pod, "containers": [{**container, **changed}], **{each: POD_VALUES[each] for each in fields}},
    }
    return {**deployment, "spec": {**spec, "template": template}}


def test_every_value_of_a_pod_reaches_the_pods_of_its_deployment_and_no_others() -> None:
    chart = render_chart(EVERYTHING)
    defaults = yaml.safe_load(chart["values.yaml"])
    plain = {key(each): each for each in render_install(EVERYTHING) if each["kind"] != "CustomResourceDefinition"}
    sections = {"operator": "fairlead-operator", "page": "fairlead-page", "gateway": "fairlead-gateway"}
    assert set(defaults) == {"image", "replicas", "policy", "createNamespace", *sections}
    for section, name in sections.items():
        assert list(defaults[section]) == list(POD_VALUES)
        rendered = read(as_helm_would(chart[OBJECTS], {**defaults, section: POD_VALUES}))
        assert rendered == {**plain, ("Deployment", name): with_pod_values(plain["Deployment", name])}


@pytest.mark.parametrize(
    ("section", "change", "word"),
    [
        ("operator", {"podLabel": {}}, "podLabel"),
        ("operator", {"tolerations": [{"keys": "x"}]}, "keys"),
        ("gateway", {"resources": {"request": {}}}, "request"),
        ("gateway", {"podLabels": {"app.kubernetes.io/name": "other"}}, "app.kubernetes.io/name"),
        ("page", {"podLabels": {"fairlead.dev/team": "other"}}, "fairlead.dev/team"),
        ("operator", {"extraEnv": [{"name": "POD_NAMESPACE", "value": "other"}]}, "POD_NAMESPACE"),
        ("gateway", {"extraEnv": [{"name": "X", "valueFrom": {"file": "y"}}]}, "file"),
    ],
)
def test_the_schema_refuses_unknown_values_and_those_that_are_fairleads_own(
    section: str, change: dict[str, Any], word: str
) -> None:
    chart = render_chart(EVERYTHING)
    schema, values = json.loads(chart["values.schema.json"]), yaml.safe_load(chart["values.yaml"])
    check = jsonschema.Draft7Validator(schema)
    check.validate(values)
    check.validate({**values, section: POD_VALUES})
    values[section] |= change
    assert word in "".join(each.message for each in check.iter_errors(values))


def test_a_chart_without_gateways_has_no_values_of_them() -> None:
    schema = json.loads(render_chart(PLAIN)["values.schema.json"])
    assert "operator" in schema["properties"]
    assert "gateway" not in schema["properties"]


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
    own = write({"own.yaml": json.dumps({"operator": POD_VALUES})}, tmp_path) / "own.yaml"
    rendered = read(helm("template", "x", chart, given, f"--values={own}", "--kube-version", binaries.NEWEST))
    changed = InstallSettings(image="other:2", version="1.2.3", replicas=3, policy="fifo")
    wanted = {key(each): each for each in render_install(changed) if each["kind"] != "CustomResourceDefinition"}
    del wanted[("Namespace", SPACE)]
    operator = wanted["Deployment", "fairlead-operator"]
    apart = operator["spec"]["template"]["spec"]["affinity"]
    wanted["Deployment", "fairlead-operator"] = operator = with_pod_values(operator)
    operator["spec"]["template"]["spec"]["affinity"] = {**apart, **POD_VALUES["affinity"]}  # Helm merges objects
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
        WorkloadApi(Client(load_access((plane.kubeconfig(),))), namespace="default").submit(training("kept"))
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
