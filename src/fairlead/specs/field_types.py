"""The kinds of value a key can have: how one is read from a scalar, written back, and described to an editor."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from fairlead.frozen import dataclass
from fairlead.specs import pod_fields as podfields
from fairlead.specs import quantities
from fairlead.specs.constraints import Constraints, Text

Plain = str | int | float | bool


class Tag(StrEnum):
    """The types of scalars in YAML 1.2's core schema."""

    NULL = "null"
    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    TEXT = "text"


NUMERIC = frozenset({Tag.INT, Tag.FLOAT})
ANY = frozenset({*NUMERIC, Tag.TEXT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """A value written as one scalar.

    Attributes:
        what: The noun for error messages, with its article.
        tags: Scalars that are looked at; any other is not ``what``.
        parse: From the scalar's text; raises ValueError with the rest of a sentence.
        render: What ``parse`` gives, as a plain value.
        schema: JSON Schema of what ``parse`` takes.
        choices: What to give, when it is a closed set.
        text: The pattern that text, as opposed to a number, must match in full before it is parsed; None for any.
    """

    what: str
    tags: frozenset[Tag]
    parse: Callable[[str], Any]
    render: Callable[[Any], Plain]
    schema: Mapping[str, Any]
    choices: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapField:
    """A mapping from names to texts, at most ``most``; scalars keep their exact text. ``example`` is one of them."""

    names: Text
    values: Text
    most: int
    example: str = '"a b"'


@dataclass(frozen=True, slots=True, kw_only=True)
class ListField:
    """A list of single values, at most ``most``; ``rule`` is what the dataclass asks of each."""

    item: Single
    most: int
    rule: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayField:
    """Fields of an object of Kubernetes, in its words, read into an ``Overlay``."""

    tree: podfields.FieldTree


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionMap:
    """A mapping from names to mappings that all have the same keys, at most ``most``."""

    item: "Section"
    names: Text
    most: int


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping from names to mappings with the keys of the attribute's own dataclass, at most ``most``."""

    names: Text
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionKey:
    """One key of a section, as it follows from the attribute of the dataclass (``fairlead.specs.key``).

    Attributes:
        name: As written in files, in both forms.
        doc: One sentence for people and editors.
        attributes: Attributes of the dataclass it sets; a kind that sets several parses to a tuple.
        example: A value as it would be written.
        required: It must be there.
        also: Words by which others call it, for suggestions.
        metadata: Its name under ``metadata`` in the Kubernetes form; None when it is under ``spec``.
    """

    name: str
    kind: "Single | MapField | ListField | OverlayField | Section | SectionMap"
    doc: str
    attributes: tuple[str, ...]
    example: str
    required: bool = False
    also: tuple[str, ...] = ()
    metadata: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A mapping with known keys, read into one dataclass.

    Attributes:
        rules: Rules of the dataclass by attribute.
        shorthand: The key that a lone scalar stands for; None when only a mapping will do.
    """

    type: type[Any]
    rules: Constraints
    keys: tuple[SectionKey, ...]
    shorthand: str | None = None

    def key(self, name: str) -> SectionKey | None:
        """The key of that name."""
        return next((key for key in self.keys if key.name == name), None)

    def key_of(self, attribute: str) -> SectionKey | None:
        """The key that sets an attribute."""
        return next((key for key in self.keys if attribute in key.attributes), None)


Kind = Single | MapField | ListField | OverlayField | Section | SectionMap


def _identity(value: Any) -> Any:
    return value


def _any_of(*parts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"anyOf": list(parts)}


def pattern(expression: str) -> Mapping[str, Any]:
    """Return the JSON Schema of texts that match a regular expression in full."""
    return {"type": "string", "pattern": f"^(?:{expression})$"}


def _flag(text: str) -> bool:
    return text.lower() == "true"


def _spot(text: str) -> tuple[bool, bool]:
    """Return whether spot is allowed, and chosen by itself."""
    return text.lower() in ("true", "auto"), text == "auto"


TEXT = Single(
    what="text",
    tags=frozenset({Tag.TEXT}),
    parse=_identity,
    render=_identity,
    schema={"type": "string"},
)

WHOLE = Single(
    what="a whole number",
    tags=NUMERIC,
    parse=quantities.parse_whole,
    render=_identity,
    schema={"type": "integer", "minimum": 0},
)

SPAN = Single(
    what="a whole number, or two joined by `..`",
    tags=ANY,
    parse=quantities.parse_span,
    render=quantities.format_span,
    schema=_any_of({"type": "integer", "minimum": 0}, pattern(quantities.SPAN)),
    text=quantities.SPAN,
)

DOLLARS = Single(
    what="a number of dollars",
    tags=NUMERIC,
    parse=lambda text: float(quantities.parse_number(text)),
    render=quantities.format_number,
    schema={"type": "number", "minimum": 0},
)

FACTOR = Single(
    what="a number",
    tags=NUMERIC,
    parse=lambda text: float(quantities.parse_number(text)),
    render=quantities.format_number,
    schema={"type": "number"},
)

SHARE = Single(
    what="a share, such as 0.05 or 5%",
    tags=ANY,
    parse=quantities.parse_share,
    render=quantities.format_number,
    schema=_any_of({"type": "number", "minimum": 0}, pattern(f"{quantities.SHARE}|{quantities.NUMBER}")),
)

FLAG = Single(
    what="true or false",
    tags=frozenset({Tag.BOOL}),
    parse=_flag,
    render=_identity,
    schema={"type": "boolean"},
    choices="true or false",
)

SPOT = Single(
    what="true, false or auto",
    tags=frozenset({Tag.BOOL, Tag.TEXT}),
    parse=_spot,
    render=lambda allowed_auto: "auto" if allowed_auto[1] else allowed_auto[0],
    schema={"enum": [True, False, "auto"]},
    choices="true, false, auto",
    text="auto",
)

SIZE = Single(
    what="a size in bytes",
    tags=ANY,
    parse=quantities.parse_size,
    render=quantities.format_size,
    schema=_any_of({"type": "integer", "minimum": 0}, pattern(f"{quantities.SIZE}|{quantities.NUMBER}")),
)

CPU = Single(
    what="a number of cores",
    tags=ANY,
    parse=quantities.parse_cpu,
    render=quantities.format_cpu,
    schema=_any_of({"type": "number", "minimum": 0}, pattern(f"{quantities.CPU}|{quantities.NUMBER}")),
)


def or_auto(kind: Single) -> Single:
    """Return a kind of value that may be ``auto`` too, which parses to the value, None then, and whether it is."""

    def parse(text: str) -> tuple[Any, bool]:
        return (None, True) if text == "auto" else (kind.parse(text), False)

    def render(value: tuple[Any, bool]) -> Plain:
        return "auto" if value[1] else kind.render(value[0])

    return Single(
        what=f"{kind.what} or `auto`",
        tags=kind.tags,
        parse=parse,
        render=render,
        schema={"anyOf": [*kind.schema["anyOf"], {"type": "string", "pattern": "^(?:auto)$"}]},
    )


SIZE_OR_AUTO = or_auto(SIZE)
CPU_OR_AUTO = or_auto(CPU)

GPU_COUNT = Single(
    what="a number of GPUs",
    tags=ANY,
    parse=quantities.parse_gpu_count,
    render=quantities.format_gpu_count,
    schema=_any_of({"type": "number", "minimum": 0}, pattern(quantities.NUMBER)),
)

DURATION = Single(
    what="a duration",
    tags=ANY,
    parse=quantities.parse_duration,
    render=quantities.format_duration,
    schema=_any_of({"type": "number", "minimum": 0}, pattern(f"{quantities.DURATION}|{quantities.NUMBER}")),
)

EVERY = Single(
    what="a duration, a number of steps or `auto`",
    tags=ANY,
    parse=quantities.parse_every,
    render=quantities.format_every,
    schema=_any_of(
        {"type": "number", "exclusiveMinimum": 0},
        pattern(f"{quantities.EVERY_AUTO}|{quantities.STEPS}|{quantities.DURATION}|{quantities.NUMBER}"),
    ),
)

NUMBER_OF_STEPS = Single(
    what="a number of steps",
    tags=ANY,
    parse=quantities.parse_steps,
    render=quantities.format_steps,
    schema=_any_of({"type": "integer", "minimum": 0}, pattern(f"{quantities.STEPS}|[0-9]{{1,15}}")),
)

DURATION_OR_STEPS = Single(
    what="a duration or a number of steps",
    tags=ANY,
    parse=quantities.parse_duration_or_steps,
    render=quantities.format_duration_or_steps,
    schema=_any_of(
        {"type": "number", "exclusiveMinimum": 0},
        pattern(f"{quantities.STEPS}|{quantities.DURATION}|{quantities.NUMBER}"),
    ),
)


def word(words: type[StrEnum]) -> Single:
    """One of a closed set of words."""
    choices = ", ".join(words)

    def parse(text: str) -> StrEnum:
        if text not in set(words):
            raise ValueError(f"is not one of {choices}")
        return words(text)

    return Single(
        what=f"one of {choices}",
        tags=frozenset({Tag.TEXT}),
        parse=parse,
        render=str,
        schema={"enum": [str(choice) for choice in words]},
        choices=choices,
    )
