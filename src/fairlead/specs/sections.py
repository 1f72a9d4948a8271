"""The keys of a section of a spec file, as they follow from its dataclass."""

from collections.abc import Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, cast, get_args

from fairlead.specs.field_types import (
    FLAG,
    TEXT,
    WHOLE,
    Kind,
    Named,
    Section,
    SectionKey,
    SectionMap,
    word,
)
from fairlead.specs.key import Key, key_of, rules_of

IDENTITY = ("name", "namespace")
"""Keys under ``metadata`` that only an object of its own has."""


def section_of(owner: type[Any]) -> Section:
    """Return the section of a kind, whose keys may be under ``metadata`` in the Kubernetes form.

    A kind's ``OBJECT_KEYS`` are the names of its keys where these are not all of its dataclass, in their order.
    """
    return _section(cast(Hashable, owner))


def part_of(owner: type[Any]) -> Section:
    """Return the section of a dataclass within another, which has no name, namespace or ``metadata`` of its own."""
    return _part(cast(Hashable, owner))


def without(section: Section, *names: str) -> Section:
    """Return the section without some keys."""
    return replace(section, keys=tuple(key for key in section.keys if key.name not in names))


def with_keys(section: Section, *keys: SectionKey) -> Section:
    """Return the section with other keys in place of those of the same names."""
    changed = {key.name: key for key in keys}
    return replace(section, keys=tuple(changed.get(key.name, key) for key in section.keys))


@cache
def _section(owner: type[Any]) -> Section:
    keys, lone = [], None
    for attribute in fields(owner):
        key_and_doc = key_of(attribute)
        if key_and_doc is None:
            continue
        key, doc = key_and_doc
        keys.append(
            SectionKey(
                name=key.name,
                kind=_kind(key, attribute),
                doc=doc,
                attributes=(attribute.name, *key.sets),
                example=key.example,
                required=attribute.default is attribute.default_factory is MISSING,
                also=tuple(key.also.split()),
                metadata=key.metadata,
            )
        )
        lone = key.name if key.alone else lone
    names = getattr(owner, "OBJECT_KEYS", None)
    if names is not None:
        by_name = {key.name: key for key in keys}
        keys = [by_name[name] for name in names]
    return Section(type=owner, rules=rules_of(owner), keys=tuple(keys), shorthand=lone)


@cache
def _part(owner: type[Any]) -> Section:
    section = _section(cast(Hashable, owner))
    keys = (replace(key, metadata=None) for key in section.keys if key.metadata not in IDENTITY)
    return replace(section, keys=tuple(keys))


def _kind(key: Key, attribute: "Field[Any]") -> Kind:
    """Return the kind of an attribute's value: the key's own, or that of the type."""
    if isinstance(key.kind, Named):
        return SectionMap(item=part_of(get_args(_bare(attribute.type))[1]), names=key.kind.names, most=key.kind.most)
    if key.kind is not None:
        return key.kind() if callable(key.kind) else key.kind
    bare = _bare(attribute.type)
    if is_dataclass(bare):
        return part_of(cast(type[Any], bare))
    if issubclass(bare, StrEnum):
        return word(bare)
    return _KINDS[bare]


_KINDS: Mapping[type[Any], Kind] = {str: TEXT, int: WHOLE, bool: FLAG}


def _bare(declared: Any) -> Any:
    """Return a declared type without its metadata, and without None."""
    if hasattr(declared, "__metadata__"):
        declared = declared.__origin__
    if isinstance(declared, UnionType):
        (declared,) = (member for member in get_args(declared) if member is not NoneType)
    return declared
