"""The definitions of our kinds: generated whole, structural, and telling what the parser tells."""

from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cluster.kubernetes.kinds import kept_kinds
from fairlead.cluster.kubernetes.manifests.crds import (
    definition,
    definitions,
    object_schema,
    with_fewer_rules,
)
from fairlead.cluster.kubernetes.manifests.spec_objects import read_object, write_object
from fairlead.errors import InvalidSpec
from fairlead.specs.field_types import Section
from fairlead.specs.formats.reading import parse
from fairlead.specs.keys import OBJECTS
from fairlead.specs.training import Training
from tests.kubernetes.goldens import check_golden


def schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from schemas(inner, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from schemas(schema["additionalProperties"], f"{path}{{}}")


def test_the_definitions_are_those_of_the_golden_file() -> None:
    check_golden("definitions.yaml", definitions())


@pytest.mark.parametrize("kind", kept_kinds())
def test_every_value_has_a_type_as_a_structural_schema_demands(kind: str) -> None:
    for path, schema in schemas(object_schema(kind)):
        typeless = ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
        assert "type" in schema or any(schema.get(each) for each in typeless), path


@pytest.mark.parametrize("kind", kept_kinds())
def test_every_key_of_the_tables_is_there_with_its_sentence(kind: str) -> None:
    def check(section: Section, schema: dict[str, Any]) -> None:
        for key in section.keys:
            if key.metadata is None:
                assert schema["properties"][key.name]["description"] == key.doc
                if isinstance(key.kind, Section):
                    check(key.kind, schema["properties"][key.name])

    check(OBJECTS[kind], object_schema(kind)["properties"]["spec"])


@pytest.mark.parametrize("kind", kept_kinds())
def test_every_text_list_and_mapping_is_bounded_so_that_rules_have_a_bounded_cost(kind: str) -> None:
    for path, schema in schemas(object_schema(kind)["properties"]["spec"], "spec"):
        if schema.get("type") == "string" or schema.get("x-kubernetes-int-or-string"):
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


def test_no_pattern_looks_ahead_because_the_api_server_cannot() -> None:
    for kind in kept_kinds():
        for path, schema in schemas(object_schema(kind)):
            for rule in schema.get("x-kubernetes-validations", ()):
                assert "(?=" not in rule["rule"], path
                assert "\n" not in rule.get("message", ""), path


@pytest.mark.parametrize("kind", kept_kinds())
def test_the_definition_for_older_servers_lacks_the_rules_of_quantities_and_nothing_else(kind: str) -> None:
    (version,) = definition(kind)["spec"]["versions"]
    (lean,) = with_fewer_rules(definition(kind))["spec"]["versions"]
    whole = dict(schemas(version["schema"]["openAPIV3Schema"]))
    for path, schema in schemas(lean["schema"]["openAPIV3Schema"]):
        before = whole[path]
        assert {*before} - {*schema} <= {"x-kubernetes-validations"}
        is_quantity = before.get("x-kubernetes-int-or-string", False)
        assert schema.get("x-kubernetes-validations") == before.get("x-kubernetes-validations") or (
            is_quantity or path.removeprefix(".spec.trial").removeprefix(".spec") in ("", ".retry", ".resources")
        )


def test_an_object_of_the_api_server_reads_as_the_spec_it_was_made_of() -> None:
    (spec,) = parse("run: python t.py\nname: a\nenv: {SEED: 1}\nresources: {gpu: 0.5, cpu: 500m}\nretry: 2\n")
    stored = write_object(spec)
    stored["metadata"] |= {"uid": "x", "resourceVersion": "7", "managedFields": []}
    stored["status"] = {"phase": "Running"}
    assert read_object(stored) == spec


def test_labels_of_an_object_are_those_of_its_run_but_for_fairleads_own() -> None:
    (spec,) = parse("run: python t.py\nname: a\nlabels: {experiment: b, example.com/empty: ''}\n")
    stored = write_object(spec)
    assert stored["metadata"]["labels"] == {"experiment": "b", "example.com/empty": ""}
    stored["metadata"]["labels"] |= {"fairlead.dev/run": "other", "app.kubernetes.io/managed-by": "Helm"}
    assert read_object(stored) == spec
    # Others may put on more than a spec may have.
    stored["metadata"]["labels"] |= {f"z{number}": "" for number in range(100)}
    read = read_object(stored)
    assert isinstance(read, Training)
    assert len(read.labels) == 50


def test_an_object_with_fields_of_a_newer_version_still_reads() -> None:
    stored = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Training",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"run": "true", "from_the_future": {"x": 1}},
    }
    assert read_object(stored).name == "a"


def test_an_object_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"v1 Pod is none of Training, .*Team, Pool"):
        read_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


def rules_beside(schema: Any) -> Iterator[tuple[str, set[str]]]:
    """The fields that rules are about, each with the properties that there are beside it."""
    if isinstance(schema, dict):
        for each in schema.get("x-kubernetes-validations", ()):
            if "fieldPath" in each and "properties" in schema:
                yield each["fieldPath"], set(schema["properties"])
        for below in schema.values():
            yield from rules_beside(below)


def test_every_rule_is_about_a_field_that_its_kind_has() -> None:
    found = [pair for each in definitions() for pair in rules_beside(each["spec"]["versions"][0]["schema"])]
    assert len(found) > 20
    assert [(path, there) for path, there in found if path.split(".")[1] not in there] == []
