"""Renders frozen values as plain data and as YAML, in the Kubernetes and the short form."""

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from fairlead.deferred import deferred
from fairlead.specs.field_types import ListField, MapField, OverlayField, Section, SectionKey, SectionMap, Single
from fairlead.specs.formats.secret_values import conceal
from fairlead.specs.keys import API_VERSION, OBJECTS, Spec
from fairlead.specs.overlay import Overlay
from fairlead.specs.workload import WorkloadSpec

if TYPE_CHECKING:
    from fairlead.specs.formats import yaml_writing
else:
    yaml_writing = deferred("fairlead.specs.formats.yaml_writing")

Form = Literal["kubernetes", "short"]


def render(spec: "Spec | WorkloadSpec") -> dict[str, Any]:
    """Render the Kubernetes form as plain data: the namespace, required keys, and keys that are not at defaults."""
    kind = type(spec).__name__
    section = OBJECTS[kind]
    # The namespace is always included, and an empty mapping never is.
    metadata = {
        key.metadata: _plain(key, spec)
        for key in section.keys
        if key.metadata and (isinstance(key.kind, Single) or _is_written(key, spec))
    }
    body = {key.name: _plain(key, spec) for key in section.keys if not key.metadata and _is_written(key, spec)}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": body}


def render_short(spec: "Spec | WorkloadSpec") -> dict[str, Any]:
    """Render the short form as plain data: required keys, and keys that differ from their defaults."""
    kind = type(spec).__name__
    body = {key.name: _plain(key, spec) for key in OBJECTS[kind].keys if _is_written(key, spec)}
    return body if kind == "Training" else {"kind": kind, **body}


def to_yaml(spec: "Spec | WorkloadSpec", *, form: Form = "kubernetes", shows_secrets: bool = True) -> str:
    """Render the spec as a YAML document that parses to the same value.

    Args:
        shows_secrets: False to hide values of variables that look like credentials, for a reader's eyes.
    """
    rendered = render(spec) if form == "kubernetes" else render_short(spec)
    return yaml_writing.dump(rendered if shows_secrets else conceal(rendered))


def default_of(key: SectionKey, owner: type[Any]) -> tuple[object, ...]:
    """Return the dataclass's defaults of a key's attributes; MISSING without a default."""
    return tuple(_defaults(cast(Hashable, owner))[attribute] for attribute in key.attributes)


@cache
def _defaults(owner: type[Any]) -> Mapping[str, object]:
    return {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(owner)
    }


def _is_written(key: SectionKey, owner: object) -> bool:
    """Return whether a key must be written."""
    values = tuple(getattr(owner, attribute) for attribute in key.attributes)
    return key.required or values != default_of(key, type(owner))


def _plain(key: SectionKey, owner: object) -> Any:
    """Return the value of a key as it is written in a file."""
    parts = tuple(getattr(owner, attribute) for attribute in key.attributes)
    value = parts[0] if len(parts) == 1 else parts
    kind = key.kind
    if isinstance(kind, Section):
        return {inner.name: _plain(inner, value) for inner in kind.keys if _is_written(inner, value)}
    if isinstance(kind, SectionMap):
        return {
            name: {key.name: _plain(key, inner) for key in kind.item.keys if _is_written(key, inner)}
            for name, inner in cast(Mapping[str, object], value).items()
        }
    if isinstance(kind, MapField):
        return dict(value)
    if isinstance(kind, OverlayField):
        return cast(Overlay, value).pod
    if isinstance(kind, ListField):
        return [kind.item.render(entry) for entry in value]
    return kind.render(value)
