"""Parses an object of plain data, such as one of an API server, to a spec, without YAML."""

from collections.abc import Mapping as Map
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.specs.field_types import Tag
from fairlead.specs.formats.documents import Mapping, Node, Scalar, Sequence
from fairlead.specs.formats.parsing import read_spec
from fairlead.specs.formats.problems import Problems
from fairlead.specs.keys import OBJECTS, Spec


def parse_object(content: Map[str, Any], *, source: str) -> Spec:
    """Parse a spec from an object in the Kubernetes form.

    Raises:
        InvalidSpec: The object is invalid; has every problem.
    """
    problems = Problems(source=source)
    spec = read_spec(node_of(content), problems, default_name=None, kinds=OBJECTS)
    problems.raise_any()
    if spec is None:
        raise InvalidSpec((f"{source}: there is no spec in it",))
    return spec


def node_of(value: Any) -> Node:
    """Convert plain data to a tree, with all nodes in line 1."""
    if isinstance(value, Map):
        entries = tuple((_scalar(name, Tag.TEXT), node_of(inner)) for name, inner in value.items())
        return Mapping(entries=entries, line=1, column=1)
    if isinstance(value, list):
        return Sequence(items=tuple(node_of(inner) for inner in value), line=1, column=1)
    if value is None:
        return _scalar("null", Tag.NULL)
    if isinstance(value, bool):
        return _scalar("true" if value else "false", Tag.BOOL)
    if isinstance(value, (int, float)):
        return _scalar(repr(value), Tag.INT if isinstance(value, int) else Tag.FLOAT)
    return _scalar(str(value), Tag.TEXT)


def _scalar(text: str, tag: Tag) -> Scalar:
    return Scalar(tag=tag, text=text, line=1, column=1)
