"""Secrets of runs on Kubernetes: references in pods, judged by a real API server for who submits."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.api.client import Client
from fairlead.cluster.kubernetes.api.config import load_access
from fairlead.cluster.kubernetes.client.secret_checks import secret_problem
from fairlead.cluster.kubernetes.engines.endpoint_port import Handover, Version
from fairlead.cluster.kubernetes.engines.table import driver_of
from fairlead.cluster.kubernetes.manifests.admission_policies import secret_expression
from fairlead.cluster.kubernetes.manifests.pods import render_pod
from fairlead.cluster.kubernetes.manifests.spec_objects import write_object
from fairlead.specs.data import DataSource
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.pipeline import STEPS_MOST
from fairlead.specs.secret_reference import parse_secret
from fairlead.specs.serving import Serving
from fairlead.specs.training import Training
from tests.builders import training
from tests.kubernetes.builders import SETTINGS, a_creation, a_workload
from tests.kubernetes.clusters import started
from tests.kubernetes.test_overlay_policy import (
    ADMIN,
    LEAST,
    PODS,
    READER,
    SPACE,
    USER,
    VIEWER,
    an_object,
    answer,
    prepare,
)
from tests.kubernetes.testcluster.control_plane import ControlPlane

REFERENCES = tuple(map(parse_secret, ("hf", "KEY=gcp/key.json", "ALL=gcp")))


def test_a_pod_refers_to_its_secrets_and_has_paths_alone() -> None:
    data = {"train": DataSource(origin="s3://bucket/a", credentials="reader.2026")}
    pod = render_pod(a_workload(training(secrets=REFERENCES, data=data)), a_creation(), SETTINGS)["spec"]
    (ranks,) = pod["containers"]
    assert ranks["envFrom"] == [{"secretRef": {"name": "hf"}}]
    volumes = {volume["name"]: volume["secret"] for volume in pod["volumes"] if "secret" in volume}
    assert sorted(volume["secretName"] for volume in volumes.values()) == ["gcp", "reader.2026"]
    assert {volume["defaultMode"] for volume in volumes.values()} == {0o440}
    mounts = {mount["mountPath"]: mount for mount in ranks["volumeMounts"] if mount["name"] in volumes}
    assert set(mounts) == {"/fairlead/secrets/gcp", "/fairlead/secrets/reader.2026"}
    assert all(mount["readOnly"] for mount in mounts.values())
    (told,) = (one["value"] for one in ranks["env"] if one["name"] == "FAIRLEAD_INSTRUCTIONS")
    env = json.loads(told)["env"]
    assert (env["KEY"], env["ALL"]) == ("/fairlead/secrets/gcp/key.json", "/fairlead/secrets/gcp")
    assert json.loads(env["FAIRLEAD_DATA"])["train"]["credentials"] == "/fairlead/secrets/reader.2026"
    reporter = pod["initContainers"][0]
    assert "envFrom" not in reporter
    assert not {mount["name"] for mount in reporter["volumeMounts"]} & set(volumes)


@pytest.mark.parametrize("engine", [EndpointEngine.KSERVE, EndpointEngine.SELDON, EndpointEngine.KNATIVE])
def test_servers_of_engines_refer_to_secrets_too(engine: EndpointEngine) -> None:
    spec = Serving(name="chat", run="serve", image="i", engine=engine, secrets=REFERENCES)
    target = Version(name="r1", spec=spec)
    rendered = json.dumps(driver_of(engine).render(Handover(workload=a_workload(spec), target=target)))  # type: ignore[arg-type]
    assert '"envFrom": [{"secretRef": {"name": "hf"}}]' in rendered
    assert '"secretName": "gcp", "defaultMode": 292' in rendered
    assert '{"name": "KEY", "value": "/fairlead/secrets/gcp/key.json"}' in rendered


def test_the_policy_looks_at_the_secrets_of_every_kind_that_starts_programs() -> None:
    expression = secret_expression()
    for place in (
        "object.spec.secrets", "object.spec.trial", "object.spec.steps", "s0.training.secrets",
        "s0.sweep.trial.secrets", ".credentials",
    ):  # fmt: skip
        assert place in expression


@pytest.fixture(scope="module")
def policed(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    users: dict[str, list[str]] = {name: [] for name in (USER, ADMIN, VIEWER, PODS, READER, LEAST)}
    with started(lambda: ControlPlane(users=users), request) as plane:
        prepare(plane)
        yield plane


OF_EACH_KIND: list[tuple[str, dict[str, Any]]] = [
    ("Training", {"run": "x", "secrets": ["HERE"]}),
    ("Training", {"run": "x", "secrets": ["KEY=HERE/key.json"]}),
    ("Training", {"run": "x", "secrets": ["KEY=HERE"]}),
    ("Training", {"run": "x", "data": {"a": {"from": "s3://b/c", "credentials": "HERE"}}}),
    ("Serving", {"run": "x", "secrets": ["HERE"]}),
    ("Sweep", {"parameters": {"x": "1 | 2"}, "trial": {"run": "x", "secrets": ["HERE"]}}),
    ("Pipeline", {"secrets": ["HERE"], "steps": {"a": {"run": "x"}}}),
    ("Pipeline", {"steps": {"a": {"training": {"run": "x", "secrets": ["HERE"]}}}}),
    ("Pipeline", {"steps": {"a": {"training": {"run": "x", "data": {
        "a": {"from": "s3://b/c", "credentials": "HERE"}}}}}}),
]  # fmt: skip


@pytest.mark.kubernetes
@pytest.mark.parametrize(("kind", "spec"), OF_EACH_KIND)
def test_a_secret_is_for_those_who_may_read_it(policed: ControlPlane, kind: str, spec: dict[str, Any]) -> None:
    def said(user: str, name: str) -> str:
        return answer(policed, user, an_object(kind, json.loads(json.dumps(spec).replace("HERE", name))))

    assert said(READER, "db") == ""
    assert 'use Secret "other", for which you need `get` on secrets in namespace sharing' in said(READER, "other")
    assert 'use Secret "db"' in said(USER, "db")
    for user in (ADMIN, PODS):
        assert said(user, "other") == ""


@pytest.mark.kubernetes
def test_secrets_of_keys_and_of_the_overlay_are_asked_about_together(policed: ControlPlane) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}]
    overlay = {"spec": {"containers": [{"name": "ranks", "env": env}]}}
    spec = {"run": "x", "image": "i", "secrets": ["db"], "kubernetes": overlay}
    assert 'use Secret "other"' in answer(policed, READER, an_object("Training", spec))


@pytest.mark.kubernetes
@pytest.mark.slow
def test_the_largest_pipeline_with_secrets_is_still_judged(policed: ControlPlane) -> None:
    steps = {f"s{number}": {"training": {"run": "x", "secrets": ["db"]}} for number in range(STEPS_MOST)}
    assert answer(policed, READER, an_object("Pipeline", {"steps": steps})) == ""
    assert 'use Secret "db"' in answer(policed, USER, an_object("Pipeline", {"steps": steps}))


@pytest.mark.kubernetes
def test_what_is_wrong_with_a_secret_is_said_to_who_may_read_it(policed: ControlPlane) -> None:
    for name, data in (("one", {"TOKEN": "1"}), ("two", {"TOKEN": "2"}), ("file", {"key.pem": "3"}), ("empty", {})):
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        content = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}
        policed.request("POST", f"/api/v1/namespaces/{SPACE}/secrets", content)
    client = Client(load_access((policed.kubeconfig(),)))

    def said(*secrets: str, **keys: Any) -> str | None:
        return secret_problem(client, SPACE, training(secrets=tuple(map(parse_secret, secrets)), **keys))

    assert said("one", "KEY=file/key.pem") is None
    assert "there is no Secret `absent` in namespace sharing; `kubectl -n sharing create secret" in str(said("absent"))
    assert "the Secret `empty` in namespace sharing has no entries" in str(said("empty"))
    assert "TOKEN is an entry of the Secret `two` and in the Secret `one`; remove one of them" in str(
        said("one", "two")
    )
    assert "TOKEN is an entry of the Secret `one` and in `env`" in str(said("one", env={"TOKEN": "x"}))
    assert "`key.pem` of the Secret `file` is no name of a variable" in str(said("file"))
    assert "the Secret `file` has no entry `a`; it has key.pem" in str(said("KEY=file/a"))
    source = DataSource(origin="s3://b/c", credentials="absent")
    assert str(said(data={"train": source})).startswith("data.train.credentials: there is no Secret `absent`")


def test_objects_have_names_of_secrets_alone() -> None:
    content = json.dumps(write_object(Training(name="t", run="x", secrets=REFERENCES)))
    assert '"secrets": ["hf", "KEY=gcp/key.json", "ALL=gcp"]' in content
