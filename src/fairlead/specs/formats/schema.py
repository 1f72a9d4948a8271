"""Builds the JSON Schema of spec files, both forms of every kind, for completion and validation in editors."""

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from fairlead.specs.constraints import Limit, Text
from fairlead.specs.field_types import (
    NUMERIC,
    SPAN,
    Kind,
    ListField,
    MapField,
    OverlayField,
    Section,
    SectionKey,
    SectionMap,
    Single,
)
from fairlead.specs.formats.documents import SHARED
from fairlead.specs.formats.rendering import default_of
from fairlead.specs.keys import API_VERSION, KINDS
from fairlead.specs.overlay import ITEMS_MOST, NAME_MOST, OBJECT_NAME, OBJECT_NAME_MOST, QUANTITY_MOST, TEXT_MOST
from fairlead.specs.pod_fields import Branch, Items, Leaf, Map


def json_schema() -> dict[str, Any]:
    """Return the schema of a document of a spec file (draft 2020-12).

    It agrees with the parser on keys, types and spellings. Only the parser checks bounds of sizes and durations written
    as text, and rules between keys.
    """
    forms = {}
    for kind, section in KINDS.items():
        forms[kind] = _short_form(kind, section)
        forms[f"{kind}.kubernetes"] = _kubernetes_form(kind, section)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Fairlead spec",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in forms],
        "$defs": forms,
    }


def section_schema(section: Section, *, short: bool = False) -> dict[str, Any]:
    """Return the schema of a section in the short form, or in the Kubernetes form without keys under ``metadata``."""
    keys = [key for key in section.keys if short or key.metadata is None]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key.name: _key(key, section, short) for key in keys},
        "additionalProperties": False,
    }
    required = [key.name for key in keys if key.required]
    if required:
        schema["required"] = required
    return schema


def _short_form(kind: str, section: Section) -> dict[str, Any]:
    schema = section_schema(section, short=True)
    schema["properties"] = {"kind": {"const": kind, "description": "What this is."}, **schema["properties"]}
    # A name is not required: the file's name is the default. Without `run`, the kind is required.
    required = [name for name in schema.get("required", []) if name != "name"]
    schema["required"] = required if kind == "Training" else ["kind", *required]
    schema["patternProperties"] = {f"^{SHARED}": {}}
    return {"description": f"{kind}, short form.", **schema}


def _kubernetes_form(kind: str, section: Section) -> dict[str, Any]:
    fields = {key.metadata: key for key in section.keys if key.metadata is not None}
    metadata = {
        "type": "object",
        "properties": {field: _key(key, section, False) for field, key in fields.items()},
        "required": [field for field, key in fields.items() if key.required],
        "additionalProperties": False,
    }
    spec = section_schema(section)
    _allow_null(metadata, {str(field): key for field, key in fields.items()})
    _allow_null(spec, {key.name: key for key in section.keys})
    return {
        "description": f"{kind}, Kubernetes form.",
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION},
            "kind": {"const": kind},
            "metadata": metadata,
            "spec": spec,
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
    }


def _allow_null(schema: dict[str, Any], keys: Mapping[str, SectionKey]) -> None:
    """Allow null for optional keys: in the Kubernetes form it means an omitted key, as for an API server."""
    properties = schema["properties"]
    for name in properties:
        key = keys[name]
        if isinstance(key.kind, SectionMap):
            inner = {inner_key.name: inner_key for inner_key in key.kind.item.keys}
            _allow_null(properties[name]["additionalProperties"], inner)
        if isinstance(key.kind, Section):
            _allow_null(properties[name], {inner.name: inner for inner in key.kind.keys})
        if not key.required:
            properties[name] = {"anyOf": [properties[name], {"type": "null"}]}


def _key(key: SectionKey, section: Section, short: bool) -> dict[str, Any]:
    rule = section.rules.get(key.attributes[0])
    schema = {"description": key.doc, **_kind(key.kind, rule, short)}
    defaults = default_of(key, section.type)
    if isinstance(key.kind, Single) and defaults[0] not in (MISSING, None):
        schema["default"] = key.kind.render(defaults[0] if len(defaults) == 1 else defaults)
    return schema


def _kind(kind: Kind, rule: Limit | Text | None, short: bool) -> dict[str, Any]:
    if isinstance(kind, Section):
        schema = section_schema(kind, short=short)
        lone = kind.key(kind.shorthand) if short and kind.shorthand is not None else None
        return schema if lone is None else {"anyOf": [_key(lone, kind, short), schema]}
    if isinstance(kind, SectionMap):
        return {
            "type": "object",
            "propertyNames": _text(kind.names),
            "additionalProperties": _kind(kind.item, None, short),
            "minProperties": 1,
            "maxProperties": kind.most,
        }
    if isinstance(kind, MapField):
        # Scalars of every type keep their exact text, so unquoted numbers and words are not checked.
        values = {"anyOf": [_text(kind.values), {"type": ["number", "boolean"]}]} if short else _text(kind.values)
        return {
            "type": "object",
            "propertyNames": _text(kind.names),
            "additionalProperties": values,
            "maxProperties": kind.most,
        }
    if isinstance(kind, OverlayField):
        return branch_schema(kind.tree)
    if isinstance(kind, ListField):
        items = dict(kind.item.schema) | (_text(kind.rule) if kind.rule else {})
        return {"type": "array", "items": items, "maxItems": kind.most, "uniqueItems": True}
    schema = dict(kind.schema)
    if isinstance(rule, Text):
        schema |= _text(rule)
    if isinstance(rule, Limit) and kind.tags == NUMERIC:
        schema |= {"minimum": 0 if rule.zero else rule.low, "maximum": rule.high}
    if isinstance(rule, Limit) and kind is SPAN:
        number, text = schema["anyOf"]
        schema = {"anyOf": [number | {"minimum": rule.low, "maximum": rule.high}, text]}
    return schema


def branch_schema(branch: Branch) -> dict[str, Any]:
    """Return the schema of fields of a Kubernetes object."""
    if isinstance(branch, Map):
        return {
            "type": "object",
            "additionalProperties": branch_schema(branch.values),
            "maxProperties": ITEMS_MOST,
        }
    if isinstance(branch, Items):
        return {"type": "array", "items": branch_schema(branch.item), "maxItems": branch.most}
    if isinstance(branch, Leaf):
        return dict(_LEAVES[branch])
    fields = {name: branch_schema(inner) for name, inner in branch.fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": fields, "additionalProperties": False}
    return schema | ({"required": list(branch.required)} if branch.required else {})


_LEAVES: dict[Leaf, dict[str, Any]] = {
    Leaf.TEXT: {"type": "string", "maxLength": TEXT_MOST},
    Leaf.NAME: {"type": "string", "maxLength": NAME_MOST},
    Leaf.OBJECT: {"type": "string", "maxLength": OBJECT_NAME_MOST, "pattern": f"^{OBJECT_NAME.pattern}$"},
    Leaf.WHOLE: {"type": "integer"},
    Leaf.FLAG: {"type": "boolean"},
    Leaf.QUANTITY: {"type": ["integer", "string"], "maxLength": QUANTITY_MOST},
}


def _text(rule: Text) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": rule.max_length}
    if rule.pattern is not None:
        schema["pattern"] = f"^(?:{rule.pattern})$"
    elif not rule.blank:
        schema["pattern"] = r"\S"
    return schema
