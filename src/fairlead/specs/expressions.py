"""Parses and evaluates conditions of pipelines, such as ``accuracy > 0.9 and not prepare.is_empty``, without eval.

The language has names, numbers, strings, lists, ``true`` and ``false``; comparisons, ``in``, ``and``, ``or``, ``not``
and parentheses.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fairlead.specs.constraints import quote

MOST_CHARACTERS = 500
_WORDS = {"true": True, "false": False}
_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
}


def names_in(text: str) -> frozenset[str]:
    """Return the names in a condition, with dots if written so.

    Raises:
        ValueError: The text is not a condition; the message completes a sentence about it.
    """
    return frozenset(_names(_read(text)))


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Evaluate a condition.

    Args:
        values: Values by name as in ``names_in``: numbers, strings, booleans or lists of them.

    Raises:
        ValueError: A name has no value, or two values cannot be compared; the message is a sentence.
    """
    return bool(_value(_read(text), values))


@cache
def _read(text: str) -> ast.expr:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"has {len(text)} characters; give at most {MOST_CHARACTERS}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("is not a condition; give one such as `accuracy > 0.9`") from error
    _check(tree)
    return tree


def _check(node: ast.expr) -> None:
    """Refuse every syntax outside this language."""
    match node:
        case ast.BoolOp(values=inner):
            parts = inner
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            parts = [operand]
        case ast.Compare(left=left, comparators=others):
            parts = [left, *others]
            if any(type(operator) not in _COMPARISONS for operator in node.ops):
                raise ValueError("compares with `is`; use `==`")
        case ast.List(elts=items) | ast.Tuple(elts=items):
            parts = items
        case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
            return
        case ast.Attribute(value=ast.Name()):
            return
        case _:
            raise ValueError(
                f"holds {quote(ast.unparse(node))}; a condition has names, numbers, texts, comparisons, "
                "`in`, `and`, `or` and `not` only"
            )
    for part in parts:
        _check(part)


def _names(node: ast.expr) -> Iterator[str]:
    if (name := _name(node)) is not None:
        if name not in _WORDS:
            yield name
        return
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.expr):
            yield from _names(inner)


def _name(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return None


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    name = _name(node)
    if name is not None:
        if name in values:
            return values[name]
        if name in _WORDS:
            return _WORDS[name]
        raise ValueError(f"{name} has no value")
    match node:
        case ast.Constant(value=value):
            return value
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, values) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, values)
        case ast.UnaryOp(operand=operand):
            number = _value(operand, values)
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise ValueError(f"{number!r} is not a number")
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, values) for item in items]
        case ast.Compare(left=left, ops=ops, comparators=others):
            first = _value(left, values)
            for op, other in zip(ops, others, strict=True):
                second = _value(other, values)
                if not _compare(_COMPARISONS[type(op)], first, second):
                    return False
                first = second
            return True
    raise AssertionError(ast.dump(node))  # `_check` refuses anything else


def _compare(op: str, first: Any, second: Any) -> bool:
    if op == "==":
        return bool(first == second)
    if op == "!=":
        return bool(first != second)
    try:
        match op:
            case "in":
                return first in second
            case "not in":
                return first not in second
            case "<":
                return bool(first < second)
            case "<=":
                return bool(first <= second)
            case ">":
                return bool(first > second)
        return bool(first >= second)
    except TypeError as error:
        raise ValueError(f"{first!r} and {second!r} cannot be compared with `{op}`") from error
