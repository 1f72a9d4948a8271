"""Fields laid over a pod: read with their lines, refused by name, and written back as they were."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from fairlead.cluster.kubernetes.manifests.overlays import lay_over
from fairlead.errors import InvalidSpec
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.formats.reading import parse
from fairlead.specs.formats.rendering import to_yaml
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.overlay import Overlay, overlay, problems
from fairlead.specs.pod_fields import POD, Branch, FieldTree, Items, Leaf
from fairlead.specs.training import Training

FILE = """\
name: a
run: python t.py
kubernetes:
  metadata: {annotations: {x: "1"}}
  spec:
    nodeSelector: {disk: fast}
    volumes:
      - name: data
        persistentVolumeClaim: {claimName: imagenet}
    containers:
      - name: ranks
        volumeMounts: [{name: data, mountPath: /data}]
        resources: {limits: {rdma/hca: 1}}
"""


def read(text: str) -> Training:
    (spec,) = parse(text, source="f.yaml")
    assert isinstance(spec, Training)
    return spec


def refusals(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidSpec) as caught:
        parse(text, source="f.yaml")
    return caught.value.problems


def test_an_overlay_reads_back_as_it_was_in_both_forms_and_in_the_database() -> None:
    spec = read(FILE)
    assert spec.kubernetes.pod["spec"]["nodeSelector"] == {"disk": "fast"}
    for form in ("short", "kubernetes"):
        assert read(to_yaml(spec, form=form)) == spec
    assert from_json(to_json(spec)) == spec


def test_the_order_of_fields_does_not_make_another_overlay() -> None:
    assert overlay({"metadata": {}, "spec": {}}) == overlay({"spec": {}, "metadata": {}})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{spec: {nodeSelektor: {}}}", "kubernetes.spec.nodeSelektor: unknown field; did you mean `nodeSelector`?"),
        ("{spec: {hostNetwork: true}}", "kubernetes.spec.hostNetwork: unknown field"),
        ("{spec: {volumes: [{name: x, hostPath: {path: /}}]}}", "spec.volumes[0].hostPath: unknown field"),
        ("{spec: {containers: [{name: ranks, command: [sh]}]}}", "spec.containers[0].command: unknown field"),
        ("{spec: {containers: [{name: other}]}}", "spec.containers[0].name: the only container is `ranks`"),
        ("{spec: {initContainers: [{name: ranks, image: x}]}}", "`ranks` is Fairlead's own"),
        ("{spec: {volumes: [{name: fairlead-local}]}}", "volumes called fairlead-... are Fairlead's own"),
        ("{spec: {volumes: [{}]}}", "kubernetes.spec.volumes[0].name: missing"),
        ("{metadata: {labels: {fairlead.dev/run: x}}}", "names under fairlead.dev/ are Fairlead's own"),
        ("{metadata: {labels: {a: 1}}}", "kubernetes.metadata.labels.a: 1 is not text; put it in quotes"),
        ("{spec: {tolerations: {}}}", "kubernetes.spec.tolerations: a mapping is not a list"),
        ("{spec: {securityContext: {fsGroup: x}}}", 'fsGroup: "x" is not a whole number'),
        ("{spec: {securityContext: {fsGroup: 1.5}}}", "fsGroup: 1.5 is not a whole number"),
        ("{spec: {containers: [{name: ranks, env: [{name: RANK}]}]}}", '"RANK" is set by Fairlead itself'),
        ("x", '"x" is not a mapping of metadata, spec'),
    ],
)
def test_what_fairlead_or_the_host_would_lose_is_refused_by_name(given: str, problem: str) -> None:
    (found,) = refusals(f"name: a\nrun: x\nkubernetes: {given}\n")
    assert problem in found


def test_a_mistake_is_told_with_its_own_line() -> None:
    (found,) = refusals(FILE.replace("claimName: imagenet", "claim: imagenet, claimName: x"))
    assert found.startswith("f.yaml:9: kubernetes.spec.volumes[0].persistentVolumeClaim.claim: unknown field")


def test_a_value_that_was_not_read_from_a_file_obeys_the_same_rules() -> None:
    with pytest.raises(BrokenRules, match="unknown field"):
        Overlay(text='{"spec":{"hostPID":true}}')


def test_lists_are_merged_by_name_or_added_to() -> None:
    pod = {
        "spec": {
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "ranks", "image": "x", "env": [{"name": "A", "value": "1"}]}],
        }
    }
    above = overlay(
        {
            "spec": {
                "tolerations": [{"key": "a"}, {"key": "b"}],
                "containers": [{"name": "ranks", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}],
            }
        }
    )
    assert lay_over(pod, above) == {
        "spec": {
            "tolerations": [{"key": "a"}, {"key": "b"}],
            "containers": [
                {"name": "ranks", "image": "x", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]}
            ],
        }
    }


KUBERNETES_FORM = "apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: a}\nspec:\n  run: x\n  "


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("env: {SEED: 1}", 'spec.env.SEED: 1 is not text; put it in quotes: `SEED: "1"`'),
        ("resources: {gpu: 0.5}", 'spec.resources.gpu: 0.5 is a number with a point; put it in quotes: `gpu: "0.5"`'),
        ("retry: 3", "spec.retry: 3 is not a mapping of program"),
    ],
)
def test_the_kubernetes_form_takes_what_the_api_server_takes(given: str, problem: str) -> None:
    (found,) = refusals(KUBERNETES_FORM + given)
    assert problem in found


def test_nothing_given_is_left_out_in_the_kubernetes_form() -> None:
    assert read(KUBERNETES_FORM + "nodes: null\n").nodes == 1


def places(branch: Branch, leaf: Leaf) -> Iterator[Callable[[object], Any]]:
    """Functions that lay a value at one leaf of that kind; what a tree requires beside it is missing."""
    if branch is leaf:
        yield lambda value: value
    elif isinstance(branch, FieldTree):
        for name, inner in branch.fields.items():
            yield from (partial(lambda put, name, value: {name: put(value)}, put, name) for put in places(inner, leaf))
    elif isinstance(branch, Items):
        yield from (partial(lambda put, value: [put(value)], put) for put in places(branch.item, leaf))


@pytest.mark.parametrize("name", ["../secrets/token", "a/status", "a?watch=1", "A", "a,b", "a\u202eb", "-a", "x" * 300])
def test_no_field_that_names_an_object_takes_what_is_no_name(name: str) -> None:
    puts = list(places(POD, Leaf.OBJECT))
    assert len(puts) > 20
    for put in puts:
        sentences = [sentence for _, sentence in problems(put(name)) if sentence != "missing; give it"]
        assert len(sentences) == 1, put(name)
        assert "is not the name of an object; use lower-case" in sentences[0] or "give at most 253" in sentences[0]
        assert not [sentence for _, sentence in problems(put("a-1.b")) if sentence != "missing; give it"]
