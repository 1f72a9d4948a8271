"""A key is one line of a dataclass; parser, renderer, schema and documentation follow from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.constraints import NAME, Limit, enforce
from fairlead.specs.field_types import DURATION, SPAN, Named
from fairlead.specs.formats.documents import read_documents
from fairlead.specs.formats.parsing import read_spec
from fairlead.specs.formats.problems import Problems
from fairlead.specs.formats.schema import section_schema
from fairlead.specs.key import Key, SameKey, broken, rules_of
from fairlead.specs.keys import OBJECTS
from fairlead.specs.sections import part_of, section_of
from fairlead.specs.training import Training


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a toy."""

    size: Annotated[int, Key("size", example="1", alone=True), "Its size."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Toy:
    """A kind with a key of every sort of type."""

    name: Annotated[str, Key("name", rule=NAME, example="toy", metadata="name"), "Its name."]
    count: Annotated[int, Key("count", rule=Limit(low=1, high=9, whole=True), example="3", alone=True), "How many."] = 1
    colour: Annotated[Colour, Key("colour", example="red"), "Its colour."] = Colour.RED
    loud: Annotated[bool, Key("loud", example="true"), "Whether it is loud."] = False
    pause_s: Annotated[float | None, Key("pause", DURATION, Limit(low=1, high=60), example="5s"), "A pause."] = None
    least: Annotated[int, Key("span", SPAN, example="1..2", sets=("most",)), "From and to."] = 1
    most: Annotated[int | None, Limit(low=1, high=5, whole=True)] = None
    env: Annotated[Mapping[str, str], SameKey(Training, "env"), "Its variables."] = field(default_factory=dict)
    parts: Annotated[Mapping[str, Part], Key("parts", Named(NAME, 3), example="{a: 1}"), "Its parts."] = field(
        default_factory=dict
    )
    hidden: str = "not a key"

    def __post_init__(self) -> None:
        enforce(broken(self))


def read(**keys: Any) -> Toy:
    (document,), _ = read_documents(json.dumps({"kind": "Toy", **keys}))
    problems = Problems(source="toy.yaml")
    toy: object = read_spec(document, problems, default_name="toy", kinds={"Toy": section_of(Toy)})
    problems.raise_any()
    assert isinstance(toy, Toy)
    return toy


def test_an_attribute_with_a_key_is_read_from_a_file() -> None:
    toy = read(
        count=3, colour="blue", loud=True, pause="5s", span="2..4", env={"A": "1"}, parts={"a": 1, "b": {"size": 2}}
    )
    assert toy == Toy(
        name="toy", count=3, colour=Colour.BLUE, loud=True, pause_s=5.0, least=2, most=4, env={"A": "1"},
        parts={"a": Part(size=1), "b": Part(size=2)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"count": 10}, "count: 10 is out of bounds; give 1 to 9, such as `count: 3`"),
        ({"colour": "green"}, 'colour: "green" is not one of red, blue; give red, blue, such as `colour: red`'),
        ({"pause": "2m"}, 'pause: "2m" is out of bounds; give 1s to 1m, such as `pause: 5s`'),
        ({"span": "1..6"}, 'span: "1..6" is out of bounds; give 1 to 5, such as `span: 1..2`'),
        ({"parts": {"a": {}}}, "parts.a.size: missing; give size, such as `size: 1`"),
        ({"hidden": "x"}, "hidden: unknown key; Allowed: name, count, colour, loud, pause, span, env, parts"),
    ],
)
def test_a_value_outside_of_its_bounds_is_refused_with_those_of_the_key(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        read(**keys)
    assert refused.value.problems == (f"toy.yaml:1: {problem}",)


def test_the_schema_has_name_type_bounds_default_and_sentence() -> None:
    schema = section_schema(section_of(Toy), short=True)
    assert schema["required"] == ["name"]
    assert schema["properties"]["count"] == {
        "description": "How many.", "type": "integer", "minimum": 1, "maximum": 9, "default": 1,
    }  # fmt: skip
    assert schema["properties"]["colour"] == {"description": "Its colour.", "enum": ["red", "blue"], "default": "red"}
    assert schema["properties"]["env"]["description"] == "Its variables."


def test_bounds_of_an_attribute_without_a_key_are_kept_by_the_constructor() -> None:
    assert set(rules_of(Toy)) == {"name", "count", "pause_s", "most"}
    with pytest.raises(ValueError, match="most: 6 is out of bounds"):
        Toy(name="toy", most=6)


def test_a_kind_within_another_has_no_name_or_metadata_of_its_own() -> None:
    assert "name" in [key.name for key in section_of(Toy).keys]
    assert [key.name for key in part_of(Toy).keys if key.name == "name" or key.metadata] == []


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_key_has_a_sentence_and_an_example(kind: str) -> None:
    for key in OBJECTS[kind].keys:
        assert key.doc.endswith("."), key.name
        assert key.example, key.name
