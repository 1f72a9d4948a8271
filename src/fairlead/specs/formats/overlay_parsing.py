"""Parses the pod overlay of a spec file from nodes, or reports its mistakes with lines."""

from collections.abc import Iterator
from typing import Any

from fairlead.specs.field_types import Tag
from fairlead.specs.formats.documents import Mapping, Node, Sequence
from fairlead.specs.overlay import Overlay, Path, dotted, overlay, problems
from fairlead.specs.quantities import parse_whole


def read_overlay(node: Node) -> tuple[Overlay | None, list[tuple[int, str, str]]]:
    """Parse an overlay; return it, or the line, the dotted path and the sentence of each mistake."""
    content = _plain(node)
    mistakes = [(_line(node, path), dotted(path), sentence) for path, sentence in problems(content)]
    return (None, mistakes) if mistakes else (overlay(content), [])


def _plain(node: Node) -> Any:
    if isinstance(node, Mapping):
        return {key.text: _plain(inner) for key, inner in node.entries}
    if isinstance(node, Sequence):
        return [_plain(inner) for inner in node.items]
    if node.tag is Tag.NULL:
        return None
    if node.tag is Tag.BOOL:
        return node.text.lower() == "true"
    if node.tag is Tag.INT:
        return parse_whole(node.text) if len(node.text) <= 20 else float("inf")
    return _number(node.text) if node.tag is Tag.FLOAT else node.text


def _number(text: str) -> int | float:
    """Parse a number with a point or an exponent, which is valid only if it is whole."""
    number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    # As of whole numbers above, no more digits than an API server takes.
    return int(number) if number.is_integer() and abs(number) < 1e18 else number


def _line(node: Node, path: Path) -> int:
    """Return the line of the last existing part of the path."""
    line = node.line
    for part in path:
        child = next(_inner(node, part), None)
        if child is None:
            break
        line, node = child
    return line


def _inner(node: Node, part: str | int) -> Iterator[tuple[int, Node]]:
    if isinstance(node, Mapping):
        yield from ((key.line, inner) for key, inner in node.entries if key.text == part)
    elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
        yield node.items[part].line, node.items[part]
