"""A key of a spec file, written once: on the attribute of the dataclass that it sets (decision 197).

``weight: Annotated[int, Key("weight", rule=Limit(...), example="2"), "Its share of a contended cluster."] = 1`` gives
the name, the kind of value, the bounds and the sentence for people and editors. Type, default and whether it must be
there are the attribute's own. Parser, renderer, JSON Schema, CRDs and documentation derive from it, by
``fairlead.specs.sections``. An attribute that no key sets has its bounds alone: ``Annotated[int | None, Limit(...)]``.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, Field, field, fields, replace
from typing import TYPE_CHECKING, Any

from fairlead.frozen import dataclass
from fairlead.specs.constraints import Constraints, Limit, Text

if TYPE_CHECKING:
    from fairlead.specs.field_types import ListField, MapField, Named, OverlayField, Section, SectionMap, Single


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a file, as metadata of the attribute that it sets.

    Attributes:
        name: As written in files, in both forms.
        kind: Kind of its value; None for that of the attribute's type (text, whole number, true or false, a word of an
            enumeration, or the keys of a dataclass). A function returns a section that differs from the type's own.
        rule: Bounds of the value.
        example: Value as it would be written.
        also: Words by which others call it, separated by spaces, for suggestions.
        sets: Further attributes that it sets; its kind then parses to a tuple.
        alone: A lone scalar in place of the mapping is the value of this key.
        metadata: Its name under ``metadata`` in the Kubernetes form; None if it is under ``spec``.
    """

    name: str
    kind: "Single | MapField | ListField | OverlayField | Named | Callable[[], Section | SectionMap] | None" = None
    rule: Limit | Text | None = None
    _: KW_ONLY
    example: str
    also: str = ""
    sets: tuple[str, ...] = ()
    alone: bool = False
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class SameKey:
    """Metadata of an attribute whose key is that of another dataclass.

    Attributes:
        owner: The other dataclass.
        attribute: Its attribute.
        changes: Fields of the key that differ.
    """

    owner: type[Any]
    attribute: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self) -> tuple[Key, str]:
        """Return the key, and the other's sentence."""
        other = next(candidate for candidate in fields(self.owner) if candidate.name == self.attribute)
        resolved = key_of(other)
        assert resolved is not None, f"{self.owner.__name__}.{self.attribute} has no key"
        return replace(resolved[0], **self.changes), resolved[1]


_RULES: dict[type[Any], Constraints] = {}


def rules_of(owner: type[Any]) -> Constraints:
    """Return the rules of a dataclass by attribute."""
    rules = _RULES.get(owner)
    if rules is None:
        pairs = ((attribute.name, _rule(attribute)) for attribute in fields(owner))
        rules = _RULES[owner] = {name: rule for name, rule in pairs if rule is not None}
    return rules


def broken(value: Any) -> Iterable[tuple[str, str]]:
    """Yield the attribute and a sentence for each rule that ``value`` violates; skip attributes that are None."""
    for attribute, rule in rules_of(type(value)).items():
        content = getattr(value, attribute)
        if content is not None and (sentence := rule.problem(content)) is not None:
            yield attribute, sentence


def annotations_of(attribute: "Field[Any]") -> tuple[Any, ...]:
    """Return the metadata of an attribute's ``Annotated`` type; empty for any other type."""
    return getattr(attribute.type, "__metadata__", ())


def key_of(attribute: "Field[Any]") -> tuple[Key, str] | None:
    """Return the key of an attribute and its sentence; None for an attribute that is no key."""
    key, sentence = None, ""
    for item in annotations_of(attribute):
        if isinstance(item, SameKey):
            key, sentence = item.resolve()
        elif isinstance(item, Key):
            key = item
        elif isinstance(item, str):
            sentence = item
    return None if key is None else (key, sentence)


def _rule(attribute: "Field[Any]") -> Limit | Text | None:
    bounds = next((item for item in annotations_of(attribute) if isinstance(item, (Limit, Text))), None)
    if bounds is not None:
        return bounds
    key = key_of(attribute)
    return None if key is None else key[0].rule
