"""An object that is plain data already, such as one of an API server, into a spec: the parser without the YAML."""

from collections.abc import Mapping as Map
from typing import Any

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.documents import Mapping, Node, Scalar, Sequence
from fairlead.specs.formats.parsing import read_spec
from fairlead.specs.formats.problems import Problems
from fairlead.specs.keys import OBJECTS, Spec
from fairlead.specs.tables.field_types import Tag


def parse_object(content: Map[str, Any], *, source: str) -> Spec:
    """The spec in an object of the Kubernetes form.

    Raises:
        InvalidSpec: Something is wrong; it holds every problem that was found.
    """
    problems = Problems(source=source)
    spec = read_spec(node_of(content), problems, default_name=None, kinds=OBJECTS)
    problems.raise_any()
    if spec is None:
        raise InvalidSpec((f"{source}: there is no spec in it",))
    return spec


def node_of(value: Any) -> Node:
    """Plain data as a tree, all of it in line 1."""
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
