"""Converts objects of the API server to specs and back, and lists of objects to YAML.

See decision 26.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.objects import parse_object
from fairlead.specs.formats.rendering import render
from fairlead.specs.formats.yaml_writing import dump
from fairlead.specs.keys import API_VERSION, OBJECTS, Spec
from fairlead.specs.training import label_problem
from fairlead.specs.workload import LABELS_MOST, WorkloadSpec


def read_object(content: Mapping[str, Any]) -> Spec:
    """Parse the spec in an object as the API server stores it; fields of newer versions are ignored.

    Labels that no spec may have are ignored too, because other tools label any object.

    Raises:
        InvalidSpec: The kind is not Fairlead's, or the spec breaks a rule that the API server did not check.
    """
    kind, metadata = content.get("kind"), content.get("metadata") or {}
    if content.get("apiVersion") != API_VERSION or not isinstance(kind, str) or kind not in OBJECTS:
        raise InvalidSpec((f"<object>: {content.get('apiVersion')} {kind} is none of {', '.join(OBJECTS)}",))
    section = OBJECTS[kind]
    fields = {key.metadata for key in section.keys if key.metadata}
    known = {key.name for key in section.keys}
    spec = {name: value for name, value in (content.get("spec") or {}).items() if name in known}
    own = {field: value for field, value in metadata.items() if field in fields}
    if own.get("labels"):
        own["labels"] = _labels(own["labels"])
    source = f"{kind.lower()}/{metadata.get('name', '?')}"
    return parse_object({"apiVersion": API_VERSION, "kind": kind, "metadata": own, "spec": spec}, source=source)


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the user's labels of an object: all but Fairlead's own, and no more than a spec may have."""
    own = sorted((name, value) for name, value in labels.items() if label_problem(name, value) is None)
    return dict(own[:LABELS_MOST])


def write_object(spec: "Spec | WorkloadSpec") -> dict[str, Any]:
    """Return the object that is applied for a spec."""
    return render(spec)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) that changes one part of an object into another."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[name] = merge_patch(before, value)
        elif value != before:
            patch[name] = value
    return patch


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as YAML documents of one file."""
    return "---\n".join(dump(dict(content)) for content in objects)
