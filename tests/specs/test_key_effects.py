"""Every key of every kind changes something: what is accepted is never ignored."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from fairlead.specs.field_types import Section, SectionMap
from fairlead.specs.formats.reading import parse
from fairlead.specs.keys import KINDS
from fairlead.specs.pipeline import Step
from tests.specs.key_effects import BASES, EFFECTS, Driven, Effect


def keys(section: Section, above: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """The paths of all keys that hold a value, with the attributes that they set; `*` stands for any name."""
    for key in section.keys:
        if isinstance(key.kind, Section):
            yield from keys(key.kind, f"{above}{key.name}.")
        elif isinstance(key.kind, SectionMap):
            yield from keys(key.kind.item, f"{above}{key.name}.*.")
        else:
            yield f"{above}{key.name}", key.attributes


def specs_of(kind: str, effect: Effect) -> tuple[Any, Any]:
    """The specs before and after a key is another, read as from a file."""
    before = {**BASES[kind], **effect.beside, effect.key: effect.before}
    return read(kind, before), read(kind, {**before, effect.key: effect.after, **effect.along})


def read(kind: str, keys: Mapping[str, Any]) -> Any:
    document: dict[str, Any] = {"kind": kind}
    for path, said in keys.items():
        if said is not None:
            place, words = document, path.replace("*", "step").split(".")
            for word in words[:-1]:
                place = place.setdefault(word, {})
            place[words[-1]] = said
    (spec,) = parse(json.dumps(document))
    return spec


def held(spec: Any, key: str, attribute: str) -> Any:
    """The value of an attribute that a key sets; None where nothing holds it."""
    for word in key.replace("*", "step").split(".")[:-1]:
        spec = spec.training if isinstance(spec, Step) and word == "resources" else spec  # for which they are short
        spec = spec.get(word) if isinstance(spec, dict) else getattr(spec, word, None)
    return getattr(spec, attribute, None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_key_has_an_example_of_its_effect(kind: str) -> None:
    known = {path for path, _ in keys(KINDS[kind])}
    shown = {effect.key for effect in EFFECTS.get(kind, ())}
    assert known - shown == set(), "say in tests/specs/key_effects.py what changes with them"
    assert shown - known == set(), "tests/specs/key_effects.py tells of keys that are not there"


CASES = [(kind, effect) for kind, effects in EFFECTS.items() for effect in effects]


SEEN: dict[tuple[str, str], object] = {}
"""Outcomes of specs from which several examples set out."""


def seen_of(effect: Effect, before: object) -> object:
    """Return what comes of a spec, which is the same twice."""
    key = (repr(effect.seen), repr(before))
    if key not in SEEN:
        seen = effect.seen(before)
        if not isinstance(effect.seen, Driven):  # which tells nothing that could differ by itself
            assert seen == effect.seen(before)
        SEEN[key] = seen
    return SEEN[key]


@pytest.mark.parametrize(("kind", "effect"), CASES, ids=[f"{kind}-{each.key}-{each.after}" for kind, each in CASES])
def test_a_key_changes_what_comes_of_its_spec(kind: str, effect: Effect) -> None:
    before, after = specs_of(kind, effect)
    assert seen_of(effect, before) != effect.seen(after)


@pytest.mark.parametrize("kind", KINDS)
def test_every_attribute_of_a_key_is_changed_by_one_of_its_examples(kind: str) -> None:
    for path, attributes in keys(KINDS[kind]):
        examples = [specs_of(kind, each) for each in EFFECTS[kind] if each.key == path]
        for attribute in attributes:
            changed = [held(before, path, attribute) != held(after, path, attribute) for before, after in examples]
            assert any(changed), f"no example of {path} changes {attribute}"
